"""Slurm: its jobs as its own programs report them, and their nodes as hosts."""
