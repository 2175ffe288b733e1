"""Whether a bench met what was expected: by the value, by its interval, and where nothing was
measured.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import Undecided
from orchestrator.logs.metrics import Metric
from orchestrator.plan.expectations import expectation_of
from orchestrator.results.expectations import (
    MET,
    NOT_CERTAIN,
    NOT_MET,
    Judgement,
    errors_of,
    judge_expectations,
    notes_on,
)
from orchestrator.results.read import read_run
from orchestrator.results.summary import summarize
from tests.results.test_measures import made_bench, orch
from tests.support.summaries import measured


def judgements(tmp_path: Path, times: list[list[str]], *texts: str) -> tuple[Judgement, ...]:
    """Return what these bounds are worth for a bench with these times, one list per repeat."""
    runs = [read_run(run) for run in made_bench(tmp_path, "b1", times).runs()]
    return judge_expectations([expectation_of(text) for text in texts], summarize(runs).rows, runs)


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
def test_a_bound_holds_for_the_value_and_its_interval(
    tmp_path: Path, text: str, verdicts: list[str]
) -> None:
    assert [judgement.verdict for judgement in judgements(tmp_path, TIMES, text)] == verdicts


@pytest.mark.parametrize("bound", ["time_s >= 200", "time_s <= 200"])
def test_a_bound_that_all_repeats_print_is_met_although_their_mean_of_logarithms_is_rounded(
    tmp_path: Path, bound: str
) -> None:
    (judgement,) = judgements(tmp_path, [["200"], ["200"], ["200"]], bound)
    assert (judgement.verdict, judgement.got) == (MET, "200.00 s (200.00 to 200.00)")


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("time >= 1", "no such metric; the metrics are time_s"),
        ("time_s <= 25 to=7", "no such value; to has 0, 1"),
        ("time_s <= 25 size=7", "no such value; nothing that was measured has a size"),
    ],
)
def test_a_bound_that_applies_to_nothing_says_what_there_is(
    tmp_path: Path, text: str, got: str
) -> None:
    (judgement,) = judgements(tmp_path, TIMES, text)
    assert (judgement.verdict, judgement.got) == (NOT_MET, got)


def test_what_nothing_was_measured_of_is_not_met_and_says_so(tmp_path: Path) -> None:
    (unmeasured,) = judge_expectations([expectation_of("busbw >= 3")], (), ())
    assert unmeasured.note == "expected busbw >= 3: not met, no such metric; the metrics are none"
    (failed,) = judgements(tmp_path, [[]], "time_s <= 3")
    assert (failed.verdict, failed.got) == (NOT_MET, "no number")


def test_one_repeat_is_never_certain(tmp_path: Path) -> None:
    assert [judgement.verdict for judgement in judgements(tmp_path, TIMES[:1], "time_s <= 25")] == [
        NOT_CERTAIN
    ] * 2


def test_a_bound_may_name_what_all_configurations_have_in_common() -> None:
    declared = (Metric("rate", "GB/s"), Metric("latency", "us", "lower"))
    spec = {"options": {"mode": "a", "direct": True}, "env": {"FOO": "b"}}
    runs = measured(
        "1n1g", declared, *[{"rate": 5.0 + n / 1000, "latency": 2.0} for n in range(4)], spec=spec
    )
    texts = (
        "rate >= 4 mode=a",
        "rate >= 4 direct=true FOO=b",
        "latency <= 3 steps=120 dtype=fp16",
        "rate >= 4 mode=c",
    )
    of_all = judge_expectations(
        [expectation_of(text) for text in texts], summarize(runs).rows, runs
    )
    assert [judgement.verdict for judgement in of_all] == [MET, MET, MET, NOT_MET]
    assert of_all[3].got == "no such value; mode has a"


def test_a_configuration_without_numbers_has_met_no_bound_on_any_of_its_metrics() -> None:
    declared = (
        Metric("rate", "GB/s", keys=("size",)),
        Metric("latency", "us", "lower", keys=("size",)),
    )
    values = {"rate": {1: 5.0}, "latency": {1: 2.0}}
    failed = [replace(run, state="failed") for run in measured("2n1g", declared, {}, {})]
    runs = [*measured("1n1g", declared, values, values, values), *failed]
    texts = (
        "latency <= 3 size=1",
        "latency <= 3 nodes=1",
        "power <= 3",
        "latency <= 3 nodes=2 size=1",
    )
    of_all = judge_expectations(
        [expectation_of(text) for text in texts], summarize(runs).rows, runs
    )
    assert [(judgement.shape, judgement.verdict, judgement.got) for judgement in of_all] == [
        ("2n1g", NOT_MET, "no number"),
        ("1n1g", MET, "2.00 us (2.00 to 2.00)"),
        ("1n1g", MET, "2.00 us (2.00 to 2.00)"),
        ("", NOT_MET, "no such metric; the metrics are rate, latency"),
        ("2n1g", NOT_MET, "no number"),
    ]


def test_a_bound_is_not_judged_in_another_unit_than_it_was_given_in(tmp_path: Path) -> None:
    bench = made_bench(tmp_path, "b1", TIMES)
    for run in bench.runs():
        content = json.loads((run.path / "manifest.json").read_text())
        metric = {**content["framework"]["log"]["metrics"][0], "unit": "ms", "factor": 1000.0}
        log = {**content["framework"]["log"], "metrics": [metric]}
        run.update_manifest(reread={"digest": "f" * 64, "at": "2026-01-01T00:00:00Z", "log": log})
    runs = [read_run(run) for run in bench.runs()]
    (judgement,) = judge_expectations(
        [expectation_of("time_s >= 25 to=0")], summarize(runs).rows, runs
    )
    assert judgement.verdict == NOT_CERTAIN
    assert (
        judgement.got
        == "1014.94 ms (994.60 to 1035.69); the bound was given in s, before the log was read again"
    )
    error = judgement.error()
    assert isinstance(error, Undecided) and "repeats" not in str(error)


def test_a_bound_that_is_not_met_gives_the_exit_status_wherever_it_stands(tmp_path: Path) -> None:
    texts = ("time_s <= 1.02 to=0", "time_s <= 1.01 to=0", "time_s <= 25")
    errors = errors_of(judgements(tmp_path, TIMES, *texts))
    assert [error.exit_code for error in errors] == [5, 6]


@pytest.mark.parametrize(
    ("expect", "code", "said"),
    [
        (["time_s <= 25"], 0, ""),
        (
            ["time_s <= 25", "time_s <= 1.01 to=0"],
            5,
            "to=0 2n2g: expected time_s <= 1.01 to=0, got 1.01 s (0.995 to 1.04)",
        ),
        (["time_s <= 1.02 to=0"], 6, "run more repeats"),
    ],
)
def test_every_output_of_a_bench_judges_and_the_exit_status_says_it(
    tmp_path: Path, expect: list[str], code: int, said: str
) -> None:
    bench = made_bench(tmp_path, "b1", TIMES)
    record = json.loads((bench.path / "bench.json").read_text())
    bench.change(
        lambda before: type(before).of({**record, "expect": expect}, str(bench.path / "bench.json"))
    )
    done = orch(tmp_path, "summarize", "b1")
    assert done.returncode == code and said in done.stderr, done
    assert (
        "bounds met, in 2 rows: time_s <= 25"
        if code != 6
        else "expected time_s <= 1.02 to=0: not certain"
    ) in done.stdout
    document = json.loads(orch(tmp_path, "summarize", "b1", "--json").stdout)
    assert {judgement["expected"] for judgement in document["expected"]} == set(expect)


def test_bounds_that_are_met_are_one_line_and_the_others_are_named() -> None:
    met = [
        Judgement("rate >= 5", "disk", shape, "6.00 GB/s", MET)
        for shape in ("1n1g", "2n1g", "4n1g")
    ]
    other = [
        Judgement("time <= 2", "disk", "1n1g", "3.00 s", verdict)
        for verdict in (NOT_MET, NOT_CERTAIN)
    ]
    assert notes_on([met[0], other[0], *met[1:], other[1]]) == [
        "expected time <= 2: not met, disk 1n1g: 3.00 s",
        "expected time <= 2: not certain, disk 1n1g: 3.00 s",
        "bounds met, in 3 rows: rate >= 5",
    ]
    assert (
        notes_on(met[:1]) == ["expected rate >= 5: met, disk 1n1g: 6.00 GB/s"]
        and notes_on([]) == []
    )
