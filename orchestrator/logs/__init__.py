"""Parsing of logs: from bytes to steps, NCCL's choices and known failures.

May use `inventory`. Pure: nothing in this package opens a file.
"""
