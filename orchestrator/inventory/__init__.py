"""The machines of a cluster: hosts, groups and host sets, from inventories in any supported format.

Depends only on the ground files. Nothing in this package opens a connection, and only `read` opens files.
"""
