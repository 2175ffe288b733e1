"""Telemetry files as nodes write them, and as they should never be: they cost the samples and
nothing else.
"""

from __future__ import annotations

import json

import pytest

from orchestrator.errors import DataError
from orchestrator.record.telemetry import Event, Gpu, telemetry_of
from tests.support.sampled_runs import GPU, Column, gpus, telemetry


def test_a_whole_file_has_its_columns_gpus_and_events() -> None:
    columns = {"busy_s": lambda at: 2 * at, "foreign_s": lambda at: None, **gpus(1)}
    told = [{"t": 2.0, "event": "xid", "gpu": 0, "code": 79}, {"event": "failed", "why": "OSError"}]
    read = telemetry_of(
        telemetry([1.0, 2.0, 3.0], columns, told, gpus=[GPU], interfaces=["eth0"]).encode(), "node1"
    )
    assert read and read.times == (1.0, 2.0, 3.0) and read.processors == 8 and read.cost == 0.001
    assert read.points("busy_s") == [(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)]
    assert read.points("foreign_s") == read.points("not there") == []
    assert read.gpus == (
        Gpu("NVIDIA H200", "GPU-0", 700.0, 1980.0, False),
    ) and read.interfaces == ("eth0",)
    assert read.events == (Event(2.0, "xid", gpu=0, code=79),), (
        "that the sampler failed later on is no event of the node"
    )


@pytest.mark.parametrize("size", [0, 1, 40])
def test_a_file_that_is_cut_off_has_the_rows_before(size: int) -> None:
    whole = telemetry([1.0, 2.0], {"busy_s": lambda at: at}).encode()
    read = telemetry_of(whole[: whole.index(b"[2.0") + 3], "node1")
    assert read and read.times == (1.0,) and read.cost is None
    assert telemetry_of(whole[:size], "node1") is None
    assert telemetry_of(whole[: whole.index(b"\n") + 1], "node1") is None, "no row"


@pytest.mark.parametrize("unknown", [2**64 - 1, 2**63, int("9" * 400)])
def test_a_number_that_a_driver_gives_for_what_it_does_not_know_costs_no_other(
    unknown: int,
) -> None:
    columns: dict[str, Column] = {"busy_s": lambda at: at, "gpu0.ecc_corrected": lambda at: unknown}
    read = telemetry_of(telemetry([1.0, 2.0], columns).encode(), "node1")
    assert (
        read
        and read.points("busy_s") == [(1.0, 1.0), (2.0, 2.0)]
        and read.points("gpu0.ecc_corrected") == []
    )


HEADER = '{"schema":1,"period_s":1.0,"processors":8,"columns":["t","busy_s"]}\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("what is this\n", "line 1: expected JSON"),
        ("[1, 2]\n", "line 1: expected schema 1, got [1, 2]"),
        ('{"schema": 2}\n', "line 1: expected schema 1"),
        ('{"schema": 1, "columns": []}\n', "columns: expected a list of names that begins with t"),
        ('{"schema": 1, "columns": ["t", "a", "a"]}\n', "columns: expected each name once"),
        ('{"schema": 1, "columns": ["t"]}\n[1.0]\n', "line 1: expected processors, it is missing"),
        (HEADER + "[1.0]\n", "line 2: expected 2 numbers, got [1.0]"),
        (HEADER + "[1.0, true]\n", "line 2: expected a number, got True"),
        (HEADER + "[1.0, NaN]\n", "line 2: expected a number, got nan"),
        (HEADER + "[1.0, 1e999]\n", "line 2: expected a number, got inf"),
        (HEADER + "[1.0, 1e19]\n", "line 2: expected a number, got 1e+19"),
        (HEADER + f"[1.0, {'9' * 9000}]\n", "line 2: expected JSON"),
        (HEADER + '[1.0, "2"]\n', "line 2: expected a number, got '2'"),
        (HEADER + "[1.0, 2]\n[1.0, 3]\n", "line 3: expected a time after the one before, got 1.0"),
        (HEADER + "[null, 2]\n", "line 2: expected a number, got None"),
        (
            HEADER + '[1.0, 2]\n{"t": 1, "event": ["x"]}\n',
            "line 3: expected a text of 120 characters at most, got ['x']",
        ),
        (HEADER + "[" * 100_000 + "\n", "line 2: expected JSON"),
        (HEADER + "\xff\n", "line 2: expected JSON"),
        (
            HEADER.replace("}", ', "gpus": [7]}') + "[1.0, 2]\n",
            "line 1: gpus: expected objects, got 7",
        ),
        (
            HEADER.replace("}", ', "ports": "many"}') + "[1.0, 2]\n",
            "line 1: ports: expected a list of 32 at most, got 'many'",
        ),
        ("\n" * 5000, "expected 4096 lines at most, got 5000"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, said: str) -> None:
    with pytest.raises(DataError) as error:
        telemetry_of(text.encode("latin-1"), "node1")
    assert error.value.host == "node1" and error.value.kind == "result_invalid"
    assert said in f"{error.value.where.partition('jsonl ')[2]}: {error.value.message}"


def test_every_number_of_a_row_is_its_columns() -> None:
    names = [f"gpu{number}.power_w" for number in range(16)]
    text = telemetry(
        [1.0], {name: lambda at, value=place: float(value) for place, name in enumerate(names)}
    )  # type: ignore[misc]
    read = telemetry_of(text.encode(), "node1")
    assert read and [read.columns[name] for name in names] == [
        (float(place),) for place in range(16)
    ]
    assert json.loads(text.splitlines()[0])["columns"] == ["t", *names]
