"""What stands in the pictures of other metrics than samples/s: points at their values, a line for
each configuration.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.logs.metrics import Metric
from orchestrator.report.html import metric_charts, svg
from orchestrator.results.entries import Row
from orchestrator.results.summary import summarize
from tests.support.charts import dots, paths, words
from tests.support.summaries import EVIL, measured

SIZES = Metric("busbw", "GB/s", keys=("size_bytes",))
FORMS = Metric("busbw", "GB/s", keys=("size_bytes", "in_place"))
LATENCY = Metric("latency", "us", "lower")
KI, MI, GI = 1 << 10, 1 << 20, 1 << 30


@pytest.fixture(autouse=True, scope="module")
def _drawing() -> object:
    with svg.drawing():
        yield


def rows(metric: Metric, *repeats: Any, shapes: Sequence[str] = ("1n2g",)) -> tuple[Row, ...]:
    made = [
        run
        for shape in shapes
        for run in measured(shape, (metric,), *({metric.name: values} for values in repeats))
    ]
    return summarize(made).rows


def over(found: Sequence[Row], key: str = "size_bytes") -> ET.Element:
    return ET.fromstring(metric_charts.over_key(found, key, "x-"))


def repeats(found: Sequence[Row], order: Mapping[str, int]) -> ET.Element:
    return ET.fromstring(metric_charts.repeats(found, order, "x-"))


def heights(points: Sequence[tuple[float, float]]) -> list[float]:
    return [y for _, y in points]


def test_bandwidths_stand_over_their_sizes_a_line_for_each_form() -> None:
    """Sizes are 1 Ki, 1 Mi and 1 Gi, so equally far apart; twice the bandwidth is twice as high; a
    missing form has no line.
    """
    alone = over(rows(FORMS, {(KI, "yes"): 10.0, (MI, "yes"): 20.0, (GI, "yes"): 40.0}))
    (x1, y1), (x2, y2), (x3, y3) = dots(alone, "one")
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.3)
    assert y2 - y3 == pytest.approx(2 * (y1 - y2), abs=0.4)
    assert paths(alone, "two") == [] and not [word for word in words(alone) if "in_place" in word]
    assert {"1 Ki", "1 Mi", "1 Gi"} & set(words(alone)) and {"busbw, GB/s", "size_bytes"} <= set(
        words(alone)
    )

    both = over(
        rows(FORMS, {(KI, "no"): 10.0, (GI, "no"): 40.0, (KI, "yes"): 20.0, (GI, "yes"): 30.0})
    )
    low, high = heights(dots(both, "one")), heights(dots(both, "two"))
    assert (
        low[0] - high[0] == pytest.approx(high[1] - low[1], abs=0.3)
        and low[0] > high[0] > high[1] > low[1]
    )
    assert {"1n2g in_place=no", "1n2g in_place=yes"} <= set(words(both))


def test_each_shape_has_a_line_and_a_colour_of_its_own_with_its_name() -> None:
    picture = over(rows(SIZES, {KI: 10.0, MI: 20.0, GI: 40.0}, shapes=("1n2g", "4n2g")))
    assert dots(picture, "one") == dots(picture, "two") and len(dots(picture, "one")) == 3
    assert {"1n2g", "4n2g"} <= set(words(picture))


def test_a_legend_names_each_line_by_its_colour_and_a_single_line_needs_none() -> None:
    found = rows(SIZES, {KI: 10.0, GI: 40.0}, shapes=("1n1g", "2n1g"))
    of_gi = [row for row in found if row.key["size_bytes"] == GI]
    assert metric_charts.legend(of_gi, "") == [
        ("one", f"1n1g size_bytes={GI}"),
        ("two", f"2n1g size_bytes={GI}"),
    ]
    assert metric_charts.legend(of_gi[:1], "") == []
    assert metric_charts.legend(found, "size_bytes") == [], (
        "a few lines have their names in the chart"
    )
    many = [replace(found[0], options={"n": n}) for n in range(7)]
    assert metric_charts.legend(many, "size_bytes")[0] == ("one", "1n1g n=0, 1n1g n=5")


def test_intervals_reach_from_end_to_end_and_a_single_run_has_none() -> None:
    found = rows(SIZES, {KI: 90.0, GI: 50.0}, {KI: 110.0, GI: 50.0}, {KI: 100.0, GI: 50.0})
    picture = over(found)
    (_, wide), (_, even) = dots(picture, "one")
    ends = next(
        line for line in paths(picture, "one") if len(line) == 2 and line[0][0] == line[1][0]
    )
    scale = (even - wide) / (found[0].value - found[1].value)  # type: ignore[operator]
    assert found[0].interval and found[0].value
    assert ends[0][1] - wide == pytest.approx(
        scale * (found[0].value - found[0].interval.low), abs=0.4
    )
    assert wide - ends[1][1] == pytest.approx(
        scale * (found[0].interval.high - found[0].value), abs=0.4
    )
    assert not [
        line
        for line in paths(over(rows(SIZES, {KI: 90.0, GI: 50.0})), "one")
        if line[0][0] == line[-1][0]
    ]


def test_keys_close_together_are_on_an_axis_of_equal_steps_and_so_is_zero() -> None:
    for keys in ((1, 2, 3), (0, 16, 32)):
        (x1, _), (x2, _), (x3, _) = dots(over(rows(SIZES, dict.fromkeys(keys, 5.0))), "one")
        assert x2 - x1 == pytest.approx(x3 - x2, abs=0.3)


def test_no_value_below_zero_leaves_the_picture() -> None:
    picture = over(rows(SIZES, {1: -4.0, 2: 0.0, 3: 4.0}))
    y1, y2, y3 = heights(dots(picture, "one"))
    assert y1 - y2 == pytest.approx(y2 - y3, abs=0.3) and y1 < 236 - 40 + 1
    positive = over(rows(SIZES, {1: 50.0, 2: 51.0}))
    assert "0" in words(positive), "without values below 0 the axis begins at 0"


def test_repeats_stand_at_their_values_in_execution_order_with_the_typical_value() -> None:
    found = rows(LATENCY, 8.0, 10.0, 9.0)
    picture = repeats(found, {"1n2g-1": 5, "1n2g-2": 1, "1n2g-3": 3})
    second, third, first = heights(dots(picture, "one"))  # positions 1, 3 and 5
    assert (first - third) == pytest.approx(third - second, abs=0.3) and second < third < first
    places = [x for x, _ in dots(picture, "one")]
    assert places[1] - places[0] == pytest.approx(places[2] - places[1], abs=0.3)
    scale = (first - second) / 2.0
    (line,) = (
        line for line in paths(picture, "one") if len(line) == 2 and line[0][1] == line[1][1]
    )
    assert found[0].value and first - line[0][1] == pytest.approx(
        scale * (found[0].value - 8.0), abs=0.3
    )
    assert {"latency, us", "position in execution order"} <= set(words(picture))


def test_runs_of_another_bench_have_no_place_in_the_order() -> None:
    picture = repeats(rows(LATENCY, 8.0, 10.0), {"1n2g-2": 1})
    assert len(dots(picture, "one")) == 1
    assert dots(repeats(rows(LATENCY, 8.0), {}), "one") == []


@pytest.mark.parametrize("text", EVIL.values(), ids=EVIL)
def test_a_key_from_a_log_is_a_word_of_the_picture_and_nothing_else(text: str) -> None:
    picture = over(rows(FORMS, {(KI, text): 10.0, (GI, text): 40.0, (KI, "b"): 20.0}))
    assert {each.tag for each in picture.iter()} <= {
        "svg",
        "defs",
        "g",
        "path",
        "text",
        "use",
        "clipPath",
        "rect",
        "tspan",
    }
    assert any(word.startswith("1n2g in_place=") for word in words(picture))


def test_every_colour_is_one_of_the_page_and_every_number_is_short() -> None:
    many = {(size, f"form{n}"): 1.0 + n for size in (KI, GI) for n in range(7)}
    known = {"none", *(f"var(--{name})" for name in svg.COLOURS)}
    for text in (
        metric_charts.over_key(rows(FORMS, many), "size_bytes", "x-"),
        metric_charts.repeats(rows(LATENCY, 8.0, 9.0), {"1n2g-1": 1, "1n2g-2": 2}, "x-"),
    ):
        found = {
            value
            for each in ET.fromstring(text).iter()
            for name in ("fill", "stroke")
            if (value := each.get(name))
        }
        assert found <= known
        assert not re.search(r'="[^"]*\d\.\d\d', text)
    assert not [word for word in words(over(rows(FORMS, many))) if "form" in word], (
        "the table has the names of many lines"
    )


def test_decimals_and_sizes_with_suffixes_have_their_places_on_the_axis() -> None:
    (x1, _), (x2, _), (x3, _) = dots(
        over(rows(SIZES, dict.fromkeys(("1K", "1M", "1 GiB"), 5.0))), "one"
    )
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.3)
    (x1, _), (x2, _), (x3, _) = dots(
        over(rows(SIZES, dict.fromkeys(("0.5", 1, "1.5"), 5.0))), "one"
    )
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.3)
