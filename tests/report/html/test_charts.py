"""What stands in the pictures of a page: numbers where they belong, colours of the page, no name
that could break anything.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

import pytest

from orchestrator.features.published.folders import read_published_files
from orchestrator.features.published.reference import reference_tables
from orchestrator.report.html import charts, svg
from orchestrator.results.run_history import RunHistory
from orchestrator.results.summary import Summary, summarize
from tests.support.charts import dots, paths, words
from tests.support.summaries import runs


@pytest.fixture(autouse=True, scope="module")
def _drawing() -> object:
    with svg.drawing():
        yield


def scaling(summary: Summary, quantity: str = "value", against: bool = False) -> ET.Element:
    near = reference_tables(summary, read_published_files().values())[0] if against else ()
    return ET.fromstring(charts.scaling(summary.rows, near, quantity, "x-"))


def heights(picture: ET.Element) -> list[float]:
    """The vertical places of the dots, from left to right."""
    return [y for _, y in dots(picture, "one")]


def test_dots_stand_at_their_speeds_and_the_ideal_line_goes_through_the_baseline() -> None:
    picture = scaling(
        summarize(
            [*runs("1n1g", [100.0] * 3), *runs("1n2g", [200.0] * 3), *runs("1n4g", [300.0] * 3)]
        )
    )
    assert words(picture)[:3] == ["1", "2", "4"]
    one, two, four = dict.fromkeys(heights(picture))
    assert (one - two) == pytest.approx(two - four, abs=0.3)
    ideal = next(
        line
        for line in paths(picture, "muted")
        if len(line) == 2 and line[0][1] != line[1][1] and line[0][0] != line[1][0]
    )
    assert ideal[0][1] == pytest.approx(one, abs=0.2)
    assert ideal[0][1] - ideal[1][1] == pytest.approx(
        1.5 * (one - four), abs=0.5
    )  # 300 samples/s more, where the measured has 200


def test_sizes_far_apart_are_drawn_on_logarithmic_axes_where_the_ideal_line_is_straight() -> None:
    picture = scaling(
        summarize(
            [*runs("1n1g", [100.0] * 3), *runs("1n8g", [800.0] * 3), *runs("4n8g", [3200.0] * 3)]
        )
    )
    assert words(picture)[:3] == ["1", "8", "32"]
    (line,) = (line for line in paths(picture, "one") if len(line) == 3)
    (x1, y1), (x2, y2), (x3, y3) = line
    assert (x2 - x1) / (x3 - x1) == pytest.approx(3 / 5, abs=0.01) and (y1 - y2) / (
        y1 - y3
    ) == pytest.approx(3 / 5, abs=0.01)


@pytest.mark.parametrize("quantity", ["value", "speedup"])
def test_published_rows_are_drawn_where_they_are_asked_for(quantity: str) -> None:
    fp32 = {"dtype": "fp32"}
    summary = summarize(
        [*runs("1n1g", [354.0] * 3, spec=fp32), *runs("1n8g", [2300.0] * 3, spec=fp32)]
    )
    alone, against = scaling(summary, quantity), scaling(summary, quantity, against=True)
    assert paths(alone, "two") == [] and paths(against, "two") != []
    # Published tables go further than ours did, and their sizes are marked as well.
    assert set(words(alone)) & {"16", "32"} == set() and {"16", "32"} <= set(words(against))


def test_cells_of_one_size_are_told_apart_and_a_cell_without_a_number_is_a_cross() -> None:
    several = [*runs("1n1g", [100.0] * 3), *runs("1n4g", [300.0] * 3), *runs("4n1g", [350.0] * 3)]
    assert {"1n4g", "4n1g"} <= set(words(scaling(summarize(several))))
    failed = runs("2n4g", [1.0], throughput=None, state="failed")
    crosses = [
        each
        for each in scaling(summarize([*several, *failed])).iter("use")
        if each.get("stroke") == "var(--bad)"
    ]
    assert len(crosses) == 1 and scaling(summarize(failed)) is not None


def colours(picture: ET.Element) -> Sequence[str]:
    return [
        value for each in picture.iter() for name in ("fill", "stroke") if (value := each.get(name))
    ]


def test_every_colour_is_one_of_the_page_and_every_number_is_short() -> None:
    text = charts.scaling(summarize(runs("1n1g", [100.0, 101.0, 102.0])).rows, (), "value", "x-")
    known = {"none", *(f"var(--{name})" for name in svg.COLOURS)}
    assert set(colours(ET.fromstring(text))) <= known
    assert not re.search(r'="[^"]*\d\.\d\d', text)


def test_texts_that_mean_something_to_markup_or_to_matplotlib_are_shown_as_they_are() -> None:
    from matplotlib.figure import Figure

    hostile = '$\\frac$ <script> & "x" _ %'
    figure = Figure(figsize=(2, 1))
    figure.text(0.1, 0.5, hostile)
    picture = ET.fromstring(svg.inline(figure, hostile, "x-"))
    assert words(picture) == [hostile] and picture.get("aria-label") == hostile
    assert {each.tag for each in picture.iter()} <= {"svg", "defs", "g", "path", "text"}


@pytest.mark.parametrize(("bound_s", "is_cut"), [(0.0002, False), (0.1, True)])
def test_the_axis_of_skews_belongs_to_the_skews_and_a_bound_far_beyond_is_written(
    bound_s: float, is_cut: bool
) -> None:
    account = RunHistory("r", {}, (), None, 0.001, bound_s)
    turns = [
        charts.Turn(order, result, account)
        for order, result in enumerate(runs("2n1g", [1.0] * 3), start=1)
    ]
    picture = ET.fromstring(charts.skew(turns, "x-"))
    written = " ".join(words(picture))
    assert ("error bound up to 100 ms" in written) == is_cut
    ticks = [float(word) for word in words(picture) if re.fullmatch(r"[0-9.]+", word)]
    assert max(ticks) <= (3 if is_cut else 4)
