"""The execution of a bench: what runs next, the launch of a run, the watch over it, and its end.

May import all packages except `report`, `lab` and `cli`. Re-exports nothing, because that would
load paramiko.
"""
