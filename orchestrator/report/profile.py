"""The traces of a bench as a table: a row for each rank, below it the operators that take the most time; and as one line each.

Control characters in texts from nodes are escaped. Beside the communication by the trace stands what `--explain` predicts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.text import Text

from orchestrator.analysis.explain import Explanation
from orchestrator.analysis.profile import Profiled
from orchestrator.plural import plural
from orchestrator.report.cells import NOTHING, Table, number
from orchestrator.report.text import one_line

__all__ = ["documents", "render", "table"]

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


def table(profiles: Sequence[Profiled], explained: Sequence[Explanation] = ()) -> Table:
    """Return the table of all traces."""
    rows, notes = [], []
    for profile in profiles:
        predicted = _predicted(profile, explained)
        for trace in profile.traces:
            shares = (trace.communication, trace.overlapped, trace.exposed, trace.waiting, predicted, trace.idle)
            rows.append(
                (profile.case, str(trace.rank), one_line(trace.host), number(trace.step_s * 1e3), *map(_percent, shares))
            )
            longest = ", ".join(f"{operator.name} {operator.share:.1%} ({operator.count})" for operator in trace.top)
            notes.append(one_line(f"{profile.case} rank {trace.rank}, {plural(trace.steps, 'step')}: {longest}"))
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


def render(profiles: Sequence[Profiled], explained: Sequence[Explanation], console: Console) -> None:
    """Print a line for each configuration."""
    for profile in profiles:
        console.print(Text(one_line(f"trace of {profile.case}: {_words(profile, explained)}")))


def documents(profiles: Sequence[Profiled], explained: Sequence[Explanation]) -> list[dict[str, Any]]:
    """Return the traces for JSON, numbers unrounded, with the exposed communication that is predicted."""
    return [asdict(profile) | {"explained": _predicted(profile, explained)} for profile in profiles]


def _words(profile: Profiled, explained: Sequence[Explanation]) -> str:
    if not profile.traces:
        return f"none, {profile.missing}"
    trace = max(profile.traces, key=lambda trace: trace.communication)
    words = [f"rank {trace.rank} communicates for {trace.communication:.1%} of a step of {number(trace.step_s * 1e3)} ms"]
    if explanation := _explanation(profile, explained):
        words[0] += f", {trace.step_s / explanation.step_s:.2f} times a step without a profile"
    if trace.overlapped is not None:
        words.append(f"{trace.overlapped:.1%} of that overlaps with computing, {trace.exposed:.1%} of a step is exposed")
    if trace.waiting is not None:
        words.append(
            f"of that, {trace.waiting:.1%} is waiting for other ranks and {trace.exposed - trace.waiting:.1%} transfer"
        )
    if (predicted := _predicted(profile, explained)) is not None:
        words.append(f"--explain predicts {predicted:.1%} transfer")
    longest = ", ".join(f"{operator.name} {operator.share:.1%}" for operator in trace.top[:_SHOWN])
    return "; ".join([*words, f"idle {trace.idle:.1%}", f"longest: {longest}"])


def _explanation(profile: Profiled, explained: Sequence[Explanation]) -> Explanation | None:
    asked = (profile.series, profile.case)
    return next((explanation for explanation in explained if (explanation.series, explanation.case) == asked), None)


def _predicted(profile: Profiled, explained: Sequence[Explanation]) -> float | None:
    """Return the share of a step that communication adds to it, as it is explained; None if it is not."""
    if not (explanation := _explanation(profile, explained)):
        return None
    seconds = next(part.seconds for part in explanation.parts if part.name == "communication")
    return None if seconds is None else seconds / explanation.step_s


def _percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.1%}"
