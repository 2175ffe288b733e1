"""Compute the speed of a run from a log by a published rule, which a framework folder declares
under ``published: rules:``.

`orchestrator.results.numbers` is how orch itself measures. A published rule exists to recompute a
published table from its logs, and to compute a new one in the same way. Where a published script
silently accepted a fault (too few lines, a second run in the file, a different world size), a rule
raises an error; wherever the script gave a correct number, the rule gives it too.

>>> entry = {"title": "steps 20-120", "lines": r"iter (?P<step>\\d+), at (?P<timestamp>\\d+\\.\\d+)$", "by": "timestamp"}
>>> rule = Rule.parse("mine", {**entry, "window": {"after": 20, "last": 120}})
>>> log = b"".join(b"iter %d, at %.1f\\n" % (i, 1.6e9 + i / 10) for i in (20, 120))
>>> rule.speed(log, Case(nodes=2, gpus=8, batch_size=128)).samples_per_s
20480.0
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from orchestrator.errors import ConfigError, nearest
from orchestrator.features.published.lines import Line, Moment, lines_of, log_error
from orchestrator.features.published.notes import OTHER_TIME_USED
from orchestrator.features.published.run_size import Case
from orchestrator.features.published.self_consistency import (
    check_epochs,
    check_sizes,
    contradiction,
)
from orchestrator.features.published.tables import STATISTICS
from orchestrator.features.published.windows import (
    Window,
    between,
    lines_in_order,
    steps_of,
    total_of,
)
from orchestrator.notes import Note
from orchestrator.plan import Framework
from orchestrator.plan.published_schema import CLOCKS, RATES, RuleEntry
from orchestrator.results import mean
from orchestrator.results.numbers.throughput import round_like_numpy

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class RunSpeed:
    """Speed of one run, rounded as its publisher did, and warnings about the log."""

    samples_per_s: float
    warnings: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Rounding:
    """Decimal places, rounded as ``numpy.round`` or as Python's ``round`` does.

    >>> Rounding(2, "numpy").round(2725.415), Rounding(2, "python").round(2725.415)
    (2725.42, 2725.41)
    """

    places: int
    by: str = "numpy"

    def round(self, value: float) -> float:
        """Return the rounded value."""
        if self.by == "numpy":
            return round_like_numpy(value, self.places)
        return round(value, self.places)


@dataclass(frozen=True)
class Rule:
    """One published rule, with the fields of ``published: rules:`` in a ``framework.yaml``.

    ``title`` describes the measured quantity.
    """

    name: str
    title: str
    lines: tuple[str, ...]
    window: Window
    by: tuple[str, ...]
    clock: str = ""
    size_lines: tuple[str, ...] = ()
    over: str = "harmonic_mean"
    scope: str = "global"
    units: Mapping[str, str] = field(default_factory=dict)
    printers: str = "one"
    gaps: str = "refused"
    steps_called: str = "steps"
    line_rounding: Rounding | None = None
    rounding: Rounding | None = None

    @classmethod
    def parse(cls, name: str, declaration: Mapping[str, Any]) -> Rule:
        """Return the rule that a mapping declares, which has passed the checks of a framework
        folder.
        """
        values = RuleEntry.model_validate(declaration).model_dump()
        for key in ("lines", "by"):
            values[key] = (values[key],) if isinstance(values[key], str) else tuple(values[key])
        for key in ("line_rounding", "rounding"):
            values[key] = Rounding(**values[key]) if values[key] else None
        values |= {"size_lines": tuple(values["size_lines"]), "window": Window(**values["window"])}
        return cls(name=name, **values)

    @property
    def first(self) -> int:
        """The first step that counts."""
        return self.window.steps[0]

    @property
    def last(self) -> int:
        """The last step that counts."""
        return self.window.steps[1]

    def speed(self, log: bytes, case: Case) -> RunSpeed:
        """Return the run's speed, never 0. Raise DataError (result_invalid) if the log does not
        contain the window.
        """
        speed = self._speed(log, case)
        if not 0 < speed.samples_per_s < math.inf:
            raise log_error("expected a speed above 0", f"found {speed.samples_per_s:g} samples/s")
        return speed

    def matching_lines(self, log: bytes) -> int:
        """Return the number of lines of a log that match."""
        patterns, clock, _ = self._patterns
        return len(lines_of(log, patterns, clock))

    @cached_property
    def _patterns(
        self,
    ) -> tuple[
        tuple[re.Pattern[bytes], ...], re.Pattern[bytes] | None, tuple[re.Pattern[bytes], ...]
    ]:
        lines, sizes = (
            tuple(re.compile(pattern.encode(), re.MULTILINE) for pattern in patterns)
            for patterns in (self.lines, self.size_lines)
        )
        return lines, re.compile(self.clock.encode()) if self.clock else None, sizes

    def _speed(self, log: bytes, case: Case) -> RunSpeed:
        patterns, clock, sizes = self._patterns
        check_sizes(log, sizes, case)
        lines = lines_of(log, patterns, clock)
        if any("epoch_steps" in pattern.groupindex for pattern in patterns):
            check_epochs(lines, case)
        if self.window.total:
            total, warnings = total_of(lines, self._printers(case) or 1, self.last)
            return RunSpeed(self._round(total * self._factor(case)), warnings)
        if self.window.take_lines is not None:
            return RunSpeed(self._round(self._in_order(lines, case)))
        notes: tuple[Note, ...] = ()
        for number, name in enumerate(self.by, start=1):
            try:
                speed, warnings = (
                    self._by_clock(name, lines, case)
                    if name in CLOCKS
                    else self._by_rates(name, lines, case)
                )
                return RunSpeed(self._round(speed), (*warnings, *notes))
            except _Without as error:
                if number == len(self.by):
                    raise log_error(
                        f"expected {name} in the lines that count", str(error)
                    ) from None
                notes += (OTHER_TIME_USED(name=name, other=self.by[number]),)
        raise AssertionError("a rule has a group that gives its time")

    def _printers(self, case: Case) -> int | None:
        return {"one": None, "gpus": case.gpus, "ranks": case.ranks}[self.printers]

    def _factor(self, case: Case) -> float:
        """Return the factor from a printed rate to samples/s of the run."""
        of_unit = 1 / _UNITS[self.units.get("samples_per_s", "s")]
        return of_unit * {"global": 1, "node": case.nodes, "process": case.ranks}[self.scope]

    def _in_order(self, lines: Sequence[Line], case: Case) -> float:
        """Return the speed of lines that are counted in the order of the log, whatever their steps."""
        (name,) = self.by
        counted = [line for line in lines if line.raw(name) is not None]
        printers = self._printers(case) or 1
        taken = lines_in_order(counted, self.window, self.steps_called, printers, name)
        return self._of_rates(
            name, [value for line in taken if (value := line.optional(name)) is not None], case
        )

    def _by_rates(
        self, name: str, lines: Sequence[Line], case: Case
    ) -> tuple[float, tuple[Note, ...]]:
        """Return the speed by what each line of the window says of its own speed, and warnings."""
        need = self.window.list_lines(only_ends=False)
        by_step, warnings = steps_of(
            lines, name, self.window, need, self.steps_called, self._printers(case)
        )
        values = []
        for step in filter(self.window.counts, need):
            of_ranks = [line.optional(name) for line in by_step[step]]
            values.append(mean([value for value in of_ranks if value is not None]))
        return self._of_rates(name, values, case), warnings

    def _by_clock(
        self, name: str, lines: Sequence[Line], case: Case
    ) -> tuple[float, tuple[Note, ...]]:
        """Return the speed by the growth of a clock over the window, and warnings. Raise _Without
        if lines do not have it.
        """
        window, steps = self.window, self.window.length
        least = window.ends if self.gaps == "noted" else None
        need = window.list_lines(only_ends=True)
        by_step, warnings = steps_of(
            lines, "", window, need, self.steps_called, self._printers(case), least
        )
        starts, ends = ([_time(name, line, step) for line in by_step[step]] for step in window.ends)
        # A time of day has no other unit.
        unit = _UNITS[self.units.get(name, "s")] if isinstance(starts[0], float) else 1.0
        seconds = between(starts, ends) * unit
        counted = [line for step, lines in by_step.items() if window.counts(step) for line in lines]
        for other in RATES:
            values = [value for line in counted if (value := line.optional(other)) is not None]
            if values:
                otherwise = steps * mean(self._seconds(other, values, case))
                warnings += contradiction(steps * case.global_batch, seconds, otherwise, other)
        return _per_second(case.global_batch, steps, seconds), warnings

    def _seconds(self, name: str, values: Sequence[float], case: Case) -> list[float]:
        """Return the time of a step by each value of a group that gives a speed in each line; nan
        for a speed of 0.
        """
        if name == "step_time_s":
            return [value * _UNITS[self.units.get(name, "s")] for value in values]
        factor = self._factor(case)
        return [case.global_batch / (value * factor or math.nan) for value in values]

    def _of_rates(self, name: str, values: Sequence[float], case: Case) -> float:
        """Return one speed, from a value of each line that counts."""
        if self.over == "harmonic_mean" and name == "step_time_s":
            return _per_second(
                case.global_batch, len(values), math.fsum(self._seconds(name, values, case))
            )
        if name == "step_time_s":
            rates = [
                _per_second(case.global_batch, 1, seconds)
                for seconds in self._seconds(name, values, case)
            ]
        else:
            rates = [value * self._factor(case) for value in values]
        if self.line_rounding:
            rates = [self.line_rounding.round(rate) for rate in rates]
        if self.over == "harmonic_mean":
            return len(rates) / math.fsum(1 / (rate or math.nan) for rate in rates)
        return STATISTICS[self.over](rates)

    def _round(self, speed: float) -> float:
        return self.rounding.round(speed) if self.rounding else speed


def rules_of(framework: Framework) -> dict[str, Rule]:
    """Return the published rules that a framework folder declares, by name; none if it has no
    published tables.
    """
    return {
        name: Rule.parse(name, rule) for name, rule in framework.published.get("rules", {}).items()
    }


def rule_of(framework: Framework, name: str = "") -> Rule:
    """Return a published rule of a framework folder: the one of a name, or with its own name, or
    without one, the folder's.

    Raise ConfigError if the folder has none, or none of this name.
    """
    rules = rules_of(framework)
    if not rules:
        raise ConfigError(
            f"{framework.name} has no published tables, and so no rule to apply",
            where=f"--rule {name or 'dlperf'}",
            hint="without --rule the run's own window is measured; a folder declares a rule under published:",
        )
    if name in ("", framework.name):
        return rules[framework.published["rule"]]
    if name not in rules:
        hint = f"{framework.folder}/framework.yaml declares them under published: rules:{nearest(name, rules)}"
        raise ConfigError(
            f"expected a rule of {framework.name}, {', '.join(rules)}, got {name!r}",
            where="--rule",
            hint=hint,
        )
    return rules[name]


class _Without(Exception):
    """A line does not have a group; the text says which."""


def _time(name: str, line: Line, step: int) -> float | Moment:
    """Return the clock of a line: seconds, or the time of a day."""
    time = line.moment() if name == "timestamp" else line.optional(name)
    if time is None:
        raise _Without(f"that of {step} has none")
    return time


def _per_second(batch: int, steps: int, seconds: float) -> float:
    """Return samples/s, computed as published scripts do. Raise DataError (result_invalid) if the
    time is not above 0.
    """
    if not 0 < seconds < math.inf:
        raise log_error("expected a time above 0 s in the window", f"found {seconds:g} s")
    return batch / (seconds / steps)
