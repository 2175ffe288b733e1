"""Faults in the middle of a run, injected and judged from outside: what is stopped, how soon, and
what is said and kept.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from orchestrator.plan.limits import Limits
from tests.e2e.rig import GRACE_S, LONG, QUICK, SMALL, Controller, running
from tests.support import faults, judge
from tests.support.faultlab import few_inodes, listener
from tests.support.judge import LIMIT_S

LEASE_S = 3.0


def test_a_signal_between_two_runs_is_no_success(controller: Controller) -> None:
    process = controller.start("bench", *QUICK, "--nodes", "2", "--repeats", "30")
    judge.wait_for(
        lambda: any(event["event"] == "finished" for event in seen(controller)),
        20,
        "no run has finished",
    )
    os.kill(process.pid, signal.SIGINT)
    done = controller.end(process, 20)
    assert done.code == 130, done
    assert judge.ours(controller.lab) == []
    assert len(controller.runs) < 30


def test_a_signal_to_a_controller_that_stands_still_is_heeded_when_it_goes_on(
    controller: Controller,
) -> None:
    process = running(controller, nodes=2)
    for number in (signal.SIGSTOP, signal.SIGINT):
        os.kill(process.pid, number)
    time.sleep(0.5)  # longer than it waits for an event at a time
    os.kill(process.pid, signal.SIGCONT)
    done = controller.end(process, 10)
    assert done.code == 130, done
    assert judge.ours(controller.lab) == []


def test_a_node_that_boots_anew_is_the_cause_also_where_others_failed_before_its_line_was_lost(
    controller: Controller,
) -> None:
    process = running(controller, nodes=2)
    os.kill(process.pid, signal.SIGSTOP)  # what happens now it hears all at once
    faults.kill(controller.lab, "node1")
    record = controller.node_run("node2") / "exit.json"
    judge.wait_for(record.exists, 10, "the rank that lost its peer does not end")
    faults.boot(controller.lab, "node1")
    os.kill(process.pid, signal.SIGCONT)
    done = controller.end(process, 30)
    assert done.code == 3 and "orch: node1: it rebooted during the run" in done.err, done
    assert controller.manifest()["outcome"]["error"]["kind"] == "node_rebooted"


def test_a_stop_names_no_node_before_it_is_known_which_one_failed(controller: Controller) -> None:
    # The other node's rank complains of the one that is gone before anybody has found out that its
    # supervisor is.
    process = running(controller, nodes=2)
    os.kill(controller.supervisor("node2").pid, signal.SIGKILL)
    done = controller.end(process, 30)
    if "no sign of life for" in done.err:
        pytest.skip("the machine is too busy: its silence was noticed before its end")
    assert done.code == 1 and "  failed in " in done.err, done
    (stop,) = (
        line for line in done.err.splitlines() if line.startswith("  stopping on every node: ")
    )
    assert stop == "  stopping on every node: a node of the run has failed", done
    (verdict,) = (line for line in done.err.splitlines() if line.startswith("  failed in "))
    assert ": node2: the node runner was killed" in verdict, done


def seen(controller: Controller) -> list[dict[str, object]]:
    """Return the events so far, none while there is no bench yet."""
    return controller.events() if list(controller.project.glob("runs/*/events.jsonl")) else []


def test_a_killed_controller_leaves_nothing_behind_after_one_lease_and_loses_no_byte(
    controller: Controller,
) -> None:
    process = running(controller, "--lease", str(LEASE_S))
    os.kill(process.pid, signal.SIGKILL)
    judge.wait_until_clean(controller.lab, LEASE_S + 2.0 + GRACE_S)
    assert process.wait(LIMIT_S) == -signal.SIGKILL
    collect = controller.orch("collect")
    assert collect.code == 0 and collect.out.count(" complete") == 5, collect
    controller.assert_all_bytes_are_home("node1", "node2", "node3", "node4")
    for host in ("node1", "node4"):
        record = controller.exit_record(host)
        assert (record["state"], record["reason"].partition(":")[0]) == ("stopped", "lease_expired")
    before = {
        path: path.stat().st_mtime_ns for path in controller.bench.rglob("*") if path.is_file()
    }
    again = controller.orch("collect")
    assert (again.code, again.out) == (
        0,
        f"bench {controller.bench.name}: 1 of 1 runs were already complete\n",
    )
    assert {
        path: path.stat().st_mtime_ns for path in controller.bench.rglob("*") if path.is_file()
    } == before
    rows = controller.orch("summarize", "--json").json["rows"]
    assert [(row["n"], row["failed"], row["median"]) for row in rows] == [(0, 1, None)]
    assert controller.orch("bench", *QUICK, "--nodes", "4").code == 0, (
        "the nodes are free again without anybody's help"
    )


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        (
            "exit3",
            ["rank 1 ended with exit code 3", "last lines of rank-1.out on node2", "orch rank=1 "],
        ),
        (
            "exit0",
            ["rank 1 ended with exit code 0 after step 2 of", "last lines of rank-1.out on node2"],
        ),
        ("sigkill", ["rank 1 ended with SIGKILL"]),
        ("oom-print", ["rank 1 ended with exit code 1", "out of memory"]),
    ],
)
def test_a_rank_that_fails_by_itself_is_reported_with_its_last_lines(
    controller: Controller, mode: str, words: list[str]
) -> None:
    fault = ("--set", "fail_at_step=3", "--set", "fail_rank=1", "--set", f"fail_mode={mode}")
    done = controller.orch("bench", *QUICK, "--nodes", "2", "--gpus", "1", *fault)
    assert done.code == 1 and all(word in done.err for word in words), done
    assert judge.ours(controller.lab) == []


@pytest.mark.parametrize("victim", ["node1", "node3"])
def test_a_node_that_loses_power_is_declared_lost_and_the_others_are_stopped(
    controller: Controller, victim: str
) -> None:
    process = running(controller)
    others = [node.name for node in controller.lab.nodes if node.name != victim]
    faults.crash(controller.lab, victim)
    begin = time.monotonic()
    judge.wait_until_clean(controller.lab, 5.0 + GRACE_S + 1.0)
    done = controller.end(process, 30)
    assert done.code == 3 and f"orch: {victim}: no sign of life for" in done.err, (
        done,
        time.monotonic() - begin,
    )
    assert controller.manifest()["outcome"]["error"]["kind"] == "node_lost"
    controller.assert_all_bytes_are_home(*others)
    faults.boot(controller.lab, victim)
    assert judge.ours(controller.lab) == []
    status = controller.orch("status")
    assert status.code == 0 and "no orch processes on node[1-4]" in status.out, status
    assert controller.orch("bench", *QUICK, "--nodes", "4").code == 0


def test_a_frozen_node_is_noticed_although_its_connection_stays_open(
    controller: Controller,
) -> None:
    process = running(controller)
    faults.freeze(controller.lab, "node4")
    frozen = time.monotonic()
    judge.wait_for(
        lambda: not [one for one in judge.ours(controller.lab) if one.node != "node4"],
        5.0 + GRACE_S + 1.0,
        "stop",
    )
    faults.thaw(controller.lab, "node4")
    done = controller.end(process, 30)
    assert done.code == 3 and "orch: node4: no sign of life for" in done.err, (
        done,
        time.monotonic() - frozen,
    )
    assert controller.orch("cancel").code == 0
    assert judge.ours(controller.lab) == []


def test_time_in_which_the_controller_was_held_up_is_nobodys_silence(
    controller: Controller,
) -> None:
    process = running(controller, "--steps", judge.steps(90), nodes=2)
    faults.freeze(controller.lab, "node2")
    began = time.monotonic()
    while time.monotonic() - began < 4.5:
        os.kill(process.pid, signal.SIGSTOP)
        time.sleep(0.8)
        os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.1)
    faults.thaw(controller.lab, "node2")
    done = controller.end(process, 40)
    assert done.code == 0, done
    silence_s = controller.manifest()["outcome"]["answers"]["node2"]["longest_silence_s"]
    assert silence_s > Limits().lost_s + 1.0, "it was silent for longer than a node may be"


def test_of_two_controllers_exactly_one_wins_and_the_other_learns_who_holds_the_nodes(
    controller: Controller, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = Controller(controller.lab, tmp_path_factory.mktemp("rival"))
    words = (
        "bench",
        *SMALL,
        "--nodes",
        "4",
        "--set",
        "compute_ms=300",
        "--steps",
        "24",
        "--warmup-steps",
        "1",
    )
    for _ in range(2):
        racing = [one.start(*words) for one in (controller, other)]
        ended = [controller.end(process, 60) for process in racing]
        assert sorted(done.code for done in ended) == [0, 1], ended
        loser = next(done for done in ended if done.code == 1)
        winner = (controller, other)[ended.index(next(done for done in ended if done.code == 0))]
        assert "another run holds this node" in loser.err and winner.runs[-1].name in loser.err, (
            loser
        )
        assert judge.ours(controller.lab) == []


def test_a_node_held_by_a_dead_controllers_run_is_refused_naming_it_and_free_after_the_lease(
    controller: Controller,
) -> None:
    began = time.monotonic()
    assert controller.orch("deploy", "-f", "simulated").code == 0
    # In which another bench gets as far as that node, on a busy machine too.
    lease_s = max(4.0, round(6 * (time.monotonic() - began), 1))
    process = running(controller, "--lease", str(lease_s), nodes=1)
    held = controller.runs[-1].name
    os.kill(process.pid, signal.SIGKILL)
    refused = controller.orch("bench", *QUICK, "--nodes", "2")
    assert (
        refused.code == 1
        and held in refused.err
        and "node1: another run holds this node" in refused.err
    ), refused
    assert controller.runs == [], "the refused bench has made a run"
    judge.wait_until_clean(controller.lab, lease_s + 2 + GRACE_S)
    assert controller.orch("bench", *QUICK, "--nodes", "2").code == 0


NO_ROOM = """
import sys; sys.argv[0] = "orch"
from orchestrator import errors
from orchestrator.record import rundir
write = rundir.BenchDir.event
def event(self, name, /, **fields):
    if name == "started":
        raise errors.DataError("no room", kind="storage_full")
    return write(self, name, **fields)
