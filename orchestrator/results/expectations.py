"""Judgements of a bench's expectations: each bound against the typical value and its interval.

A value within the bound whose interval reaches beyond it is not certain: another bench could give a
value on the other side. A value in another unit than the metric had when the bound was given,
before the logs were read again, is not certain either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

from orchestrator.errors import ConfigError, OrchError, Regression, Undecided, nearest
from orchestrator.notes import Note, as_note
from orchestrator.plan.bench import Bench
from orchestrator.plan.expectations import Expectation, as_value
from orchestrator.plan.framework import Framework
from orchestrator.plan.option_values import as_written
from orchestrator.plan.spec import RunSpec
from orchestrator.results.entries import Row
from orchestrator.results.measured import metrics_of
from orchestrator.results.notes import (
    BOUND_IN_OTHER_UNIT,
    BOUNDS_MET,
    EXPECTATION,
    EXPECTATION_NOT_MET,
)
from orchestrator.results.numbers.rounding import format_number
from orchestrator.results.run import RunResult

_SHOWN = 100
_SHOWN_CONFIGURATIONS = 6
_FIELDS = ({field.name for field in fields(RunSpec)} - {"options", "env", "origins", "step"}) | {
    "shape",
    "world_size",
}
"""What a bound can name of any configuration."""
MET, NOT_MET, NOT_CERTAIN = "met", "not met", "not certain"


Candidate = tuple[Mapping[str, str], Sequence[str]]
"""The values of a planned configuration that has the metric of a bound, and the names of the
metric's keys.
"""


@dataclass(frozen=True, slots=True)
class Judgement:
    """An expectation in one configuration and key: what was measured, in words, and the
    ``verdict``.
    """

    expected: str
    series: str
    shape: str
    got: str
    verdict: str

    @property
    def note(self) -> Note:
        """The judgement as a note of the table."""
        place = f"{self.series} {self.shape}: " if self.series else ""
        kind = EXPECTATION if self.verdict == MET else EXPECTATION_NOT_MET
        return kind(expected=self.expected, verdict=self.verdict, place=place, got=self.got)

    def error(self) -> OrchError | None:
        """Return the error of an expectation that is not met, or not certainly; None if it is met."""
        if self.verdict == MET:
            return None
        where = " ".join(filter(None, (self.series, self.shape)))
        message = f"expected {self.expected}, got {self.got}"
        if self.verdict == NOT_MET:
            return Regression(message, kind="expectation_not_met", where=where)
        hint = "" if as_note(self.got).code == BOUND_IN_OTHER_UNIT.code else "run more repeats"
        return Undecided(message, kind="expectation_not_certain", where=where, hint=hint)


def check_planned(plan: Bench) -> None:
    """Raise ConfigError if a bound of a bench can apply to no run of it: no framework has the
    metric, no configuration has the field, option or variable and the metric no such key, or no
    configuration has the values. Values of keys are known only after a run, and a bench that skips
    configurations may have skipped those with the values: these are judged at the end."""
    frameworks = [folder.framework for folder in plan.folders.values()]
    metrics = {framework.name: _keys_of(framework) for framework in frameworks}
    skipped = [choice for left_out in plan.skipped for choice in left_out.choices]
    variables = {name for spec in plan.cells for name in spec.env} | {
        choice.rpartition(".")[2] for choice in skipped
    }
    for expected in plan.expect:
        check_names(str(expected), expected.metric, expected.at, frameworks, variables, "--expect")
        candidates = [
            (_spec_values(spec), metrics[spec.framework][expected.metric])
            for spec in plan.cells
            if expected.metric in metrics[spec.framework]
        ]
        for name, value in expected.at.items() if candidates and not plan.skipped else ():
            _check_value(expected, name, value, candidates)
        if candidates and not plan.skipped:
            _check_together(expected, candidates)


def check_names(
    bound: str,
    metric: str,
    at: Iterable[str],
    frameworks: Sequence[Framework],
    variables: Collection[str],
    where: str,
) -> None:
    """Raise ConfigError if none of these frameworks has the metric of a bound, or those that do
    have no such field, option or key of it, nor is it one of the variables of the experiment."""
    metrics = {framework.name: _keys_of(framework) for framework in frameworks}
    known_metrics = dict.fromkeys(
        name for of_framework in metrics.values() for name in of_framework
    )
    if metric not in known_metrics:
        hint = (
            f"the metrics are {', '.join(known_metrics) or 'none'}{nearest(metric, known_metrics)}"
        )
        raise ConfigError(
            f"expected a metric that this bench measures, got {metric!r}", where=where, hint=hint
        )
    having = [framework for framework in frameworks if metric in metrics[framework.name]]
    keys = dict.fromkeys(key for framework in having for key in metrics[framework.name][metric])
    known = {
        *keys,
        *_FIELDS,
        *(option for framework in having for option in framework.options),
        *variables,
    }
    for name in at:
        if name not in known:
            hint = f"the keys of {metric} are {', '.join(keys) or 'none'}{nearest(name, sorted(known))}"
            message = f"expected a field, an option, a variable or a key of {metric} in {bound!r}, got {name!r}"
            raise ConfigError(message, where=where, hint=hint)


def _keys_of(framework: Framework) -> dict[str, tuple[str, ...]]:
    """Return the metrics of a framework, each with what tells its values apart."""
    return {
        metric.name: metric.key_columns for metric in metrics_of(framework.measure, framework.log)
    }


def _check_value(
    expected: Expectation, name: str, value: str, candidates: Sequence[Candidate]
) -> None:
    """Raise ConfigError if no configuration that has the metric can have this value."""
    present = dict.fromkeys(values[name] for values, _ in candidates if name in values)
    if value not in present and not any(name in keys for _, keys in candidates):
        message = (
            f"expected a value of {name} that this bench has in {str(expected)!r}, got {value!r}"
        )
        hint = f"{name} has {', '.join(map(as_value, present))}" if present else ""
        raise ConfigError(message, where="--expect", hint=hint)


def _check_together(expected: Expectation, candidates: Sequence[Candidate]) -> None:
    """Raise ConfigError if no configuration can have all values of a bound, although each of them
    is one of a configuration.
    """

    def in_common(values: Mapping[str, str], keys: Sequence[str]) -> int:
        return sum(name in keys or values.get(name) == value for name, value in expected.at.items())

    by_agreement = sorted(candidates, key=lambda candidate: in_common(*candidate), reverse=True)
    if in_common(*by_agreement[0]) == len(expected.at):
        return
    texts = []
    for values, keys in by_agreement:
        names = [name for name in expected.at if name in values and name not in keys]
        texts.append(" ".join(f"{name}={as_value(values[name])}" for name in names))
    described = dict.fromkeys(texts)
    shown = "; ".join(list(described)[:_SHOWN_CONFIGURATIONS])
    more = ""
    if len(described) > _SHOWN_CONFIGURATIONS:
        more = f"; and {len(described) - _SHOWN_CONFIGURATIONS} more"
    message = f"expected values that a configuration of this bench has together in {str(expected)!r}, none has all of them"
    raise ConfigError(
        message, where="--expect", hint=f"the nearest configurations have {shown}{more}"
    )


def _spec_values(spec: RunSpec | None) -> dict[str, str]:
    """Return the fields, options and variables of a configuration by name, as they are written."""
    if spec is None:
        return {}
    content = spec.as_dict()
    settings = {**content.pop("options", {}), **content.pop("env", {})}
    fields = {name: value for name, value in content.items() if not isinstance(value, Mapping)}
    values = {**fields, "shape": spec.shape, "world_size": spec.world_size, **settings}
    return {name: as_written(value) for name, value in values.items() if value is not None}


def values_at(row: Row, run: RunResult) -> dict[str, str]:
    """Return the values that a bound may name a row by: fields, options and variables of its spec,
    and keys of its metric.
    """
    return {**_spec_values(run.spec), **{name: as_written(part) for name, part in row.key.items()}}


def judge_expectations(
    expectations: Sequence[Expectation], rows: Sequence[Row], runs: Sequence[RunResult]
) -> tuple[Judgement, ...]:
    """Return a judgement of each expectation in each configuration and key that it applies to.

    An expectation that applies to none is not met. ``runs`` are the runs of the rows. To a
    configuration without any number, the bounds on all of its metrics apply.
    """
    if not expectations:
        return ()
    by_id = {run.run_id: run for run in runs}
    candidates = [_Candidate(row, by_id[row.run_ids[0]]) for row in rows]
    judgements = []
    for expected in expectations:
        concerned = [candidate for candidate in candidates if candidate.is_concerned_by(expected)]
        judgements += [candidate.judgement(expected) for candidate in concerned]
        if not concerned:
            judgements.append(
                Judgement(str(expected), "", "", _nothing(expected, candidates), NOT_MET)
            )
    return tuple(judgements)


def errors_of(judgements: Sequence[Judgement]) -> list[OrchError]:
    """Return the errors of all that are not met, then of those not certain: the first error gives
    the exit status.
    """
    errors = [error for judgement in judgements if (error := judgement.error())]
    return sorted(errors, key=lambda error: isinstance(error, Undecided))


def notes_on(judgements: Sequence[Judgement]) -> list[Note]:
    """Return a line for each judgement, but a single one for all that are met if there are several."""
    notes = [judgement.note for judgement in judgements if judgement.verdict != MET]
    met = [judgement for judgement in judgements if judgement.verdict == MET]
    if len(met) < 2:
        return [*notes, *(judgement.note for judgement in met)]
    bounds = "; ".join(dict.fromkeys(judgement.expected for judgement in met))
    shown = bounds if len(bounds) <= _SHOWN else f"{bounds[:_SHOWN]}…"
    return [*notes, BOUNDS_MET(rows=len(met), bounds=shown)]


def _nothing(expected: Expectation, candidates: Sequence[_Candidate]) -> str:
    """Return why an expectation applies to no row: no such metric, or no row with one of its
    values.
    """
    of_metric = [
        candidate.values for candidate in candidates if candidate.row.metric == expected.metric
    ]
    if not of_metric:
        names = dict.fromkeys(
            name for candidate in candidates for name in (candidate.row.metric, *candidate.metrics)
        )
        return f"no such metric; the metrics are {', '.join(names) or 'none'}"
    for name, value in expected.at.items():
        present = dict.fromkeys(values[name] for values in of_metric if name in values)
        if not present:
            return f"no such value; nothing that was measured has a {name}"
        if value not in present:
            return f"no such value; {name} has {', '.join(map(as_value, present))}"
    return "no such value; no configuration has all of these values together"


class _Candidate:
    """A row that a bound may apply to, with the values that name it and the metrics that its runs
    should have.
    """

    def __init__(self, row: Row, run: RunResult) -> None:
        self.row = row
        self.values = values_at(row, run)
        self.metrics = tuple(metric.name for metric in run.metrics)
        self.planned_unit = run.planned_units.get(row.metric, row.unit)

    def is_concerned_by(self, expected: Expectation) -> bool:
        """Return True if the row has the metric and all values that are named; without a number it
        has no keys of a metric.
        """
        if self.row.n == 0:
            of_metric = expected.metric in self.metrics
            return of_metric and all(
                self.values.get(name, value) == value for name, value in expected.at.items()
            )
        of_metric = self.row.metric == expected.metric
        return of_metric and all(
            self.values.get(name) == value for name, value in expected.at.items()
        )

    def judgement(self, expected: Expectation) -> Judgement:
        """Judge the row by an expectation that concerns it."""
        row = self.row
        if row.value is None:
            return Judgement(str(expected), row.series, row.shape, "no number", NOT_MET)
        got = f"{format_number(row.value)} {row.unit}"
        if row.interval:
            got += f" ({format_number(row.interval.low)} to {format_number(row.interval.high)})"
        if row.unit != self.planned_unit:
            got = BOUND_IN_OTHER_UNIT(got=got, unit=self.planned_unit)
            return Judgement(str(expected), row.series, row.shape, got, NOT_CERTAIN)
        if not expected.is_met_by(row.value):
            return Judgement(str(expected), row.series, row.shape, got, NOT_MET)
        is_certain = row.interval is not None and all(
            map(expected.is_met_by, (row.interval.low, row.interval.high))
        )
        return Judgement(
            str(expected), row.series, row.shape, got, MET if is_certain else NOT_CERTAIN
        )
