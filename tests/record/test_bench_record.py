"""What bench.json says: read as it was written, by this version and by earlier ones, and refused
where it is damaged.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.options import check_secrets
from orchestrator.errors import ConfigError, DataError
from orchestrator.features.profile.extra_runs import read_extra_runs
from orchestrator.inventory.hosts import Host
from orchestrator.plan.bench import Bench
from orchestrator.plan.configurations import configure
from orchestrator.plan.expectations import expectation_of
from orchestrator.plan.folders import open_framework
from orchestrator.plan.limits import Limits
from orchestrator.plan.request import Request
from orchestrator.plan.schedule import Schedule
from orchestrator.plan.spec import Skipped
from orchestrator.record.bench_parts import PlanEntry
from orchestrator.record.bench_record import BenchRecord, new_bench_record
from orchestrator.record.rundir import BenchDir
from orchestrator.record.state_file import read_state

HOSTS = [
    Host("a", "127.0.0.2", gpus=0, slots=2, env={"TOKEN": "hush", "LC_ALL": "C"}),
    Host("b", "127.0.0.3", gpus=0, slots=2),
]
FOLDER = open_framework("simulated")
CELLS = configure(
    Request("resnet50", shapes=((1, 1), (2, 1)), axes={"dtype": ("fp32",)}), [FOLDER], HOSTS
).specs
PLAN = Bench(
    "b1",
    CELLS,
    {"simulated": FOLDER},
    Schedule(order="random", seed=7, repeats=2, until_ci=0.02, budget_s=600.0),
)
BASE = Path(FOLDER.framework.folder).parent
SKIPPED = Skipped(
    "simulated",
    "resnet50",
    {"nodes": 9, "gpus": 1, "options.seed": "5", "env.NCCL_ALGO": None},
    "too few hosts",
)


def record() -> BenchRecord:
    whole = new_bench_record(
        PLAN,
        {"old": "b0"},
        HOSTS,
        "a,b",
        ("TOKEN",),
        Limits(lease_s=7.0),
        (Path("/x"), BASE),
        ["orch", "bench"],
    )
    plan = {**(whole.plan or {}), "late": PlanEntry(1, 3, rung=0, attempt=2)}
    more = {
        "label": "before the update",
        "skipped": (SKIPPED,),
        "expect": (expectation_of("busbw >= 3 nodes=2"),),
    }
    more |= {
        "devices": {"a": "1,2"},
        "job": ("--time=60", "--nodes=2"),
        "extra": read_extra_runs("torch:steps=3:ranks=1"),
    }
    more |= {"spares": ("c",), "replaced": {"b": "c"}, "lab": "/p/.orch/lab"}
    return replace(
        whole, superseded={"gone": "late"}, plan=plan, notes=("a note",), left_out=("late",), **more
    )


def written(content: dict[str, Any]) -> Any:
    return json.loads(json.dumps(content))


def test_a_record_reads_back_as_it_was_written() -> None:
    whole = record()
    assert BenchRecord.of(written(whole.as_dict()), "b1/bench.json") == whole
    assert whole.templates == (
        BASE,
    )  # a folder that no framework comes from is none that a resume needs
    silent = [one.name for one in fields(whole) if getattr(whole, one.name) in (None, (), {}, "")]
    assert silent == ["added"], "a field that proves nothing"


def test_the_keys_of_the_file_stay_what_they_were() -> None:
    content = written(record().as_dict())
    assert list(content) == [
        "bench_id", "created", "orch", "argv", "inventory", "templates", "runs", "borrowed", "superseded", "cells", "plan",
        "course", "limits", "planned_with", "label", "lab", "skipped", "devices", "replaced", "profile", "expect", "job",
        "notes", "left_out", "spares",
    ]  # fmt: skip
    assert content["plan"]["late"] == {"cell": 1, "repeat": 3, "rung": 0, "attempt": 2}
    assert content["plan"][content["runs"][1]] in (
        {"cell": 0, "repeat": 1},
        {"cell": 1, "repeat": 1},
    )
    assert content["profile"] == "torch:steps=3:ranks=1"
    assert (
        content["label"] == "before the update"
        and content["skipped"][0]["reason"] == "too few hosts"
    )
    assert (
        content["course"]["until_ci"] == 0.02
        and content["cells"][1]["origins"]["dtype"] == "command line"
    )
    assert content["planned_with"]["hosts"]["a"]["env"][
        "LC_ALL"
    ] == "C" and "hush" not in json.dumps(content)


def test_extra_runs_that_are_traced_have_ids_of_their_own_and_are_no_runs_of_the_table() -> None:
    whole = record()
    assert list(whole.extra_run_cells.values()) == list(CELLS) and len(whole.extra_run_cells) == 2
    assert not set(whole.extra_run_cells) & {*whole.runs, *(whole.plan or {})}
    assert replace(whole, extra=None).extra_run_cells == {}


def test_a_secret_that_has_changed_is_known_without_its_value() -> None:
    planned = BenchRecord.of(written(record().as_dict()), "b1/bench.json").planned_with
    assert (
        planned and planned.changed_secrets(HOSTS) == [] and "hush" not in json.dumps(planned.hosts)
    )
    changed = replace(HOSTS[0], env={"TOKEN": "other", "LC_ALL": "D"})
    assert planned.changed_secrets([changed, HOSTS[1]]) == ["TOKEN of a"]
    assert planned.changed_secrets([replace(HOSTS[0], env={})]) == ["TOKEN of a"]
    with pytest.raises(ConfigError) as caught:
        check_secrets(record(), [changed], "add --raw")
    assert "other values of TOKEN of a" in caught.value.message and "other" not in caught.value.hint
    check_secrets(record(), HOSTS, "")


def test_an_earlier_version_wrote_one_folder_of_frameworks_or_none() -> None:
    content = written(record().as_dict())
    read = [
        BenchRecord.of({**content, "templates": value}, "b1/bench.json").templates
        for value in ("/a", None, ["/a", "/b"])
    ]
    assert read == [(Path("/a"),), (), (Path("/a"), Path("/b"))]


def test_an_earlier_version_wrote_less() -> None:
    oldest = BenchRecord.of(
        {"bench_id": "b0", "created": 1735689600.5, "runs": ["r1"]}, "b0/bench.json"
    )
    assert (oldest.runs, oldest.created_order, oldest.plan, oldest.limits) == (
        ("r1",),
        (1735689600.5, ""),
        None,
        None,
    )
    assert BenchRecord.of({}, "x/b7/bench.json").bench_id == "b7"
    content = written(record().as_dict())
    del (
        content["course"],
        content["notes"],
        content["left_out"],
        content["label"],
        content["skipped"],
    )
    assert BenchRecord.of(content, "").schedule == Schedule(order="interleaved")  # as it ran


def test_benches_are_in_order_of_their_making() -> None:
    seconds, earlier, later = (
        BenchRecord("b", created=text).created_order
        for text in ("1735689600.5", "2025-01-02", "2025-11-30")
    )
    assert seconds > later > earlier


def _damage(*path: str | int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        part: Any = content
        for step in path[:-1]:
            part = part[step]
        part[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("key", "change"),
    [
        *((key, _damage(key, value=value)) for value in (7, [7], {"x": 7}) for key in (
            "bench_id", "orch", "argv", "inventory", "templates", "runs", "borrowed", "superseded", "cells", "plan", "course",
            "limits", "planned_with", "notes", "left_out", "label", "skipped", "profile",
        )),
        ("profile", _damage("profile", value="nsys")),
        ("skipped", _damage("skipped", 0, "choices", "nodes", value="9")),
        ("skipped", _damage("skipped", 0, "choices", "dtype", value=["fp16"])),

        ("created", _damage("created", value=[])),
        ("cells", _damage("cells", 0, value={"spec": {}})),
        ("cells", _damage("cells", 0, "spec", "nodes", value="2")),
        ("cells", _damage("cells", 0, "origins", value={"nodes": 3})),
        ("plan", _damage("plan", "late", value={"cell": 0})),
        ("plan", _damage("plan", "late", "cell", value=2)),
        ("plan", _damage("plan", "late", "cell", value=-1)),
        ("plan", _damage("plan", "late", "repeat", value=True)),
        ("plan", _damage("plan", "late", "rung", value="0")),
        ("course", _damage("course", "surprise", value=1)),
        ("limits", _damage("limits", "beat_s", value=[])),
        ("limits", _damage("limits", "lease_s", value=-1)),
        ("planned_with", _damage("planned_with", "hosts", "a", "env", value=[])),
    ],
)  # fmt: skip
def test_damage_is_named_with_its_field(key: str, change: Callable[[dict[str, Any]], None]) -> None:
    content = written(record().as_dict())
    change(content)
    with pytest.raises(DataError, match=f"^b1/bench.json: {key}: expected ") as caught:
        BenchRecord.of(content, "b1/bench.json")
    assert caught.value.kind == "state_damaged"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("runs", "r1", "runs: expected a list of run ids, got 'r1'"),
        ("label", 7, "label: expected text, got 7"),
        (
            "plan",
            {"r1": {"cell": 0, "repeat": True}},
            "plan: expected the cell and the repeat of each run, r1.repeat: expected a whole number, got True",
        ),
    ],
)
def test_damage_says_what_was_expected_and_what_came(key: str, value: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        BenchRecord.of({**written(record().as_dict()), key: value}, "b1/bench.json")
    assert caught.value.message == message or str(caught.value).endswith(message)


def test_a_change_touches_only_its_own_fields_and_keeps_what_this_version_does_not_know(
    tmp_path: Path,
) -> None:
    content = {**record().as_dict(), "of_a_later_version": [1]}
    bench = BenchDir.create(tmp_path, content)
    bench.change(lambda record: replace(record, label="after it"))
    assert read_state(bench.path / "bench.json") == {
        "schema": 1,
        **written(content),
        "label": "after it",
    }
