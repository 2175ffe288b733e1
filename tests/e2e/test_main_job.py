"""The main job over real SSH: deploy, bench, collect, summarize, and what each leaves behind."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.rig import ORCH, QUICK, SMALL, Controller, outer_environment
from tests.support import judge
from tests.support.flips import program_refuses, refused
from tests.support.judge import LIMIT_S
from tests.support.trainers import needs


def test_the_whole_job_from_deploy_to_summary(controller: Controller) -> None:
    for node in controller.lab.nodes:
        shutil.rmtree(node.home / ".orch-node", ignore_errors=True)
    first = controller.orch("deploy", "-f", "simulated")
    assert first.code == 0 and "bytes to node[1-4]" in first.out, first
    again = controller.orch("deploy", "-f", "simulated")
    assert again.code == 0 and "simulated: already on node[1-4]" in again.out, again

    bench = controller.orch(
        "bench", *SMALL, "--baseline", "--nodes", "2,4", "--repeats", "2", "--set", "compute_ms=20", "--steps", "8",
        "--warmup-steps", "2", "--order", "interleaved",  # whose last run is on all nodes
    )  # fmt: skip
    assert bench.code == 0, bench
    rows = re.findall(r"^ *(\dn\dg) {2}", bench.out, re.MULTILINE)  # notes name shapes, too
    assert rows == ["1n1g", "2n2g", "4n2g"]
    manifests = [json.loads((run / "manifest.json").read_text()) for run in controller.runs]
    assert [f"{m['spec']['nodes']}n{m['spec']['gpus']}g r{m['repeat']}" for m in manifests] == [
        "1n1g r1", "2n2g r1", "4n2g r1", "1n1g r2", "2n2g r2", "4n2g r2",
    ]  # fmt: skip
    for manifest in manifests:
        assert manifest["outcome"]["state"] == "finished" and manifest["outcome"]["error"] is None
        assert all(
            state == {"checked": True, "left": []}
            for state in manifest["outcome"]["clean"].values()
        )
        assert sorted(manifest["facts"]) == [
            slot["host"] for slot in manifest["placement"]["slots"]
        ]
    controller.assert_all_bytes_are_home("node1", "node2", "node3", "node4")
    assert judge.ours(controller.lab) == []

    collect = controller.orch("collect")
    assert (collect.code, collect.out) == (
        0,
        f"bench {controller.bench.name}: 6 of 6 runs were already complete\n",
    )
    forms = {
        form: controller.orch("summarize", "--format", form)
        for form in ("table", "markdown", "csv", "json", "junit", "prometheus", "mllog")
    }
    assert {form: done.code for form, done in forms.items()} == dict.fromkeys(forms, 0)
    rows = forms["json"].json["rows"]
    assert [(row["shape"], row["n"], row["failed"]) for row in rows] == [
        ("1n1g", 2, 0),
        ("2n2g", 2, 0),
        ("4n2g", 2, 0),
    ]
    assert rows[0]["speedup"] == 1 and all(row["simulated"] for row in rows)
    # Eight ranks need not be faster than four where forty processes want two cores.
    assert all(1 < row["speedup"] < 16 for row in rows[1:])
    table = {
        row["nodes"] + "x" + row["gpus"]: row
        for row in csv.DictReader(io.StringIO(forms["csv"].out))
    }
    assert {shape: row["median"] for shape, row in table.items()} == {
        f"{row['nodes']}x{row['gpus']}": f"{row['median']:.2f}" for row in rows
    }
    assert (
        forms["markdown"].out.count("| 4n2g |") == 1 and "SIMULATED" in forms["table"].out.upper()
    )
    named, _, table_text = forms["table"].out.partition("\n")
    assert named.startswith("bench 20") and table_text == bench.out
    assert forms["junit"].out.count("<testcase ") == 3 and "<failure" not in forms["junit"].out
    assert forms["prometheus"].out.count("\norch_speedup_ratio{") == 3
    assert forms["mllog"].out.count('"key": "tracked_stats"') == 3


def test_nodes_are_sampled_while_a_run_lasts_and_not_where_nobody_wants_it(
    controller: Controller,
) -> None:
    words = (
        *SMALL,
        "--set",
        "compute_ms=100",
        "--steps",
        "40",
        "--warmup-steps",
        "5",
        "--nodes",
        "2",
    )
    began = time.monotonic()
    sampled = controller.orch("bench", *words, "--json")
    (run,) = sampled.json["telemetry"]
    assert [node["host"] for node in run["nodes"]] == ["node1", "node2"]
    # 35 steps of 100 ms, and what a busy machine adds to them.
    assert 3.4 < run["seconds"] < time.monotonic() - began
    assert all(
        node["samples"] >= 2 and node["sent_bytes_per_s"] > 0 and node["gpus"] == []
        for node in run["nodes"]
    ), run
    controller.assert_all_bytes_are_home("node1", "node2")
    assert judge.ours(controller.lab) == []
    assert controller.orch("bench", *words, "--no-telemetry", "--json").json["telemetry"] == []
    assert not list(controller.bench.glob("*/logs/*/telemetry.jsonl"))


def test_the_summary_needs_nothing_but_the_run_directory(
    controller: Controller, tmp_path: Path
) -> None:
    assert controller.orch("bench", *QUICK, "--nodes", "2").code == 0
    shown = controller.orch("summarize", "--json")
    elsewhere = tmp_path / "laptop"
    shutil.copytree(controller.bench, elsewhere / "copied")
    shutil.rmtree(controller.project / "runs")
    done = subprocess.run(
        ["unshare", "--net", *ORCH, "summarize", "copied", "--json"],
        cwd=elsewhere, env=outer_environment(elsewhere), capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, shown.out), done.stderr


def test_a_bench_is_sealed_and_proven_elsewhere_and_refused_after_one_changed_byte(
    controller: Controller, tmp_path: Path
) -> None:
    assert controller.orch("bench", *QUICK, "--nodes", "1,2", "--repeats", "2").code == 0
    sealed = controller.orch("archive", "--output", "sealed.tar", "--json").json
    shutil.rmtree(controller.project / "runs")
    proven = controller.orch("verify", "sealed.tar", "--seal", sealed["seal"], "--json")
    assert (proven.code, proven.json) == (0, sealed) and sealed["measured"] == sealed["runs"] == 4
    found, passed = refused(tmp_path / "sealed.tar", 12, 1, program_refuses)
    assert (found.total(), passed) == (12, [])


def test_the_skew_of_the_start_is_recorded_and_true_within_its_bound(
    controller: Controller,
) -> None:
    assert controller.orch("bench", *QUICK, "--nodes", "4", "--repeats", "3").code == 0
    for run in controller.runs:
        start = json.loads((run / "manifest.json").read_text())["start"]
        # The nodes of a lab share one clock, so their own start times are comparable as they stand.
        truth = [host["started_mono_s"] for host in start["hosts"].values()]
        assert sorted(start["hosts"]) == ["node1", "node2", "node3", "node4"]
        assert abs(start["skew_s"] - (max(truth) - min(truth))) <= 2 * start["bound_s"] + 1e-4, (
            start
        )
        assert judge.in_time(start["skew_s"], 0.1) and start["skew_s"] >= 0 and start["bound_s"] > 0


def test_each_rank_ran_once_with_its_own_number(controller: Controller) -> None:
    assert controller.orch("bench", *QUICK, "--nodes", "3").code == 0
    seen = []
    for index, host in enumerate(("node1", "node2", "node3")):
        record = controller.exit_record(host)
        assert (record["state"], record["code"], record["node_rank"], record["reason"]) == (
            "finished",
            0,
            index,
            "",
        )
        seen += [
            (rank["rank"], rank["local_rank"], rank["code"], rank["signal"])
            for rank in record["ranks"]
        ]
    assert seen == [
        (0, 0, 0, None),
        (1, 1, 0, None),
        (2, 0, 0, None),
        (3, 1, 0, None),
        (4, 0, 0, None),
        (5, 1, 0, None),
    ]


def test_a_second_bench_borrows_the_first_ones_baseline(controller: Controller) -> None:
    common = ("bench", *QUICK, "--baseline", "--gpus", "1")
    assert controller.orch(*common, "--nodes", "2").code == 0
    first = controller.bench
    base = next(run for run in controller.runs if "1n1g" in run.name)
    second = controller.orch(*common, "--nodes", "3")
    assert second.code == 0 and controller.bench != first
    record = json.loads((controller.bench / "bench.json").read_text())
    assert record["borrowed"] == {base.name: first.name} and len(record["runs"]) == 2
    rows = controller.orch("summarize", "--json").json["rows"]
    assert [row["shape"] for row in rows] == ["1n1g", "3n1g"] and rows[1]["speedup"] is not None
    assert controller.orch("collect").code == 0
    shutil.rmtree(first)
    assert controller.orch("summarize", "--json").json["rows"] == rows

    changed = controller.orch(*common, "--nodes", "2", "--set", "seed=1")
    assert changed.code == 0
    assert json.loads((controller.bench / "bench.json").read_text())["borrowed"] == {}


def test_everything_we_write_is_private(controller: Controller) -> None:
    program = ("sh", "-c", 'umask 0; exec "$@"', "sh", *ORCH)
    done = controller.end(controller.start("bench", *QUICK, "--nodes", "2", program=program), 60)
    assert done.code == 0, done
    homes = [controller.lab.node(name).home / ".orch-node" for name in ("node1", "node2")]
    own = {run.name for run in controller.runs}
    for top in (controller.project / "runs", *homes):
        for path in (top, *top.rglob("*")):
            place = path.relative_to(top).parts
            if "runs" in place[:-1] and not own & set(place):
                continue  # runs of other tests may hold what an engine of containers wrote
            # A symbolic link has no mode of its own.
            assert path.is_symlink() or path.lstat().st_mode & 0o077 == 0, (
                oct(path.lstat().st_mode),
                path,
            )
    assert not list(homes[0].glob(f"nodes/node1/runs/{controller.runs[-1].name}/env.sh")), (
        "the variables are gone after the run"
    )


def test_a_real_network_on_two_nodes_with_torch(controller: Controller) -> None:
    needs("torch")
    controller.environment["OMP_NUM_THREADS"] = "1"
    done = controller.orch(
        "bench", "resnet50", "--nodes", "2", "--gpus", "1", "--steps", "3", "--warmup-steps", "1", "--repeats", "1",
        "--no-baseline", timeout_s=100,
    )  # fmt: skip
    assert done.code == 0, done
    row = controller.orch("summarize", "--json").json["rows"][0]
    assert (row["framework"], row["shape"], row["world_size"], row["n"]) == (
        "pytorch",
        "2n1g",
        2,
        1,
    )
    assert not row["simulated"] and row["median"] > 0 and "torch" in row["hardware"]
    facts = controller.manifest()["facts"]
    assert facts["node1"]["framework"]["torch"] == facts["node2"]["framework"]["torch"]


def test_collectives_on_two_nodes_are_a_table_of_bandwidths(controller: Controller) -> None:
    """No framework is named and no baseline made; JSON, table and evidence agree."""
    needs("torch")
    done = controller.orch(
        "bench", "allreduce", "--nodes", "2", "--gpus", "1", "--repeats", "2", "--set", "sizes='1024,65536'",
        "--set", "size_seconds=0.1", timeout_s=110,
    )  # fmt: skip
    assert done.code == 0, done
    assert [run.name.split(".", 1)[1] for run in controller.runs] == [
        "001-collectives-allreduce-2n1g-fp32-r1", "002-collectives-allreduce-2n1g-fp32-r2",
    ]  # fmt: skip
    document = controller.orch("summarize", "--json").json
    rows = document["rows"]
    assert {(row["n"], row["failed"], row["device"], row["shape"]) for row in rows} == {
        (2, 0, "cpu", "2n1g")
    }
    assert document["sheets"] == []
    by_key = {
        (row["metric"], row["key"]["size_bytes"], row["key"]["in_place"]): row["value"]
        for row in rows
    }
    assert sorted(by_key) == [
        (name, size, "yes") for name in ("algbw", "busbw", "time") for size in (1024, 65536)
    ]
    for size in (1024, 65536):
        # Two ranks: 2 (n - 1) / n is 1, so both bandwidths are size over time.
        bandwidth, time_us = by_key["busbw", size, "yes"], by_key["time", size, "yes"]
        assert by_key["algbw", size, "yes"] == bandwidth == pytest.approx(size / time_us / 1e3)
    note = "out of place was not measured: gloo has no call from one buffer to another"
    assert all(note in row["qualifications"] for row in rows)
    for text in (
        "collectives allreduce fp32 cpu size_seconds=0.1 sizes=1024,65536",
        "best busbw 2n1g: ",
        "busbw GB/s",
    ):
        assert text in done.out
    compared = controller.orch("compare", controller.bench.name, controller.bench.name, "--json")
    assert {pair["verdict"] for pair in compared.json["pairs"]} == {
        "same runs"
    } and compared.code == 0
