"""A bench carried out: what runs next, its launch, the watch over it, its end.

May use all packages but `report`, `lab` and `cli`. Hands on nothing, because that would load paramiko.
"""
