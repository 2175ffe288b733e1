"""Evidence to one value per run, and runs to the rows of a table.

May use `inventory`, `logs`, `plan`, `checks` and `record`; never a node: numbers come from files alone.
"""
