"""The timeline of what was sampled, beside the steps: which panels and lines it has, and names that
could break nothing.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest

from orchestrator.report.html import svg, use_charts
from orchestrator.report.html.charts import Turn
from orchestrator.results.numbers.tempo import Tempo
from orchestrator.results.run_history import RunHistory
from orchestrator.results.telemetry.utilization import CLOCK, Line, NodeUse, RunUse
from tests.support.charts import paths, words
from tests.support.summaries import evil, runs


@pytest.fixture(autouse=True, scope="module")
def _drawing() -> object:
    with svg.drawing():
        yield


def node(host: str, *lines: Line) -> NodeUse:
    return NodeUse(host, 10, 8, (), None, None, None, (), None, None, {}, (), None, lines)


def turn(*nodes: NodeUse) -> Turn:
    (run,) = runs("1n1g", [100.0])
    seen = replace(
        run,
        use=RunUse(10.0, nodes),
        tempo=Tempo(((-2.0, 50.0), (0.0, 100.0), (10.0, 100.0)), -2.0, None),
    )
    return Turn(1, seen, RunHistory(run.run_id, {}, (), None, None, None))


def drawn(*turns: Turn) -> ET.Element:
    return ET.fromstring(use_charts.use(turns, "samples/s", "x-"))


def power(watts: float) -> Line:
    return Line("power of a GPU, W", ((-1.0, 80.0), (1.0, watts), (9.0, watts)))


def test_each_quantity_has_a_panel_below_that_of_the_steps_and_each_node_its_colour_and_name() -> (
    None
):
    picture = drawn(turn(node("node1", power(600.0)), node("node2", power(500.0))))
    said = words(picture)
    assert (
        "speed of each step, samples/s" in said
        and "power of a GPU, W" in said
        and {"node1", "node2"} <= set(said)
    )
    (first,), (second,) = (
        [line for line in paths(picture, colour) if len(line) == 3] for colour in ("one", "two")
    )  # fmt: skip
    (steps,) = (line for line in paths(picture, "ink") if len(line) == 3)
    assert max(y for _, y in steps) < min(y for _, y in first), "the steps are above"
    assert first[1][1] < second[1][1], "600 W is above 500 W"
    at_start = steps[1][0]
    assert first[0][0] < at_start < first[1][0], "one axis of time for all"


def test_clocks_are_drawn_where_they_are_and_everything_else_from_zero() -> None:
    clock = Line(CLOCK, ((-1.0, 345.0), (1.0, 1755.0), (5.0, 1700.0), (9.0, 1755.0)))
    picture = drawn(turn(node("node1", clock, power(600.0))))
    (line,) = (line for line in paths(picture, "one") if len(line) == 4)
    assert line[2][1] - line[1][1] > 20, "a drop of 3 % is seen"
    assert [text for text in words(picture) if re.fullmatch(r"1,7[0-9]+", text)]


def test_more_nodes_than_colours_have_one_colour_and_no_names() -> None:
    picture = drawn(turn(*(node(f"node{number}", power(600.0)) for number in range(1, 9))))
    assert len(
        [line for line in paths(picture, "one") if len(line) == 3]
    ) == 8 and "node1" not in words(picture)


@evil
def test_names_of_nodes_become_no_markup(text: str) -> None:
    drawn(turn(node(text, power(600.0)), node("node2", power(500.0))))
