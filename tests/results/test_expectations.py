"""Whether a bench met what was expected: by the value, by its interval, and where nothing was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.plan.expectations import expectation_of
from orchestrator.results.expectations import MET, NOT_CERTAIN, NOT_MET, Judgement, judged, notes_on
from orchestrator.results.read import read_run
from orchestrator.results.summary import summarize
from tests.results.test_measures import made_bench, orch

TIMES = [["1.00", "20.1"], ["1.01", "20.2"], ["1.02", "20.3"], ["1.03", "20.0"]]


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        ("time_s <= 25", [MET, MET]),
        ("time_s <= 25 to=1", [MET]),
        ("time_s <= 1.2 to=0", [MET]),
        ("time_s <= 1.02 to=0", [NOT_CERTAIN]),  # 1.015, and its interval reaches to 1.036
        ("time_s <= 1.01 to=0", [NOT_MET]),
        ("time_s >= 1.2", [NOT_MET, MET]),
        ("time_s <= 25 nodes=2 dtype=fp16", [MET, MET]),
        ("time_s <= 25 nodes=4", [NOT_MET]),
        ("bandwidth >= 1", [NOT_MET]),
    ],
)
def test_a_bound_holds_for_the_value_and_its_interval(tmp_path: Path, text: str, verdicts: list[str]) -> None:
    rows = summarize([read_run(run) for run in made_bench(tmp_path, "b1", TIMES).runs()]).rows
    assert [judgement.verdict for judgement in judged([expectation_of(text)], rows)] == verdicts


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("time >= 1", "no such metric; the metrics are time_s"),
        ("time_s <= 25 to=7", "no such value; to has 0, 1"),
        ("time_s <= 25 size=7", "no such value; nothing that was measured has a size"),
    ],
)
def test_a_bound_that_applies_to_nothing_says_what_there_is(tmp_path: Path, text: str, got: str) -> None:
    rows = summarize([read_run(run) for run in made_bench(tmp_path, "b1", TIMES).runs()]).rows
    (judgement,) = judged([expectation_of(text)], rows)
    assert (judgement.verdict, judgement.got) == (NOT_MET, got)


def test_what_nothing_was_measured_of_is_not_met_and_says_so(tmp_path: Path) -> None:
    (unmeasured,) = judged([expectation_of("busbw >= 3")], ())
    assert str(unmeasured) == "expected busbw >= 3: not met, no such metric; the metrics are none"
    rows = summarize([read_run(run) for run in made_bench(tmp_path, "b1", [[]]).runs()]).rows
    (failed,) = judged([expectation_of("time_s <= 3")], rows)
    assert (failed.verdict, failed.got) == (NOT_MET, "no number")


def test_one_repeat_is_never_certain(tmp_path: Path) -> None:
    rows = summarize([read_run(run) for run in made_bench(tmp_path, "b1", TIMES[:1]).runs()]).rows
    assert [judgement.verdict for judgement in judged([expectation_of("time_s <= 25")], rows)] == [NOT_CERTAIN] * 2


@pytest.mark.parametrize(
    ("expect", "code", "said"),
    [
        (["time_s <= 25"], 0, ""),
        (["time_s <= 25", "time_s <= 1.01 to=0"], 5, "to=0 2n2g: expected time_s <= 1.01 to=0, got 1.01 s (0.995 to 1.04)"),
        (["time_s <= 1.02 to=0"], 6, "run more repeats"),
    ],
)
def test_every_output_of_a_bench_judges_and_the_exit_status_says_it(
    tmp_path: Path, expect: list[str], code: int, said: str
) -> None:
    bench = made_bench(tmp_path, "b1", TIMES)
    record = json.loads((bench.path / "bench.json").read_text())
    bench.change(lambda before: type(before).of({**record, "expect": expect}, str(bench.path / "bench.json")))
    done = orch(tmp_path, "summarize", "b1")
    assert done.returncode == code and said in done.stderr, done
    assert ("2 bounds met: time_s <= 25" if code != 6 else "expected time_s <= 1.02 to=0: not certain") in done.stdout
    document = json.loads(orch(tmp_path, "summarize", "b1", "--json").stdout)
    assert {judgement["expected"] for judgement in document["expected"]} == set(expect)


def test_bounds_that_are_met_are_one_line_and_the_others_are_named() -> None:
    met = [Judgement("rate >= 5", "disk", shape, "6.00 GB/s", MET) for shape in ("1n1g", "2n1g", "4n1g")]
    other = [Judgement("time <= 2", "disk", "1n1g", "3.00 s", verdict) for verdict in (NOT_MET, NOT_CERTAIN)]
    assert notes_on([met[0], other[0], *met[1:], other[1]]) == [
        "expected time <= 2: not met, disk 1n1g: 3.00 s",
        "expected time <= 2: not certain, disk 1n1g: 3.00 s",
        "3 bounds met: rate >= 5",
    ]
    assert notes_on(met[:1]) == ["expected rate >= 5: met, disk 1n1g: 6.00 GB/s"] and notes_on([]) == []
