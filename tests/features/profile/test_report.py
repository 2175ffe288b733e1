"""Traces as a table, as a line, and as JSON, with what an explanation predicts beside them."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from orchestrator.features.profile import report as profile
from orchestrator.features.profile.bench import Profiled
from orchestrator.features.profile.trace import Operator, Trace
from orchestrator.report.sections import PredictedStep
from tests.support.summaries import evil


def profiled(
    host: str = "node2", name: str = "aten::mm", missing: str = "", waiting: float | None = None
) -> Profiled:
    top = (Operator(name, 12, 0.25), Operator("aten::add", 3, 0.05))
    traces = () if missing else (Trace(1, host, False, 5, 0.02, 0.4, 0.3, 0.1, top, waiting),)
    return Profiled("a series", "2n1g", "b.profile-002", False, traces, missing)


def predicted(communication: float | None) -> dict[tuple[str, str], PredictedStep]:
    return {("a series", "2n1g"): PredictedStep(0.1, communication)}


def line(found: Profiled, steps: dict[tuple[str, str], PredictedStep] | None = None) -> str:
    console = Console(file=StringIO(), width=400)
    profile.render([found], steps or {}, console)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_line_has_the_share_by_trace_and_by_explanation() -> None:
    assert line(profiled(), predicted(0.3)) == (
        "trace of 2n1g: rank 1 communicates for 40.0% of a step of 20.00 ms, 0.20 times a step without a profile; "
        "25.0% of that overlaps with computing, 30.0% of a step is exposed; --explain predicts 30.0% transfer; idle 10.0%; "
        "longest: aten::mm 25.0%, aten::add 5.0%\n"
    )
    assert (
        "30.0% of a step is exposed; of that, 20.0% is waiting for other ranks and 10.0% transfer; idle"
        in line(profiled(waiting=0.2))
    )
    assert "--explain predicts" not in line(profiled()) + line(profiled(), predicted(None))
    assert "of a step of 20.00 ms; 25.0%" in line(profiled())


def test_the_table_has_a_row_for_each_rank_and_its_operators_below() -> None:
    table = profile.table([profiled()], predicted(0.2))
    assert table.rows == (
        ("2n1g", "1", "node2", "20.00", "40.0%", "25.0%", "30.0%", "–", "20.0%", "10.0%"),
    )
    assert table.footnotes == ("2n1g rank 1, 5 steps: aten::mm 25.0% (12), aten::add 5.0% (3)",)


def test_a_configuration_without_a_trace_says_why() -> None:
    found = profiled(
        missing="node1: trace-rank-0.json.gz: expected a complete trace of at most 128 MiB"
    )
    assert profile.table([found]).rows == ()
    assert "2n1g: no trace, node1: trace-rank-0.json.gz" in profile.table([found]).footnotes[0]
    assert line(found).startswith("trace of 2n1g: none, node1:")


def test_json_has_every_digit() -> None:
    (document,) = profile.documents([profiled()], predicted(0.3))
    assert (
        document["explained"] == pytest.approx(0.3)
        and document["traces"][0]["top"][0]["share"] == 0.25
    )


@evil
def test_text_of_a_node_steers_no_terminal(text: str) -> None:
    shown = line(profiled(host=text, name=text)) + str(
        profile.table([profiled(host=text, name=text)])
    )
    assert not set(shown) & set("\x1b\x07\x9b\u202e")
