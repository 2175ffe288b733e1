"""All benches of a project as one site: what overviews show of each, the files, and the server that shows the same live.

May use `logs`, `plan`, `record`, `results`, `analysis` and `report`; it never contacts a node.
"""
