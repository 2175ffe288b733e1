"""orch bench --dry-run: every value and file, the hosts that are selected, and no secret."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.nowhere import INVENTORY
from tests.support.benches import bench
from tests.support.cli_project import Project


@pytest.mark.parametrize(
    "damage",
    [
        {"placement": None}, {"placement": []}, {"placement": {"slots": None}}, {"placement": {"slots": []}},
        {"placement": {"slots": [5]}}, {"framework": "pytorch"}, {"framework": None}, {"spec": 5}, {"payload": 5},
    ],
)  # fmt: skip
def test_a_damaged_earlier_bench_is_passed_over(project: Project, damage: dict[str, Any]) -> None:
    earlier = bench(project.path / "runs", "20260101-000000-aaaa", "2026-01-01T00:00:00Z", [1.0])
    (run,) = earlier.runs()
    manifest = {
        name: value for name, value in run.manifest_content().items() if name != "seal"
    } | damage
    (run.path / "manifest.json").write_text(
        json.dumps(manifest)
    )  # as somebody leaves it who edits it by hand
    (earlier.path / "events.jsonl").write_text(
        '{"event": "planned", "run": "x"}\n{"event": "begun", "at": "now"}\n'
    )
    words = ("bench", "resnet50", "-f", "simulated", "--nodes", "2", "--budget", "10m", "--dry-run")
    done = project.orch(*words)
    assert done.returncode == 0 and "== simulated resnet50 1n1g, world size 1" in done.stdout, (
        done.stderr
    )


def test_a_dry_run_lists_what_it_skips_and_the_variables_of_each_configuration(
    project: Project,
) -> None:
    words = (
        "bench",
        "resnet50",
        "-f",
        "simulated",
        "--nodes",
        "1,9",
        "--gpus",
        "1",
        "--env",
        "NCCL_ALGO=Ring,Tree",
    )
    done = project.orch(*words, "--dry-run")
    assert done.returncode == 0, done
    start = done.stdout.index("2 configurations are skipped, because impossible:\n")
    too_many = "--nodes: expected 9 hosts, 4 selected: no[1-4]"
    assert done.stdout[start:].splitlines()[1:3] == [
        f"  simulated resnet50 9n1g NCCL_ALGO=Ring: {too_many}", f"  simulated resnet50 9n1g NCCL_ALGO=Tree: {too_many}",
    ]  # fmt: skip
    for line in ("   env.NCCL_ALGO = Tree  (command line)", "export NCCL_ALGO=Tree"):
        assert line in done.stdout.splitlines()
    as_json = project.orch(*words, "--dry-run", "--json")
    assert (
        "skipped, because impossible: simulated resnet50 9n1g NCCL_ALGO=Ring; simulated"
        in as_json.stderr
    )
    assert {run["spec"]["env"]["NCCL_ALGO"] for run in json.loads(as_json.stdout)} == {
        "Ring",
        "Tree",
    }
    assert too_many in project.refused(*words, "--strict", "--dry-run")


def test_a_dry_run_contacts_nobody_and_shows_every_value_with_its_origin_and_every_file(
    project: Project,
) -> None:
    (project.path / "choices.yaml").write_text("steps: 40\noptions: {compute_ms: 7}\n")
    done = project.orch(
        "bench", "resnet50", "-f", "simulated", "--nodes", "2", "--gpus", "2", "--repeats", "1", "--dtype", "fp16", "--file",
        "choices.yaml", "--set", "seed=5", "--dry-run",
    )  # fmt: skip
    assert done.returncode == 0, done
    assert done.stderr == "inventory: inventory/cluster.yaml (the default), 4 of 4 hosts\n"
    text = done.stdout
    assert (
        text.splitlines()[0]
        == "2 runs; port 20000 stands for the rendezvous port that is chosen when a run starts"
    )
    for line in (
        "== simulated resnet50 1n1g, world size 1",
        "== simulated resnet50 2n2g, world size 4",
        "   dtype = fp16  (command line)",
        "   nodes = 1  (baseline)",
        "   steps = 40  (run file)",
        "   batch_size = 128  (simulated default)",
        "   options.compute_ms = 7.0  (run file)",
        "   options.seed = 5  (command line)",
        "   options.gradient_mb = 0.0  (simulated default)",
        "   node_rank 1: no2 (nowhere-2.invalid), ranks 2-3, devices 0,1",
        "-- no[1-2]: env.sh (0600)",
        "export NCCL_IB_DISABLE=0",
        "-- no1: launch.sh (0700)",
        "-- no2: launch.sh (0700)",
        "export WORLD_SIZE=4 MASTER_ADDR=nowhere-1.invalid MASTER_PORT=20000 NODE_RANK=1",
        "start 3 1",
    ):
        assert line in text.splitlines(), line
    assert text.count("-- ") - text.count("rank_wrapper.py -- ") == 5
    assert not (project.path / "runs").exists() and not (project.path / ".orch").exists()


def test_a_dry_run_as_json_holds_the_same_files(project: Project) -> None:
    done = project.orch(
        "bench", "vgg16", "--nodes", "4", "--no-baseline", "--repeats", "2", "--dry-run", "--json"
    )
    plans = json.loads(done.stdout)
    assert [(plan["repeat"], plan["spec"]["model"], plan["placement"]["world_size"]) for plan in plans] == [
        (1, "vgg16", 32), (2, "vgg16", 32),
    ]  # fmt: skip
    assert [node["slot"]["host"] for node in plans[0]["nodes"]] == ["no1", "no2", "no3", "no4"]
    assert [file["path"] for file in plans[0]["nodes"][3]["files"]] == ["env.sh", "launch.sh"]
    assert "--node_rank 3" in plans[0]["nodes"][3]["files"][1]["content"]
    assert (
        plans[0]["origins"]["nodes"] == "command line"
        and plans[0]["origins"]["gpus"] == "inventory"
    )


def test_lists_make_cells_and_repeats_run_them_forwards_and_backwards(project: Project) -> None:
    done = project.orch(
        "bench", "resnet50", "--shape", "1n1g,4n8g", "--dtype", "fp32,fp16", "--repeats", "2", "--dry-run", "--json"
    )  # fmt: skip
    plans = json.loads(done.stdout)
    cells = [(plan["spec"]["dtype"], plan["spec"]["nodes"], plan["repeat"]) for plan in plans]
    once = [("fp32", 1), ("fp32", 4), ("fp16", 1), ("fp16", 4)]
    assert cells == [*((*cell, 1) for cell in once), *((*cell, 2) for cell in reversed(once))]
    assert len({plan["run_id"] for plan in plans}) == 8


def test_a_secret_of_the_environment_is_not_shown_by_a_dry_run(project: Project) -> None:
    path = project.path / "inventory" / "cluster.yaml"
    path.write_text(
        INVENTORY.replace('NCCL_IB_DISABLE: "0"', 'NCCL_IB_DISABLE: "0", HF_TOKEN: hush-hush')
        + "secrets: [HF_TOKEN]\n"
    )
    for form in ([], ["--json"]):
        done = project.orch("bench", "resnet50", "--nodes", "1", "--dry-run", *form)
        assert done.returncode == 0 and "HF_TOKEN" in done.stdout
        assert "hush-hush" not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("hosts", "names"),
    [
        ("@pair", ["no1", "no2"]),
        ("no[2-3]", ["no2", "no3"]),
        ("nowhere-4.invalid", ["no4"]),
        ("no1,no4", ["no1", "no4"]),
    ],
)
def test_hosts_are_selected_by_expression_from_the_projects_inventory(
    project: Project, hosts: str, names: list[str]
) -> None:
    done = project.orch("bench", "resnet50", "-H", hosts, "--no-baseline", "--dry-run", "--json")
    assert [slot["host"] for slot in json.loads(done.stdout)[0]["placement"]["slots"]] == names
    assert (
        f"inventory: inventory/cluster.yaml (the default), {len(names)} of 4 hosts" in done.stderr
    )


def test_an_expression_that_no_inventory_knows_stands_for_itself(project: Project) -> None:
    done = project.orch(
        "bench",
        "resnet50",
        "-H",
        "10.11.0.[2-5]",
        "--gpus",
        "8",
        "--no-baseline",
        "--dry-run",
        "--json",
    )
    assert [slot["address"] for slot in json.loads(done.stdout)[0]["placement"]["slots"]] == [
        f"10.11.0.{n}" for n in (2, 3, 4, 5)
    ]


def test_the_logins_of_an_inventory_are_shown_and_none_that_it_leaves_to_ssh(
    project: Project,
) -> None:
    (project.path / "racks.yaml").write_text(
        "schema: 1\ndefaults: {gpus: 1, ssh: {user: bench}}\nhosts:\n"
        "  g1: {address: g1.invalid, ssh: {jump: 'me@gate:2222'}}\n"
        "  g2: {address: g2.invalid, ssh: {port: 2200}}\n"
    )
    words = ("bench", "resnet50", "--nodes", "2", "--dry-run")
    lines = project.orch(*words, "-H", "racks.yaml").stdout.splitlines()
    assert "login on g1: user bench, jump me@gate:2222" in lines
    assert "login on g2: user bench, port 2200" in lines
    assert not [line for line in project.orch(*words).stdout.splitlines() if "login" in line]


def test_hosts_that_the_inventory_does_not_list_are_told_from_its_groups(project: Project) -> None:
    (project.path / "inventory" / "cluster.yaml").write_text(
        "schema: 1\ndefaults: {gpus: 1}\nhosts: {gpu06: {}, gpu08: {}}\ngroups: {rack1: [gpu06]}\n"
    )
    words = ("bench", "resnet50", "--nodes", "1", "--gpus", "1", "--dry-run", "-H")
    assert "a group of inventory/cluster.yaml. write @rack1" in project.refused(*words, "rack1")
    said = project.orch(*words, "gpu6").stderr
    assert (
        "inventory: inventory/cluster.yaml does not list gpu6, so its settings do not apply; "
        "did you mean 'gpu06'?" in said
    )


def test_where_the_inventory_comes_from_is_said(project: Project) -> None:
    other = project.path / "other.yaml"
    other.write_text("schema: 1\nhosts: {x1: {address: x1.invalid, gpus: 1}}\n")
    words = ("bench", "resnet50", "--dry-run")
    assert "inventory: other.yaml (--hosts), 1 of 1 hosts" in project.orch(
        *words, "-H", "./other.yaml"
    ).stderr.replace("./", "")
    assert (
        "other.yaml (ORCH_HOSTS), 1 of 1 hosts"
        in project.orch(*words, ORCH_HOSTS=str(other)).stderr
    )
    (project.path / ".orch").mkdir()
    (project.path / ".orch" / "project.json").write_text(
        json.dumps({"schema": 1, "inventory": str(other)})
    )
    assert "other.yaml (the last deploy), 1 of 1 hosts" in project.orch(*words).stderr


def test_a_dry_run_sends_no_control_code_of_a_template_or_an_inventory(project: Project) -> None:
    path = project.path / "inventory" / "cluster.yaml"
    path.write_text(INVENTORY.replace('NCCL_IB_DISABLE: "0"', 'A: "x\\e[31m\\a"'))
    words = ("bench", "resnet50", "-f", "simulated", "--nodes", "1", "--gpus", "1", "--dry-run")
    assert "export A='x\\x1b[31m\\x07'" in project.orch(*words).stdout
    refused = project.refused(*words, "--set", "a\norch: all is well=1")
    assert refused.count("\n") == 0 and refused.startswith("orch: --set a\\norch: all is well: ")
