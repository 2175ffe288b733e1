"""How explanations look: as text, as a picture, as JSON; nothing of a node's words acts on either."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from rich.console import Console

from orchestrator.features.explain import report as explained
from orchestrator.features.explain.charts import draw_gap
from orchestrator.features.explain.prediction import Explanation, Part, Startup
from orchestrator.report.html import svg
from orchestrator.results.numbers.intervals import Interval
from tests.support.charts import words

ONE = Explanation(
    series="pytorch resnet50 fp16 b256 synthetic",
    case="1n1g",
    world_size=1,
    simulated=False,
    unit="samples/s",
    measured=6000.0,
    step_s=0.042,
    ideal_s=0.042,
    ideal="a step of 1n1g, the median of 5 runs",
    predicted=6000.0,
    interval=None,
    from_baseline=6000.0,
    parts=tuple(
        Part(name, 0.0, "one rank")
        for name in ("communication", "input", "straggler", "contention", "unexplained")
    ),
    startup=Startup(until_window_s=21.0, run_s=28.0),
    missing=(),
)
TWO = replace(
    ONE,
    case="1n2g",
    world_size=2,
    measured=11_500.0,
    step_s=0.050,
    predicted=11_730.0,
    interval=Interval(11_700.0, 11_760.0, 0.95),
    from_baseline=11_900.0,
    parts=(
        Part("communication", 0.006, "5 buckets"),
        Part("input", None, "not told"),
        Part("straggler", None, "not told"),
        Part("contention", 0.003, "solo steps"),
        Part("unexplained", -0.001, "the rest"),
    ),
    missing=("orch bench allreduce --shape 1n2g",),
)

WIDE = """\
pytorch resnet50 fp16 b256 synthetic: why it scales as it does
ideal: a step of 1n1g, the median of 5 runs
speeds in samples/s; parts of the gap in ms per step and in % of the step
case  measured  predicted  off by  step ms  gap ms  comm.  comm. %  input  input %  straggler  straggler %  contention  contention %  unexplained  unexplained %
1n1g   6000.00    6000.00   +0.0%    42.00    0.00   0.00     0.0%   0.00     0.0%       0.00         0.0%        0.00          0.0%         0.00           0.0%
1n2g  11500.00   11730.00   +2.0%    50.00    8.00   6.00    12.0%      –        –          –            –        3.00          6.0%        -1.00          -2.0%
hidden at 164 columns: predicted 95%, ideal ms; COLUMNS=192 shows them, or --format html or json
  1n1g start-up: the window begins after 21.0 s of the run's 28.0 s (75%)
  1n2g communication: 5 buckets
  1n2g input, straggler: not told
  1n2g contention: solo steps
  1n2g predicted from baseline and collectives alone: 11900.00 samples/s
  1n2g start-up: the window begins after 21.0 s of the run's 28.0 s (75%)
  1n2g a measurement is missing; to make it: orch bench allreduce --shape 1n2g
"""  # noqa: E501 - as wide as the terminal


def shown(explanations: list[Explanation], width: int) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
    explained.render(explanations, console)
    assert isinstance(console.file, io.StringIO)
    return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())


def test_a_terminal_shows_a_row_a_shape_and_what_is_behind_each_part() -> None:
    assert shown([ONE, TWO], 164) == WIDE


@pytest.mark.parametrize("width", [80, 100, 130])
def test_a_narrow_terminal_keeps_prediction_and_parts(width: int) -> None:
    text = shown([ONE, TWO], width)
    assert all(len(line) <= width for line in text.splitlines())
    assert re.search(r"1n2g .*11730\.00 .*\+2\.0% .*6\.00 +– +– +3\.00 +-1\.00", text)
    assert "comm. %" in " ".join(text.split()).partition(f"hidden at {width} columns: ")[2]


def test_without_anything_to_explain_that_is_said() -> None:
    said = " ".join(shown([], 100).split())
    assert said.startswith(
        "nothing to explain: no row has both a speed and a baseline; a baseline of several ranks also needs"
    )


def test_a_series_without_an_explanation_beside_others_is_named() -> None:
    console = Console(file=io.StringIO(), width=200)
    explained.render([ONE, TWO], console, [ONE.series, "lm tensor_parallel=2"])
    assert isinstance(console.file, io.StringIO)
    (said,) = (
        line
        for line in console.file.getvalue().splitlines()
        if line.startswith("nothing to explain")
    )
    assert said.startswith(
        "nothing to explain in lm tensor_parallel=2: no row has both a speed and a baseline; "
    )


def test_words_of_nodes_are_harmless() -> None:
    hostile = replace(
        TWO,
        series="x\x1b[2J[red]",
        parts=(Part("communication", 0.1, "by \x1b]0;b\x07"), *TWO.parts[1:]),
    )
    text = shown([hostile], 120)
    assert "\x1b" not in text and "\x07" not in text and "[red]" in text


def test_json_has_every_digit() -> None:
    (document,) = json.loads(json.dumps(explained.documents([TWO]), allow_nan=False))
    assert document["off"] == TWO.off and document["parts"][1] == {
        "name": "input",
        "seconds": None,
        "behind": "not told",
    }


# -- the picture


def bars(picture: ET.Element) -> dict[str, list[tuple[float, float]]]:
    """From where to where the bars of each colour go, from top to bottom, without those of no
    length.
    """
    found: dict[str, list[tuple[float, float]]] = {}
    for each in picture.iter("path"):
        ends = re.fullmatch(r"M ([\d.]+) [\d.]+ L ([\d.]+) [\d.]+ ?", each.get("d", ""))
        if each.get("stroke-width") == "14" and ends and ends[1] != ends[2]:
            found.setdefault(each.get("stroke", ""), []).append((float(ends[1]), float(ends[2])))
    return found


def test_parts_stand_one_after_the_other_and_negative_ones_left_of_the_ideal() -> None:
    with svg.drawing():
        picture = ET.fromstring(draw_gap([ONE, TWO], "x-"))
    assert [text for text in words(picture) if text.endswith("g")] == ["1n1g", "1n2g"]
    found = bars(picture)
    assert sorted(found) == [
        "var(--one)",
        "var(--two)",
        "var(--wait)",
    ]  # communication, contention, unexplained
    (communication,), (contention,), (rest,) = (
        found[f"var(--{name})"] for name in ("one", "two", "wait")
    )
    ideal = communication[0]
    assert contention[0] == communication[1] and rest[0] == ideal and rest[1] < ideal
    per_ms = (communication[1] - ideal) / 6
    assert contention[1] - contention[0] == pytest.approx(3 * per_ms, abs=0.2)
    assert ideal - rest[1] == pytest.approx(per_ms, abs=0.2)
