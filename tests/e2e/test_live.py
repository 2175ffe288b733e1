"""What can be asked and done from a second terminal while a bench runs, and from any directory
afterwards.
"""

from __future__ import annotations

import getpass
import json
import os
import signal
import socket
import time
from pathlib import Path

from tests.e2e.rig import LONG, QUICK, Controller
from tests.support import judge


def test_status_logs_and_cancel_during_a_run(controller: Controller) -> None:
    process = controller.start("bench", *LONG, "--nodes", "2", "--gpus", "1")
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/*/manifest.json")), 20, "no run was planned"
    )
    controller.wait_for_step(2)
    run = controller.runs[-1].name

    status = controller.orch("status")
    assert status.code == 0 and f"running  {run}  on node[1-2]\n" in status.out, status
    assert f"bench    {controller.bench.name}  1 open; run by root@" in status.out
    answer = controller.orch("status", "--json").json
    assert (
        sorted(answer["nodes"]) == ["node1", "node2", "node3", "node4"] and answer["errors"] == {}
    )
    assert list(answer["nodes"]["node1"]["runs"]) == [run] and answer["nodes"]["node3"] == {
        "runs": {},
        "owner": None,
    }
    assert json.loads(answer["nodes"]["node2"]["owner"])["run_id"] == run

    one = controller.orch("logs", "--rank", "1")
    begins = "node2 rank-1.out: orch rank=1 local_rank=0 world_size=2 node_rank=1 host=node2 "
    assert one.code == 0 and one.out.startswith(begins), one
    follower = controller.start("logs", "-f")
    raw = controller.start("logs", "-f", "--raw")
    collected_early = controller.orch("collect")
    assert collected_early.code == 4 and "still running on the node" in collected_early.out, (
        collected_early
    )

    begin = time.monotonic()
    cancel = controller.orch("cancel")
    assert cancel.code == 0 and f"stopped {run} on node[1-2]\n" in cancel.out, cancel
    assert "no orch processes left on node[1-4]" in cancel.out
    again = controller.orch("cancel", "--json")
    assert again.code == 0 and again.json == {
        "nodes": ["node1", "node2", "node3", "node4"],
        "stopped": {},
        "errors": [],
    }
    judge.wait_until_clean(controller.lab, 1.0)
    done = controller.end(process, 10)
    assert done.code == 1 and judge.in_time(time.monotonic() - begin, 10), done
    # Somebody stopped it: who that was is said, and no node is blamed.
    said = f"cancelled with orch cancel by {getpass.getuser()}@{socket.gethostname()}"
    assert (
        f"  stopping on every node: {said}\n  interrupted in " in done.err
        and f"{said}. orch resume" in done.err
    ), done
    assert "failed" not in done.err and "orch: node" not in done.err, done
    outcome = controller.manifest()["outcome"]
    assert (outcome["state"], outcome["error"]["kind"], outcome["error"].get("host", "")) == (
        "interrupted",
        "interrupted",
        "",
    )
    followed, logged = (
        controller.end(follower, 10),
        (controller.runs[-1] / "logs" / "node1" / "rank-0.out").read_text(),
    )
    assert followed.code == 0 and followed.out == "".join(
        f"node1 rank-0.out: {line}\n" for line in logged.splitlines()
    )
    assert controller.end(raw, 10).out == logged
    controller.assert_all_bytes_are_home("node1", "node2")
    assert (
        controller.orch("logs", "--rank", "1", "--raw").out
        == (controller.runs[-1] / "logs" / "node2" / "rank-1.out").read_text()
    )
    rest = controller.orch("status")
    assert "no orch processes on node[1-4]" in rest.out and "held" not in rest.out


def test_cancelling_one_bench_leaves_another_alone(controller: Controller) -> None:
    first = controller.start("bench", *LONG, "--nodes", "1", "--gpus", "1", "--hosts", "node1")
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/*/manifest.json")), 20, "no run was planned"
    )
    mine = controller.bench.name
    second = controller.start(
        "bench",
        *LONG,
        "--nodes",
        "1",
        "--gpus",
        "1",
        "--hosts",
        "node2",
        "--steps",
        judge.steps(40),
    )

    def training() -> set[str]:
        return {one.node for one in judge.ours(controller.lab) if "train_" in one.cmdline}

    judge.wait_for(lambda: training() == {"node1", "node2"}, 20, "one of the two does not run")
    cancel = controller.orch("cancel", mine)
    assert (
        cancel.code == 0
        and f"process {first.pid}" in cancel.out
        and "stopping its controller" in cancel.out
    ), cancel
    assert controller.end(first, 10).code == 143
    assert controller.end(second, 30).code == 0


def test_check_says_what_every_node_is_and_folds_those_that_agree(controller: Controller) -> None:
    done = controller.orch("check", "-f", "simulated")
    assert done.code == 0
    rows = {line.split()[0]: line for line in done.out.splitlines()[1:] if line.strip()}
    assert set(rows) >= {"runner", "simulated", "slots", "disk", "interface"}
    for of_this_machine in (
        "load",
        "login",
        "means",
    ):  # whatever else it does, how long a login takes then, and the second line of a warning
        rows.pop(of_this_machine, "")
    assert all("node[1-4]" in row and " ok " in row for row in rows.values()), done.out
    assert controller.orch("check", "--only", "reach").out == "reached all 4 hosts\n"
    facts = controller.orch("check", "-f", "simulated", "--json").json["facts"]
    assert [facts[name]["hostname"] for name in sorted(facts)] == [
        "node1",
        "node2",
        "node3",
        "node4",
    ]


