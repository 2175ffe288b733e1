"""Which tables a summary has, and in which order."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.logs.metrics import Metric
from orchestrator.plan.measures import SAMPLES_PER_S
from orchestrator.report.cells import COLUMNS
from orchestrator.report.tables import of_metrics, tables
from orchestrator.results.summary import Summary, summarize
from orchestrator.results.values import Value
from tests.support.summaries import example, measured, runs

POWER = Metric("power", "W", "lower")
LOSS = Metric("loss", "1", "lower", keys=("epoch",))


def training() -> Summary:
    """1n1g and 1n2g of a training that measures its power and its loss too."""
    values = (Value("power", (), 700.0), Value("loss", (1,), 2.5), Value("loss", (2,), 1.5))
    own = {"metrics": (SAMPLES_PER_S, POWER, LOSS), "metric_values": values}
    return summarize([*runs("1n1g", [100.0] * 3, **own), *runs("1n2g", [200.0] * 3, **own)])


def test_speeds_of_training_have_their_own_table_and_no_other() -> None:
    (table,) = tables(example())
    assert table.columns == COLUMNS and of_metrics(example()) == ()


def test_the_speeds_of_a_training_stand_before_its_other_metrics() -> None:
    speeds, power, loss = tables(training())
    assert (speeds.columns, [row[0] for row in speeds.rows]) == (COLUMNS, ["1n1g", "1n2g"])
    assert [row[:4] for row in power.rows] == [
        ("1n1g", "power", "W", "3"),
        ("1n2g", "power", "W", "3"),
    ]
    assert [row[:3] for row in loss.rows] == [
        ("1n1g", "1", "2.50"), ("1n1g", "2", "1.50"), ("1n2g", "1", "2.50"), ("1n2g", "2", "1.50"),
    ]  # fmt: skip
    assert [entry.table for entry in of_metrics(training())] == [power, loss]


def test_each_row_is_in_one_table() -> None:
    summary = training()
    assert sum(len(entry.rows) for entry in of_metrics(summary)) + len(summary.speeds()) == len(
        summary.rows
    )


def test_each_program_has_its_own_tables_and_a_simulated_one_is_stamped() -> None:
    made = measured("1n2g", (POWER,), {"power": 700.0})
    others = [replace(run, run_id=f"s{run.run_id}", simulated=True) for run in made]
    trained = runs("1n1g", [100.0] * 3)
    found = tables(summarize([*made, *others, *trained]))
    assert [(table.title, table.simulated) for table in found] == [
        ("probe disk fp16", False), ("probe disk fp16", True), ("pytorch resnet50 fp16 b128 synthetic", False),
    ]  # fmt: skip


def test_nothing_has_no_table() -> None:
    assert tables(summarize([])) == of_metrics(summarize([])) == ()
