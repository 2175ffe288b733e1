"""A bench held against something: another bench, a prediction, what others published, its own
default, its past.

May use `inventory`, `plan`, `checks`, `record` and `results`; never a node.
"""
