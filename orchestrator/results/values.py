"""Compute the values of a run from its lines with results: for each metric, one number for each of
its keys.

Lines of one log with equal keys are combined first, then the values of the nodes or ranks. A rank
or node without a value is an error and never left out: a sum over seven of eight ranks is no
smaller speed, it is another quantity.

>>> tflops = Metric("tflops", "TFLOP/s", keys=("size",), scope="rank", across="sum")
>>> log = lambda rate: [{"size": "4096", "tflops": rate}]
>>> by_log = {("node1", "rank-0.out"): log("700.0"), ("node1", "rank-1.out"): log("690.5")}
>>> values_of([tflops], by_log, Expected(nodes=1, ranks=2))
(Value(metric='tflops', key=(4096,), number=1390.5),)
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.errors import DataError
from orchestrator.inventory import fold
from orchestrator.logs import last_attempt
from orchestrator.logs.metrics import COMBINED, Metric
from orchestrator.logs.numbers import PLAIN, NumberForm
from orchestrator.results.numbers.resolution import resolution_of

Key = tuple[str | int, ...]
"""What tells values of one metric in one run apart: a value for each of `Metric.key_columns`."""
Log = tuple[str, str]
"""The host of a log and its name."""
_RANK = re.compile(r"rank-([0-9]{1,7})[.]")
_SHOWN = 40


@dataclass(frozen=True, slots=True)
class Value:
    """The value of a metric in one run, in the metric's unit. ``resolution`` is what a unit of the
    last digit from which it was computed is worth, 0 if it is not known."""

    metric: str
    key: Key
    number: float
    resolution: float = field(default=0.0, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Expected:
    """The number of nodes and ranks that must have values, and the measured steps, first to last.

    ``window`` is None if lines have no steps. ``shift`` is added to the number of a printed step;
    ``form`` is the form of printed numbers.
    """

    nodes: int
    ranks: int
    window: tuple[int, int] | None = None
    shift: int = 0
    form: NumberForm = PLAIN


@dataclass(slots=True)
class _Source:
    """The numbers of one rank, node or run, by key, in the order of their lines, and where the
    first was printed.

    ``finest`` is the finest resolution of each order of magnitude, in the unit of the metric: a
    program may print a number of decimals, or a number of digits.
    """

    log: Log
    numbers: dict[Key, list[float]] = field(default_factory=dict)
    finest: dict[int, float] = field(default_factory=dict)

    def see(self, number: float, resolution: float) -> None:
        """Keep the finest resolution."""
        if resolution:
            magnitude = _magnitude(number)
            self.finest[magnitude] = min(self.finest.get(magnitude, resolution), resolution)

    def resolution(self, key: Key) -> float:
        """Return the coarsest resolution of the numbers of a key, 0 if it is not known."""
        return max(
            (
                self.finest.get(magnitude, 0.0)
                for magnitude in set(map(_magnitude, self.numbers[key]))
            ),
            default=0.0,
        )


def values_of(
    metrics: Sequence[Metric], by_log: Mapping[Log, Sequence[Mapping[str, str]]], expected: Expected
) -> tuple[Value, ...]:
    """Return the values of a run from the groups of its lines, by log; metrics that no line has are
    left out.

    Raises DataError: log_unmatched for a value that is no number, result_invalid for a second line
    where a metric expects a single one, and for a rank or node that has no value.
    """
    return tuple(value for metric in metrics for value in _values(metric, by_log, expected))


def verify_finite(
    metrics: Sequence[Metric], lines: Sequence[Mapping[str, str]], form: NumberForm
) -> None:
    """Check that no line has a metric that is NaN or infinite. Raises DataError (result_invalid)."""
    for metric in metrics:
        for line in lines:
            number = form.number(line.get(metric.group, ""))
            if number is not None and not math.isfinite(number):
                _number(metric, line[metric.group], ("", ""), form)


def _step(line: Mapping[str, str], log: Log, expected: Expected) -> int | None:
    """Return the step of a line, counted from 1; None if it has none, or lines have no steps."""
    if expected.window is None or (text := line.get("step")) is None:
        return None
    step = expected.form.whole(text)
    if step is None:
        raise _unread("step", text, log)
    return step + expected.shift


def _values_in_window(
    lines: Sequence[tuple[int | None, str]], expected: Expected, slack: int
) -> list[str]:
    """Return the values of lines with equal keys within the window.

    Of several attempts, the last one that reaches the highest step counts, as for the steps
    themselves (`orchestrator.logs.parse`).
    """
    steps = [step for step, _ in lines if step is not None]
    if expected.window is None or not steps:
        return [text for _, text in lines]
    if len(steps) == len(lines):
        lines = lines[slice(*last_attempt(steps, slack))]
    first, last = expected.window
    return [text for step, text in lines if step is None or first <= step <= last]


def _sources(
    metric: Metric, by_log: Mapping[Log, Sequence[Mapping[str, str]]], expected: Expected
) -> dict[str, _Source]:
    """Return the measured numbers of each rank, node or log."""
    printed: dict[str, tuple[Log, dict[Key, list[tuple[int | None, str]]]]] = {}
    for log, lines in by_log.items():
        for line in lines:
            if metric.group in line:
                _, by_key = printed.setdefault(_source(metric, log, line), (log, {}))
                key = tuple(_part(line.get(name, "")) for name in metric.keys)
                by_key.setdefault(key, []).append((_step(line, log, expected), line[metric.group]))
    sources = {}
    for name, (log, by_key) in printed.items():
        source = _Source(log)
        for key, lines_of_key in by_key.items():
            # Ranks that print into one log are at most one step apart.
            texts = _values_in_window(lines_of_key, expected, slack=int(metric.scope != "rank"))
            if len(texts) > 1 and metric.over == "only":
                hint = (
                    "of a log with lines of several runs keep those of one; if one run prints"
                    f" several, write over: under log.metrics.{metric.name}, such as mean or last"
                )
                message = f"expected one line with {metric.name}{_at(metric, key)}, got another"
                raise _invalid(message, log, hint, "log_unmatched")
            if texts:
                source.numbers[key] = [_number(metric, text, log, expected.form) for text in texts]
            for number, text in zip(source.numbers.get(key, ()), texts, strict=True):
                source.see(number, expected.form.resolution(text) * abs(metric.factor))
        if source.numbers:
            sources[name] = source
    return sources


def _values(
    metric: Metric, by_log: Mapping[Log, Sequence[Mapping[str, str]]], expected: Expected
) -> list[Value]:
    sources = _sources(metric, by_log, expected)
    if metric.scope == "global":
        sources = _of_run(metric, sources)
    combined: dict[Key, dict[str, float]] = {}
    for name, source in sources.items():
        for key, numbers in source.numbers.items():
            combined.setdefault(key, {})[name] = _over(metric, numbers, source.log)
    values = []
    for key, by_source in combined.items():
        _verify_complete(metric, key, by_source, sources, expected)
        if metric.across == "each":
            values += [
                Value(
                    metric.name,
                    (*key, _part(name)),
                    number,
                    _resolution(metric, key, [sources[name]], [number]),
                )
                for name, number in sorted(by_source.items())
            ]
        else:
            numbers = list(by_source.values())
            resolution = _resolution(metric, key, [sources[name] for name in by_source], numbers)
            values.append(
                Value(metric.name, key, COMBINED[metric.across or "last"](numbers), resolution)
            )
    return values


def _resolution(
    metric: Metric, key: Key, sources: Sequence[_Source], numbers: Sequence[float]
) -> float:
    """Return the resolution of the value at a key that nodes or ranks with these ``numbers`` make
    together.
    """
    of_each = (
        resolution_of(metric.over, source.resolution(key), source.numbers[key])
        for source in sources
    )
    return resolution_of(metric.across or "last", max(of_each), numbers)


def _of_run(metric: Metric, sources: Mapping[str, _Source]) -> dict[str, _Source]:
    """Return the first of the logs with values of the whole run. Raises DataError if others print
    other values.
    """
    first = dict(list(sources.items())[:1])
    for name, source in first.items():
        for other_name, other in sources.items():
            for key, numbers in other.numbers.items():
                if source.numbers.get(key) != numbers:
                    got = " and ".join(
                        f"{_format_numbers(of_log.numbers.get(key))} in {place}"
                        for place, of_log in ((name, source), (other_name, other))
                    )
                    message = (
                        f"expected the same {metric.name}{_at(metric, key)} in all logs, got {got}"
                    )
                    hint = f"if each log is about one rank or node, write scope: and across: under log.metrics.{metric.name}"
                    raise _invalid(message, other.log, hint, "log_unmatched")
    return first


def _format_numbers(numbers: Sequence[float] | None) -> str:
    if not numbers:
        return "none"
    return ", ".join(f"{number:g}" for number in numbers[:3])


def _source(metric: Metric, log: Log, line: Mapping[str, str]) -> str:
    """Return the name of the rank or node that a line is about, or an empty text for a metric of
    the whole run.
    """
    host, name = log
    if metric.scope == "global":
        return f"{host}/{name}"
    if metric.scope == "node":
        return host
    if "rank" in line:
        return line["rank"]
    if "local_rank" in line:
        return f"{host}/{line['local_rank']}"
    of_name = _RANK.match(name)
    return of_name[1] if of_name else f"{host}/{name}"


def _verify_complete(
    metric: Metric,
    key: Key,
    by_source: Mapping[str, float],
    sources: Mapping[str, _Source],
    expected: Expected,
) -> None:
    count = {"node": expected.nodes, "rank": expected.ranks}.get(metric.scope, 1)
    if len(by_source) == count:
        return
    missing = [name for name in sources if name not in by_source]
    words = ""
    if missing:
        words = f"; none of {'rank ' if metric.scope == 'rank' else ''}{fold(missing)}"
    hint = f"every {metric.scope} must print it, log.files must name all their logs, and log.nodes must be every"
    message = f"expected {metric.name}{_at(metric, key)} of {count} {metric.scope}s, got it of {len(by_source)}{words}"
    raise _invalid(message, sources[missing[0] if missing else next(iter(sources))].log, hint)


def _over(metric: Metric, numbers: Sequence[float], log: Log) -> float:
    try:
        return COMBINED["last" if metric.over == "only" else metric.over](numbers)
    except ValueError as error:
        raise _invalid(f"{metric.name}: {error}, got {min(numbers):g}", log) from None


def _number(metric: Metric, text: str, log: Log, form: NumberForm) -> float:
    printed = form.number(text)
    if printed is None:
        raise _unread(metric.group, text, log)
    number = printed * metric.factor
    if not math.isfinite(number):
        raise _invalid(f"expected a finite {metric.name}, got {text[:_SHOWN]!r}", log)
    return number


def _magnitude(number: float) -> int:
    """Return the power of ten of a number's first digit; 0 for 0."""
    if not number:
        return 0
    return math.floor(math.log10(abs(number)) + 1e-9)


def _part(text: str) -> str | int:
    """Return a part of a key: a whole number if it is written as one."""
    if text.isascii() and text.isdigit() and len(text) <= 18 and str(int(text)) == text:
        return int(text)
    return text


def _at(metric: Metric, key: Key) -> str:
    words = " ".join(f"{name}={value}" for name, value in zip(metric.keys, key, strict=True))
    return f" at {words}" if words else ""


def _unread(group: str, text: str, log: Log) -> DataError:
    message = f"lines match, but in the first of them {group} {text[:_SHOWN]!r} is not a number"
    hint = "declare under log: how numbers are printed (thousands, suffixes), or let the group match only the number; "
    hint += "then: orch summarize --reread"
    return _invalid(message, log, hint, "log_unmatched")


def _invalid(message: str, log: Log, hint: str = "", kind: str = "result_invalid") -> DataError:
    return DataError(message, kind=kind, host=log[0], where=log[1], hint=hint, phase="summarize")
