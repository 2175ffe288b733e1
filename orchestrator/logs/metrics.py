"""A metric: a quantity that a program prints, combined over lines, ranks and nodes for a run.

>>> busbw = Metric("busbw", "GB/s", "higher", keys=("size_bytes",))
>>> busbw.group, busbw.scope, busbw.is_lower_better
('busbw', 'global', False)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from orchestrator.documents import Invalid, read

BETTER = ("higher", "lower")
METRIC_SCOPES = ("global", "node", "rank")
SAYS = ("tokens_per_s", "tokens_per_s_per_device", "tflops_per_device", "mfu")
"""The numbers of a language model that programs print too, each by its own convention."""


def _harmonic_mean(values: Sequence[float]) -> float:
    """Return the mean of rates over equal amounts of work; 0 if one of them is 0. Raises ValueError
    for a negative one.
    """
    if min(values) < 0:
        raise ValueError("a harmonic mean of negative values")
    if min(values) > 0:
        return len(values) / math.fsum(1 / value for value in values)
    return 0.0


COMBINED: Mapping[str, Callable[[Sequence[float]], float]] = {
    "mean": lambda values: math.fsum(values) / len(values),
    "harmonic_mean": _harmonic_mean,
    "median": median,
    "min": min,
    "max": max,
    "sum": math.fsum,
    "last": lambda values: values[-1],
}
"""What several values become, by name."""
OVER_LINES = ("only", *COMBINED)
"""How the lines of one log become one value; ``only`` refuses a second line."""
ACROSS = ("sum", "mean", "min", "max", "each")
"""How the values of nodes or ranks become one; with ``each`` they stay apart."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A quantity that a program measures.

    ``better``: ``higher`` or ``lower`` values are better. ``group`` is the named group of a pattern
    that holds its value, ``factor`` converts a printed value to ``unit``, and ``keys`` are the
    groups that tell values of one run apart, such as ``size_bytes``. ``scope``: a line is about the
    whole run (``global``), one ``node``, or one ``rank``. ``over`` combines lines of one log with
    equal keys, and ``across`` the values of nodes or ranks. ``speedup``: it is compared with its
    value on one device. ``says``: it is the program's own figure of one of `SAYS`, never the metric
    that stands for a run. ``ema``: the share of the newest step if the program prints an
    exponential moving average of steps, else 0.
    """

    name: str
    unit: str
    better: str = "higher"
    help: str = ""
    group: str = ""
    factor: float = 1.0
    keys: tuple[str, ...] = ()
    scope: str = "global"
    over: str = "only"
    across: str = ""
    speedup: bool = False
    primary: bool = False
    says: str = ""
    ema: float = 0.0

    def __post_init__(self) -> None:
        if not self.group:
            object.__setattr__(self, "group", self.name)

    @property
    def is_lower_better(self) -> bool:
        """Return whether a smaller value is the better one."""
        return self.better == "lower"

    @property
    def key_columns(self) -> tuple[str, ...]:
        """The names of what tells its values apart: its keys, and the node or rank where these stay
        apart.
        """
        if self.across == "each":
            return (*self.keys, self.scope)
        return self.keys


def metric_of(content: Mapping[str, Any]) -> Metric:
    """Return the metric in a manifest. Raises Invalid if it is no metric."""
    metric = read(Metric, content)
    choices = (
        (metric.better, BETTER),
        (metric.scope, METRIC_SCOPES),
        (metric.over, OVER_LINES),
        (metric.across, ("", *ACROSS)),
        (metric.says, ("", *SAYS)),
    )
    is_figure = bool(metric.says) and (metric.primary or metric.speedup or bool(metric.key_columns))
    is_average = 0 < metric.ema < 1 and bool(metric.says) and metric.over == "last"
    if (
        is_figure
        or not (is_average or metric.ema == 0)
        or not all(value in allowed for value, allowed in choices)
    ):
        raise Invalid("expected a metric that a folder can declare", metric.name)
    return metric


def primary_of(metrics: Sequence[Metric]) -> Metric | None:
    """Return the metric that stands for a run: the one that says so, else the first; None without
    metrics.
    """
    return next((metric for metric in metrics if metric.primary), metrics[0] if metrics else None)
