"""Benches whose speed or other metrics change while they last: what is said, and which values are
shown.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from orchestrator.logs.metrics import Metric
from orchestrator.plan.measures import LANGUAGE_MODEL, MEASURES, TOKENS_PER_S
from orchestrator.report.formats import json as jsonout
from orchestrator.report.tables import tables
from orchestrator.results.run import RunResult
from orchestrator.results.summary import summarize
from orchestrator.results.values import Value
from tests.support.cells import cell
from tests.support.summaries import measured


def drifting(larger: float = 190.0) -> list[RunResult]:
    """Return five repeats of two shapes, each of whose runs is 2 % slower than the one before it,
    in alternating order.
    """
    orders = {"1n1g": (0, 3, 4, 7, 8), "1n2g": (1, 2, 5, 6, 9)}
    return [
        replace(run, place=place)
        for shape, truth in (("1n1g", 100.0), ("1n2g", larger))
        for run, place in zip(
            cell(shape, [truth * 0.98**place for place in orders[shape]]),
            orders[shape],
            strict=True,
        )
    ]


def test_metrics_of_one_name_and_different_units_have_drifts_of_their_own() -> None:
    orders = {"probe": (0, 3, 4, 7, 8), "other": (1, 2, 5, 6, 9)}
    numbers = {
        "probe": [10.0 * 1.1**place for place in orders["probe"]],
        "other": [100.0, 100.1, 100.2, 100.1, 100.0],
    }
    metrics = {"probe": Metric("t", "s", "lower"), "other": Metric("t", "MB/s")}
    results = [
        replace(run, run_id=f"{name}-{place}", place=place)
        for name, places in orders.items()
        for run, place in zip(
            measured(
                "1n1g",
                (metrics[name],),
                *[{"t": number} for number in numbers[name]],
                spec={"framework": name},
            ),
            places,
            strict=True,
        )
    ]
    summary = summarize(results)
    values = {row.framework: row.value for row in summary.rows}
    # The middle of the runs of probe is its run at place 4; what other prints does not change with
    # time.
    assert values == {
        "probe": pytest.approx(10 * 1.1**4),
        "other": pytest.approx(100.08, abs=0.001),
    }
    assert set(summary.drifts) == {"t (s, lower is better)", "t (MB/s, higher is better)"}
    assert (
        "t (s, lower is better) of all configurations changed by +114.4% during the bench"
        in summary.notes[0]
    )


def test_what_follows_from_a_speed_has_a_note_on_drift_only_if_it_drifts_otherwise() -> None:
    of_speed, of_program = MEASURES[LANGUAGE_MODEL].derived, MEASURES[LANGUAGE_MODEL].reported
    metrics = tuple(
        metric for metric in (*of_speed, *of_program) if metric.name in ("mfu", "peak_memory")
    )
    places = (0, 1, 2, 3, 4)
    repeats = [{"mfu": 50 * 0.98**place, "peak_memory": 10 * 1.1**place} for place in places]
    speeds = [Value("tokens_per_s", (), 100 * 0.98**place) for place in places]
    results = [
        replace(
            run,
            place=place,
            measure=MEASURES[LANGUAGE_MODEL],
            metrics=(TOKENS_PER_S, *metrics),
            metric_values=(speed, *run.metric_values),
        )
        for run, place, speed in zip(
            measured("1n1g", metrics, *repeats), places, speeds, strict=True
        )
    ]
    slower, memory = summarize(results).notes
    assert slower.startswith("all configurations became 7.8% slower")
    assert (
        memory == "peak_memory of all configurations changed by +46.4% during the bench; "
        "typical values are those of its middle, without this drift"
    )


def test_a_drift_that_may_be_chance_is_a_remark_where_it_was_taken_out() -> None:
    orders = {"1n1g": (0, 3, 4, 7, 8), "1n2g": (1, 2, 5, 6, 9)}
    summary = summarize(
        [
            replace(run, place=place)
            for shape, places in orders.items()
            for run, place in zip(
                cell(shape, [0.99**place * 1.04 ** (-1) ** n for n, place in enumerate(places)]),
                places,
                strict=True,
            )
        ]
    )
    (note,) = summary.notes
    assert (note.code, note.severity) == ("uncertain_drift", "remark")
    assert note.startswith(
        f"speed of all configurations changed by {summary.drifts['samples_per_s']:+.1%}"
    )


@pytest.mark.parametrize("of_medians", [False, True])
def test_the_note_on_drift_the_baseline_and_the_speedups_belong_to_each_other(
    of_medians: bool,
) -> None:
    summary = summarize(drifting(), of_medians=of_medians)
    (series,) = summary.baseline
    base, row = summary.rows
    divisor = summary.divisor(series)
    assert divisor == pytest.approx(100 * 0.98**4 if of_medians else 100 * 0.98**4.5)
    measured = row.median if of_medians else row.value
    assert divisor and measured and row.speedup == pytest.approx(measured / divisor)
    assert row.speedup == pytest.approx(1.9 * 0.98 if of_medians else 1.9)
    (note,) = summary.notes
    assert ("medians and speedups contain it" in note, "speed, speedup and their" in note) == (
        of_medians,
        not of_medians,
    )
    assert (
        tables(summary)[0].head[0]
        == f"baseline 1n1g: {divisor:.2f} samples/s{' (median)' if of_medians else ''}, n=5"
    )
    assert json.loads(jsonout.render(summary))["baselines"][series]["value"] == divisor


def test_a_configuration_is_slower_by_the_speeds_that_are_shown() -> None:
    notes = {
        of_medians: [
            note
            for row in summarize(drifting(101.0), of_medians=of_medians).rows
            for note in row.qualifications
        ]
        for of_medians in (False, True)
    }
    assert not any("slower" in note for note in notes[False])
    assert any("more ranks but slower than 1n1g (92.24 samples/s)" in note for note in notes[True])