rundir.BenchDir.event = event
from orchestrator.cli.process import run; run()
"""


def test_a_run_whose_start_could_not_be_written_down_has_started_and_comes_home(
    controller: Controller,
) -> None:
    program = (sys.executable, "-c", NO_ROOM)
    done = controller.end(
        controller.start(
            "bench", *LONG, "--nodes", "2", "--gpus", "1", "--lease", "3", program=program
        ),
        60,
    )
    assert done.code == 4 and "no room" in done.err, done
    judge.wait_until_clean(controller.lab, 3.0 + 2.0 + GRACE_S)
    collect = controller.orch("collect")
    assert collect.code == 0 and "never started" not in collect.out, collect
    controller.assert_all_bytes_are_home("node1", "node2")


def test_hosts_that_cannot_be_reached_are_named_together_in_time_and_nothing_starts(
    controller: Controller,
) -> None:
    text = controller.lab.inventory.read_text()
    extra = "".join(f"  gone{n}:\n    address: 10.11.0.{n}\n" for n in (200, 201))
    extra += "  shut:\n    address: 10.11.0.4\n    ssh: {port: 2222}\n  mute:\n    address: 10.11.0.3\n    ssh: {port: 2223}\n"
    inventory = controller.project / "some-are-gone.yaml"
    inventory.write_text(text + extra)
    with listener(controller.lab, "node2", 2223):
        for words in (
            ("deploy", "-f", "simulated"),
            ("bench", *QUICK, "--nodes", "8", "--gpus", "1"),
        ):
            begin = time.monotonic()
            done = controller.orch(*words, "--hosts", str(inventory))
            took = time.monotonic() - begin
            assert done.code == 3 and judge.in_time(took, 12), (took, done)
            messages = "\n".join(
                line for line in done.err.splitlines() if line.startswith("orch: ")
            )
            assert "gone[200-201]: " in messages, done
            assert "shut: connection refused on port 2222" in messages
            assert "mute: " in messages and "node" not in messages.replace("node_", ""), done
            assert judge.ours(controller.lab) == []
    assert not list(controller.project.glob("runs/*/*/manifest.json"))


def test_a_node_that_is_never_ready_is_named_and_no_rank_starts_anywhere(
    controller: Controller,
) -> None:
    assert controller.orch("deploy", "-f", "simulated").code == 0
    with few_inodes(controller.lab, "node3", "~/.orch-node/nodes/node3"):
        process = controller.start("bench", *QUICK, "--nodes", "4")
        seen = False
        while process.poll() is None:
            seen = seen or any("train_" in one.cmdline for one in judge.ours(controller.lab))
        done = controller.end(process, 10)
    assert done.code != 0 and "node3" in done.err and "Traceback" not in done.err, done
    assert not seen
