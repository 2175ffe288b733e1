"""The published schema says what `orch summarize --json` prints, no more and no less."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from orchestrator.cli.main import program
from orchestrator.logs.metrics import Metric
from orchestrator.plan.expectations import expectation_of
from orchestrator.record.telemetry import telemetry_of
from orchestrator.report.formats import json as jsonout
from orchestrator.results.expectations import judge_expectations
from orchestrator.results.numbers.steady_start import SteadyStart
from orchestrator.results.summary import Summary, summarize
from orchestrator.results.telemetry.utilization import RunUse, node_use
from tests.support.explained_benches import bench_of
from tests.support.run_folders import build
from tests.support.sampled_runs import GPU, Column, gpus, telemetry
from tests.support.summaries import EVIL, example, measured, runs, with_text
from tests.support.summary_schema import (
    FILE,
    SCHEMA,
    assert_every_key_counts,
    problems,
    schema_as_declared,
)


def document(summary: Any) -> Any:
    return json.loads(jsonout.render(summary))


def metrics() -> Summary:
    """Rows of metrics with and without keys, below 0, at 0 and above, of 1n1g and 1n2g, with and
    without a speedup.
    """
    declared = (
        Metric("busbw", "GB/s", keys=("size_bytes", "op")),
        Metric("latency", "us", "lower", speedup=True),
        Metric("change", "1", "lower"),
    )
    values = {"busbw": {(1024, "read"): 0.0, (4096, "read"): 2.0}, "latency": 8.0, "change": -0.5}
    runs = [*measured("1n1g", declared, values, values), *measured("1n2g", declared, values)]
    whole = summarize(runs)
    expected = judge_expectations(
        [expectation_of("latency <= 9"), expectation_of("power <= 1")], whole.rows, runs
    )
    return replace(whole, expected=expected)


def sampled() -> Summary:
    """A run of which everything is sampled, with something wrong in every place."""
    columns: dict[str, Column] = {
        **gpus(
            2,
            sm_mhz=lambda at: 1755.0,
            reasons=lambda at: 4.0,
            ecc_corrected=lambda at: at,
            used_percent=lambda at: 99.0,
        ),
        **{
            name: lambda at: 2 * at
            for name in (
                "busy_s",
                "foreign_s",
                "package_j",
                "net0.received",
                "net0.sent",
                "net0.errors",
            )
        },
    }
    told = [
        {"t": 5.0, "event": "xid", "gpu": 0, "code": 79},
        {"t": 5.0, "event": "busy", "pid": 7, "name": "x", "cores": 1.5},
    ]
    names = {"gpus": [GPU, GPU], "interfaces": ["eth0"], "packages": ["package-0"]}
    read = telemetry_of(
        telemetry([float(at) for at in range(20)], columns, told, **names).encode(), "node1"
    )
    assert read
    use = RunUse(10.0, (node_use("node1", read, 5.0, 15.0),), 600.0, 0.5, 300.0)
    return summarize(
        [replace(run, use=use, steady=SteadyStart(41, 0.5)) for run in runs("1n1g", [100.0])]
    )


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the program prints of a bench on disk."""
    bench = bench_of(tmp_path_factory.mktemp("runs"), "r2", "r3")
    build(bench, "r2", repeat=2, seconds=0.51)
    build(bench, "r3", lambda planned, logs: planned["spec"].update(batch_size=128), repeat=1)
    done = CliRunner().invoke(program(), ["summarize", str(bench.path), "--json"])
    return json.loads(done.stdout)


def test_the_schema_is_one_and_speaks_of_this_version() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["schema"] == {"const": jsonout.SCHEMA}
    assert SCHEMA["$id"].endswith(f":{jsonout.SCHEMA}")


def test_the_schema_of_rows_and_sheets_is_written_from_their_fields() -> None:
    text = schema_as_declared()
    if os.environ.get("ORCH_UPDATE_GOLDEN"):
        FILE.write_text(text, encoding="utf-8")
    assert FILE.read_text(encoding="utf-8") == text


@pytest.mark.parametrize("text", EVIL.values(), ids=EVIL)
def test_every_summary_is_valid(text: str) -> None:
    assert problems(document(with_text(text))) == []


def test_tables_with_and_without_numbers_are_valid(printed: Any) -> None:
    chosen = {"options": {"compile": True, "lr": 0.1, "workers": 4, "name": "x"}}
    assert problems(document(example())) == []
    assert problems(document(summarize(runs("1n1g", [1.0, 2.0], spec=chosen)))) == []
    assert problems(document(summarize([]))) == []
    (use,) = document(sampled())["telemetry"]
    assert (
        problems(document(sampled())) == []
        and use["nodes"][0]["gpus"][0]["lowered"]["sw_power_cap"] == 1.0
    )
    found = document(metrics())
    assert problems(found) == [] and list(found["drifts"]) == ["latency", "change"]
    latency = next(
        row for row in found["rows"] if row["metric"] == "latency" and row["shape"] == "1n2g"
    )
    assert (latency["unit"], latency["better"], latency["key"], latency["speedup"]) == (
        "us",
        "lower",
        {},
        1.0,
    )
    assert found["baselines"][latency["series"]]["value"] == pytest.approx(8.0)
    assert problems(printed) == []


@pytest.mark.parametrize("kind", ["example", "printed", "metrics", "sampled"])
def test_a_key_more_and_a_key_less_are_not(kind: str, printed: Any) -> None:
    whole = (
        printed
        if kind == "printed"
        else document({"example": example, "metrics": metrics, "sampled": sampled}[kind]())
    )
    assert_every_key_counts(whole)


@pytest.mark.parametrize(
    ("key", "value"),
    [("median", 0), ("n", 1.5), ("shape", "4x8"), ("speedup", "1"), ("failed", -1)],
)
def test_values_that_cannot_be_are_not(key: str, value: Any) -> None:
    whole = document(example())
    whole["rows"][0][key] = value
    assert problems(whole)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("better", "more"),
        ("primary", 1),
        ("key", {"size_bytes": 1.5}),
        ("step_s", 0.1),
        ("per_rank", 1.0),
        ("deviation", -1.0),
    ],
)
def test_values_that_no_other_metric_has_are_not(key: str, value: Any) -> None:
    whole = document(metrics())
    whole["rows"][0][key] = value
    assert problems(whole)


@pytest.mark.parametrize(
    ("key", "value"),
    [("unit", "GB/s"), ("better", "lower"), ("key", {"size_bytes": 1}), ("value", -1.0)],
)
def test_values_that_no_speed_of_training_has_are_not(key: str, value: Any) -> None:
    whole = document(example())
    whole["rows"][0][key] = value
    assert problems(whole)
