"""Decide everything as data: a framework folder and choices become every file of every node.

May use `inventory` and `logs`; knows no past: what earlier benches say is handed in. `folders` alone opens files.
"""