def test_an_unfit_node_is_named_with_the_remedy_before_anything_starts(
    controller: Controller,
) -> None:
    text = controller.lab.inventory.read_text()
    broken = controller.project / "broken.yaml"
    broken.write_text(text.replace("  node3:\n", "  node3:\n    vars: {python: /no/such/python}\n"))
    check = controller.orch("check", "-f", "simulated", "--hosts", str(broken))
    assert check.code == 3 and "/no/such/python" in check.out, check
    bench = controller.orch("bench", *QUICK, "--nodes", "4", "--hosts", str(broken))
    assert (
        bench.code == 1
        and "orch: node3: simulated: expected the probe of simulated to run" in bench.err
    ), bench
    assert "set vars.python of this host in the inventory" in bench.err
    assert judge.ours(controller.lab) == [] and not list(
        controller.project.glob("runs/*/*/manifest.json")
    )


def test_one_machine_under_two_names_is_refused(controller: Controller) -> None:
    text = controller.lab.inventory.read_text()
    twice = controller.project / "twice.yaml"
    twice.write_text(text + "  again:\n    address: 10.11.0.2\n")
    done = controller.orch("bench", *QUICK, "--nodes", "5", "--hosts", str(twice))
    assert done.code in (1, 2) and "node1" in done.err and "again" in done.err, done
    assert judge.ours(controller.lab) == []


def test_commands_follow_the_inventory_of_the_last_deploy(controller: Controller) -> None:
    controller.environment |= {"ORCH_HOSTS": "", "ORCH_LAB": ""}  # as in a shell that knows no lab
    inventory = controller.project / "machines.yaml"
    lines = controller.lab.inventory.read_text(encoding="utf-8").splitlines(keepends=True)
    inventory.write_text(
        "".join(line for line in lines if "lab_private" not in line), encoding="utf-8"
    )
    given = controller.orch("deploy", "-f", "simulated", "--hosts", str(inventory))
    assert given.code == 0, given
    done = controller.orch("bench", *QUICK, "--nodes", "2")
    assert (
        done.code == 0 and f"inventory: {inventory} (the last deploy), 4 of 4 hosts" in done.err
    ), done


def test_a_lab_is_left_alone_where_no_command_knows_of_it(controller: Controller) -> None:
    """Its addresses may be those of real machines there."""
    controller.environment |= {"ORCH_HOSTS": "", "ORCH_LAB": ""}
    refused = controller.orch("check", "--hosts", str(controller.lab.inventory))
    assert (
        refused.code == 2
        and "it is a node of a lab" in refused.err
        and "orch lab exec" in refused.err
    ), refused


def test_progress_is_plain_lines_where_stderr_is_no_terminal(controller: Controller) -> None:
    done = controller.orch("bench", *QUICK, "--nodes", "2", "--repeats", "2")
    assert done.code == 0 and "\x1b" not in done.err + done.out
    # Other tests run on these processors: whether preflight warns of their load is chance.
    lines = [
        line
        for line in done.err.splitlines()
        if not line.startswith("inventory: ") and ": load: " not in line
    ]
    assert lines[0] == f"bench: {controller.bench}"
    assert (
        lines[1] == f"[1/2] {controller.runs[0].name}"
        and lines[4] == f"[2/2] {controller.runs[1].name}"
    )
    assert all(line.startswith("  started on node[1-2], skew ") for line in (lines[2], lines[5]))
    assert (
        all(line.startswith("  finished in ") for line in (lines[3], lines[6])) and len(lines) == 7
    )
    # The speed of a run that is home is the one that the table is made of.
    speeds = [
        json.loads((run / "results" / "throughput.json").read_text())["throughput"]
        for run in controller.runs
    ]
    assert [line.split(", ")[1] for line in (lines[3], lines[6])] == [
        f"{one['samples_per_s']:.2f} samples/s" for one in speeds
    ]


def test_the_memory_of_the_controller_stays_small(controller: Controller) -> None:
    process = controller.start("bench", *LONG, "--nodes", "4", "--gpus", "1")
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/*/manifest.json")), 20, "no run was planned"
    )
    controller.wait_for_step(10)
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{process.pid}/status").read_text().splitlines()
    )
    os.kill(process.pid, signal.SIGINT)
    assert controller.end(process, 20).code == 130
    assert int(status["VmHWM"].split()[0]) < 120 * 1024


def test_a_secret_reaches_the_program_and_nothing_else(controller: Controller) -> None:
    """It is in no argument list, in none of our files, and gone from the node after the run."""
    secret = "s3cr3t-of-the-test"
    text = controller.lab.inventory.read_text()
    inventory = controller.project / "secret.yaml"
    inventory.write_text(
        text.replace(
            "defaults:\n", f"secrets: [HF_TOKEN]\ndefaults:\n  env: {{HF_TOKEN: {secret}}}\n", 1
        )
    )
    process = controller.start(
        "bench", *LONG, "--nodes", "2", "--gpus", "1", "--hosts", str(inventory)
    )
    seen: set[str] = set()
    judge.wait_for(
        lambda: list(controller.project.glob("runs/*/*/manifest.json")), 20, "no run was planned"
    )
    begin = time.monotonic()
    while time.monotonic() - begin < 3:
        seen |= {
            one.cmdline
            for name in ("node1", "node2")
            for one in judge.processes(controller.lab, name)
        }
    pid = controller.rank_process("node2").pid
    assert f"HF_TOKEN={secret}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()
    os.kill(process.pid, signal.SIGINT)
    done = controller.end(process, 20)
    assert done.code == 130 and not [line for line in seen if secret in line]
    assert secret not in done.out + done.err
    homes = [controller.lab.node(name).home / ".orch-node" for name in ("node1", "node2")]
    for top in (controller.project / "runs", *homes):
        assert [
            path
            for path in top.rglob("*")
            if path.is_file() and secret.encode() in path.read_bytes()
        ] == []
