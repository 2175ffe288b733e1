"""Bytes of a log to steps, and to what else a program says in it: NCCL's choices, known failures.

May use `inventory`. Pure: nothing here opens a file.
"""
