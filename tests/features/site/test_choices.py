"""What the script of Compare reads: each bench once, as text that is no markup, and no more of it
than a page can hold.
"""

from __future__ import annotations

import json
from dataclasses import replace

from orchestrator.analysis.past_cells import PastCell
from orchestrator.features.site.catalogue import BenchEntry
from orchestrator.features.site.choices import MOST_CELLS, choices
from orchestrator.results import Interval

HOSTILE = "</script><b>\x1b[2J \u202egnp"


def cell(value: float, **fields: object) -> PastCell:
    spec = json.dumps({"model": "resnet50", "nodes": 1, "options": {}, "metric": "rate", **fields})
    interval = Interval(value - 1, value + 1, 0.95)
    return PastCell(
        "",
        "",
        "",
        "f",
        "m",
        "fp16",
        "1n1g",
        spec,
        "rate",
        "1/s",
        True,
        value,
        interval,
        4,
        1,
        (),
        "",
    )


def entry(name: str, *cells: PastCell) -> BenchEntry:
    return BenchEntry(name, "mark", cells=cells)


def test_a_configuration_of_many_benches_is_there_once_and_each_bench_with_its_numbers() -> None:
    benches = [
        entry(f"b{place}", cell(100.0 + place), cell(7.0, batch_size=8)) for place in range(3)
    ]
    content = json.loads(choices(benches, {"b2": ["b0", "b1"]}))
    assert content["specs"] == [
        {"model": "resnet50", "nodes": "1", "metric": "rate"},
        {"model": "resnet50", "nodes": "1", "metric": "rate", "batch_size": "8"},
    ]
    assert content["cells"][1][0] == [
        0,
        "1n1g",
        "rate",
        "1/s",
        101.0,
        "101.00",
        "100.00 to 102.00",
        "4 (1 failed)",
    ]
    assert (content["earlier"], content["left_out"]) == ({"2": [0, 1]}, [0, 0, 0])


def test_it_grows_with_benches_and_not_with_pairs_of_them() -> None:
    sizes = [len(choices([entry(f"20261001-{n:06}-ab12", *[cell(1.5 * n, b=b) for b in range(8)]) for n in range(count)], {}))
             for count in (100, 200, 400)]  # fmt: skip
    assert sizes[2] - sizes[1] < 2.2 * (sizes[1] - sizes[0]) and sizes[1] < 300_000
    many = json.loads(choices([entry("a", *[cell(1.5, b=b) for b in range(MOST_CELLS + 5)])], {}))
    assert (len(many["cells"][0]), many["left_out"]) == (MOST_CELLS, [5])


def test_text_of_benches_ends_no_script_and_hides_nothing() -> None:
    bad = replace(cell(1.0, options={"x": HOSTILE, HOSTILE: 1}), shape=HOSTILE)
    text = choices([entry("a b/" + HOSTILE, bad)], {})
    content = json.loads(text)
    shown = json.dumps(content, ensure_ascii=False)
    assert "<" not in text and "\u202e" not in shown and "\\u001b" not in shown
    assert (
        content["names"][0].startswith("'a b/</script>")
        and "</script>" in content["specs"][0]["options.x"]
    )
