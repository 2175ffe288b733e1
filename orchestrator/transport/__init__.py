"""Connections to one machine, which carry bytes without interpreting them.

May use `inventory`. Every bench currently uses `ssh`.
"""
