"""What a tune and a bisect add to bench.json: read as it was written, and refused where it is
damaged.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import DataError
from orchestrator.features.search.record import (
    BisectRecord,
    Difference,
    Fixed,
    Rung,
    SideRecord,
    TuneRecord,
    add_rung,
    end_search,
    search_of,
)
from orchestrator.inventory.hosts import Host
from orchestrator.plan.bench import Bench
from orchestrator.plan.configurations import configure
from orchestrator.plan.folders import open_framework
from orchestrator.plan.framework import Knob
from orchestrator.plan.limits import Limits
from orchestrator.plan.request import Request
from orchestrator.plan.schedule import Schedule
from orchestrator.record.bench_parts import PlanEntry
from orchestrator.record.bench_record import BenchRecord, new_bench_record
from orchestrator.record.rundir import BenchDir
from orchestrator.record.state_file import read_state

HOSTS = [
    Host("a", "127.0.0.2", gpus=0, slots=2, env={"LC_ALL": "C"}),
    Host("b", "127.0.0.3", gpus=0, slots=2),
]
FOLDER = open_framework("simulated")
CELLS = configure(
    Request("resnet50", shapes=((1, 1), (2, 1)), axes={"dtype": ("fp32",)}), [FOLDER], HOSTS
).specs
PLAN = Bench("b1", CELLS, {"simulated": FOLDER}, Schedule(order="random", seed=7))
KNOB = Knob(
    ("NCCL_ALGO",),
    "",
    (("Ring",), ("Tree",)),
    ("any",),
    default="unset",
    when={"parallel": ("ddp", "none")},
)
SIZE = Knob((), "", ((2,), (0.5,)), multiplies="batch_size")
REFUSED = (((0, 2), "no divisor"),)
TUNE = TuneRecord(
    (KNOB, SIZE),
    5,
    False,
    "",
    {"LC_ALL": "C"},
    (Rung(((1, 0), (2, 1)), 3, 60, False, (0, 1, 0), REFUSED),),
)


def record() -> BenchRecord:
    return new_bench_record(
        PLAN, {}, HOSTS, "a,b", (), Limits(), (), ["orch", "tune"], {"tune": TUNE}
    )


def written(content: dict[str, Any]) -> Any:
    return json.loads(json.dumps(content))


def test_the_record_of_a_tune_reads_back_as_it_was_written() -> None:
    planned = record()
    content = written(planned.as_dict())
    assert BenchRecord.of(content, "b1/bench.json") == planned and search_of(planned) == TUNE
    assert (
        list(content)[list(content).index("planned_with") + 1] == "tune"
    )  # where earlier versions wrote it


def test_the_record_of_a_bisect_reads_back_as_it_was_written_and_a_damaged_one_is_named() -> None:
    sides = SideRecord("a", "2n1g", 100.0, 5), SideRecord("b", "2n1g", 80.0, 4)
    differences = (
        Difference("env.NCCL_ALGO", None, "Ring"),
        Difference("hosts", "a", "b"),
        Difference("options.x", 1.5, True),
    )
    fixed = (Fixed("node.kernel", "6.1", "6.8", "no option sets it"),)
    rung = Rung(
        ((1, 1, 1), (1, 0, 0)),
        3,
        30,
        True,
        (0, 1, 1),
        (((0, 1, 0), "no such host"),),
        (1, 0, 0),
        True,
    )
    bisect = BisectRecord(
        *sides,
        "busbw",
        ("all_reduce", 8),
        "GB/s",
        "higher",
        "slower",
        differences,
        fixed,
        (rung,),
        "verified",
    )
    plan = replace(PLAN, cells=(replace(CELLS[0], hosts=("b", "a")), *CELLS[1:]))
    whole = new_bench_record(plan, {}, HOSTS, "a,b", (), Limits(), (), ["orch"], {"bisect": bisect})
    content = written(whole.as_dict())
    assert BenchRecord.of(content, "b1/bench.json") == whole and search_of(whole) == bisect
    other = {**content["bisect"]["rungs"][0], "verifies": [0, 0, 1]}
    damages = [
        ("before", {"bench": "a", "case": "", "typical": 0, "n": 1}),
        ("key", [None]),
        ("rungs", [{}]),
        ("rungs", [other]),
    ]
    for name, value in damages:
        with pytest.raises(DataError) as caught:
            BenchRecord.of(
                {**content, "bisect": {**content["bisect"], name: value}}, "b1/bench.json"
            )
        assert (
            caught.value.kind == "state_damaged"
            and "bisect: expected the record of a bisect" in caught.value.message
        )


def _damage(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        part: Any = content
        for step in path[:-1]:
            part = part[step]
        part[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(_damage("tune", value=value) for value in (7, [7], {"x": 7})),
        _damage("tune", "ended", value=None),
        _damage("tune", "numerics", value=1),
        _damage("tune", "knobs", 0, "values", value=3),
        _damage("tune", "rungs", 0, "cells", value=[0]),
    ],
)  # fmt: skip
def test_damage_is_named_with_its_field(change: Callable[[dict[str, Any]], None]) -> None:
    content = written(record().as_dict())
    change(content)
    with pytest.raises(
        DataError, match="^b1/bench.json: tune: expected the record of a tune, "
    ) as caught:
        BenchRecord.of(content, "b1/bench.json")
    assert caught.value.kind == "state_damaged"


def test_the_end_of_a_search_touches_only_its_own_field(tmp_path: Path) -> None:
    content = record().as_dict()
    bench = BenchDir.create(tmp_path, content)
    end_search(bench, "confirmed")
    after = read_state(bench.path / "bench.json")
    assert after.pop("tune") == written({**content["tune"], "ended": "confirmed"})
    assert after == {
        "schema": 1,
        **{key: value for key, value in written(content).items() if key != "tune"},
    }


def test_a_rung_brings_its_cells_and_marks_its_runs(tmp_path: Path) -> None:
    plan = Bench("b1", CELLS[:1], {"simulated": FOLDER}, Schedule())
    start = new_bench_record(
        plan, {}, HOSTS, "a,b", (), Limits(), (), ["orch"], {"tune": replace(TUNE, rungs=())}
    )
    bench = BenchDir.create(tmp_path, start.as_dict())
    (rung,), wider = TUNE.rungs, replace(plan, cells=CELLS)
    run = wider.run(CELLS[1], 2, 2)
    add_rung(bench, wider, [run], rung)
    found = bench.record()
    assert found.cells == CELLS and found.runs == (*start.runs, run.run_id) and found.blocks == 2
    assert search_of(found) == replace(TUNE, rungs=(rung,)) and found.plan is not None
    assert found.plan[run.run_id] == PlanEntry(cell=1, repeat=2, rung=0) and found.plan[
        start.runs[0]
    ] == PlanEntry(0, 1)
