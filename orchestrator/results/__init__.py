"""Results: one value per run from its evidence, and the rows of a table from runs.

May import `inventory`, `logs`, `plan`, `checks` and `record`, but never contacts a node: numbers
come from files alone.
"""

from orchestrator.results.cells import Cell, cells_of
from orchestrator.results.numbers.intervals import Interval, interval
from orchestrator.results.numbers.throughput import Throughput, mean, median
from orchestrator.results.run import NEVER_RUN, RUNNING, RunResult

__all__ = [
    "NEVER_RUN",
    "RUNNING",
    "Cell",
    "Interval",
    "RunResult",
    "Throughput",
    "cells_of",
    "interval",
    "mean",
    "median",
]
