"""The traces of a bench as a table: a row for each rank, below it the operators that take the most
time; and as one line each.

Control characters in texts from nodes are escaped. Beside the communication by the trace stands
what `--explain` predicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from rich.console import Console
from rich.text import Text

from orchestrator.features.profile.bench import Profiled
from orchestrator.plural import plural
from orchestrator.report.cells import Table, number, share
from orchestrator.report.sections import PredictedStep
from orchestrator.report.text import one_line

_COLUMNS = (
    "case",
    "rank",
    "on",
    "step ms",
    "communication",
    "overlapped",
    "exposed",
    "of it waiting",
    "explained",
    "idle",
)
_SHOWN = 3
_Predicted = Mapping[tuple[str, str], PredictedStep]
"""Predicted steps by series and shape."""


def table(profiles: Sequence[Profiled], predicted: _Predicted = MappingProxyType({})) -> Table:
    """Return the table of all traces."""
    rows, notes = [], []
    for profile in profiles:
        transfer = _predicted_share(profile, predicted)
        for trace in profile.traces:
            shares = (
                trace.communication,
                trace.overlapped,
                trace.exposed,
                trace.waiting,
                transfer,
                trace.idle,
            )
            rows.append(
                (
                    profile.case,
                    str(trace.rank),
                    one_line(trace.host),
                    number(trace.step_s * 1e3),
                    *map(share, shares),
                )
            )
            longest = ", ".join(
                f"{operator.name} {operator.share:.1%} ({operator.count})" for operator in trace.top
            )
            notes.append(
                one_line(
                    f"{profile.case} rank {trace.rank}, {plural(trace.steps, 'step')}: {longest}"
                )
            )
        if profile.missing:
            notes.append(one_line(f"{profile.case}: no trace, {profile.missing}"))
    return Table(
        title="Traces",
        head=(
            "extra runs that no other table counts; shares of the traced steps",
            "communication: from a rank's arrival at a collective until it ends; exposed: while nothing is computed",
            "of it waiting: until the last of the traced ranks arrives; the rest is transfer, which --explain predicts",
        ),
        rows=tuple(rows),
        footnotes=tuple(notes),
        simulated=any(profile.simulated for profile in profiles),
        columns=_COLUMNS,
    )


def render(profiles: Sequence[Profiled], predicted: _Predicted, console: Console) -> None:
    """Print a line for each configuration."""
    for profile in profiles:
        console.print(Text(one_line(f"trace of {profile.case}: {_words(profile, predicted)}")))


def documents(profiles: Sequence[Profiled], predicted: _Predicted) -> list[dict[str, Any]]:
    """Return the traces for JSON, numbers unrounded, with the exposed communication that is
    predicted.
    """
    return [
        asdict(profile) | {"explained": _predicted_share(profile, predicted)}
        for profile in profiles
    ]


def _words(profile: Profiled, predicted: _Predicted) -> str:
    if not profile.traces:
        return f"none, {profile.missing}"
    trace = max(profile.traces, key=lambda trace: trace.communication)
    words = [
        f"rank {trace.rank} communicates for {trace.communication:.1%} of a step of {number(trace.step_s * 1e3)} ms"
    ]
    if step := predicted.get((profile.series, profile.case)):
        words[0] += f", {trace.step_s / step.step_s:.2f} times a step without a profile"
    if trace.overlapped is not None:
        words.append(
            f"{trace.overlapped:.1%} of that overlaps with computing, {trace.exposed:.1%} of a step is exposed"
        )
    if trace.waiting is not None:
        words.append(
            f"of that, {trace.waiting:.1%} is waiting for other ranks and {trace.exposed - trace.waiting:.1%} transfer"
        )
    transfer = _predicted_share(profile, predicted)
    if transfer is not None:
        words.append(f"--explain predicts {transfer:.1%} transfer")
    longest = ", ".join(f"{operator.name} {operator.share:.1%}" for operator in trace.top[:_SHOWN])
    return "; ".join([*words, f"idle {trace.idle:.1%}", f"longest: {longest}"])


def _predicted_share(profile: Profiled, predicted: _Predicted) -> float | None:
    """Return the predicted share of a step that communication adds; None without a prediction."""
    step = predicted.get((profile.series, profile.case))
    return step.communication if step else None
