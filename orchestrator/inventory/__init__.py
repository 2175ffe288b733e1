"""The machines: hosts, groups and host sets, in whatever format an inventory is written.

Uses the ground files alone. Nothing here opens a connection; `read` alone opens files.
"""
