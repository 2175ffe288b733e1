"""Spare hosts: they take the places of hosts that are unreachable, unfit, held or lost later, and
the bench says which.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from orchestrator.lab import machine
from tests.e2e.rig import LONG, QUICK, SMALL, Controller
from tests.support import faults, judge


def captures(controller: Controller, node: str) -> set[str]:
    """Return the names of the marks that preflight leaves in the work directory, one for each time
    that it looked.
    """
    home = Path(f"/proc/{controller.lab.node(node).pid}/root{machine.HOME}")
    return {mark.name for mark in home.glob(".orch-node/.capture-*")}


def test_spares_replace_hosts_that_are_unreachable_unfit_or_held(controller: Controller) -> None:
    known = controller.lab.inventory.read_text()
    gone = "hosts:\n  gone: {address: 10.11.0.250, ssh: {connect_timeout_s: 1}}\n"
    (controller.project / "six.yaml").write_text(
        known.replace("hosts:\n", gone).replace(
            "  node1:\n", "  node1:\n    vars: {python: /none}\n"
        )
    )
    words = ("--hosts", "six.yaml", "--gpus", "1")
    looks = captures(controller, "node3")
    done = controller.orch("bench", *QUICK, *words, "--spares", "2", "--nodes", "3", "-v")
    assert done.code == 0, done
    # The bench goes on with the connections and the facts by which the spares were chosen.
    assert (
        done.err.count("node3: connecting: ") == 1
        and len(captures(controller, "node3") - looks) == 1
    )
    # The kernel may know already that nobody has this address, or not say so within the second.
    reason = "(no answer on port 22 within 1 s|no route to the host)"
    assert re.search(f"spare node3 in place of gone: {reason}", done.err), done
    assert "spare node4 in place of node1: simulated: expected " in done.err
    (record,) = controller.project.glob("runs/*/bench.json")
    assert [note.split(":")[0] for note in json.loads(record.read_text())["notes"]] == [
        "spare node3 in place of gone", "spare node4 in place of node1",
    ]  # fmt: skip
    (manifest,) = controller.project.glob("runs/*/*/manifest.json")
    assert [slot["host"] for slot in json.loads(manifest.read_text())["placement"]["slots"]] == [
        "node3",
        "node4",
        "node2",
    ]

    skipped = controller.orch(
        "bench",
        *QUICK,
        *words,
        "-x",
        "node1",
        "--spares",
        "1",
        "--nodes",
        "3",
        "--skip-unreachable",
    )
    assert skipped.code == 0 and "left out, because unreachable: gone" in skipped.err, skipped
    assert [slot["host"] for slot in controller.manifest()["placement"]["slots"]] == [
        "node2",
        "node3",
        "node4",
    ]

    few = controller.orch("bench", *QUICK, *words, "--spares", "1", "--nodes", "4")
    assert few.code != 0 and re.search(f"orch: gone: {reason}", few.err) and "node1: " in few.err, (
        few
    )

    process = controller.start("bench", *LONG, "--nodes", "1", "--gpus", "1")
    status = "held     node1  by run"
    judge.wait_for(
        lambda: status in controller.orch("status").out, 30, "no run holds the first node"
    )
    held = controller.orch(
        "bench", *QUICK, "--gpus", "1", "--spares", "1", "--nodes", "1", "-x", "node2", "-v"
    )
    assert (
        held.code == 0
        and "spare node4 in place of node1: another run holds this node: " in held.err
    ), held
    assert "node3: connecting" not in held.err, held  # no configuration uses it
    process.terminate()
    assert controller.end(process, 60).code == 143


def test_a_spare_takes_the_place_of_a_node_that_dies_in_mid_bench_and_all_repeats_are_on_the_same_nodes(
    controller: Controller,
) -> None:
    known = controller.lab.inventory.read_text()
    text = known.replace("    port: 22\n", "    port: 22\n    connect_timeout_s: 2\n").replace(
        '    interface: "eth0"\n', ""
    )
    (controller.project / "cluster.yaml").write_text(text)
    words = (
        "--hosts",
        "cluster.yaml",
        "-x",
        "node3",
        "--gpus",
        "1",
        "--nodes",
        "2",
        "--spares",
        "1",
        "--repeats",
        "2",
    )
    process = controller.start(
        "bench", *SMALL, "--set", "compute_ms=50", "--steps", judge.steps(40), *words
    )
    controller.wait_for_starts(2)
    faults.crash(controller.lab, "node2")
    done = controller.end(process, 60)
    assert done.code == 0, done
    record = json.loads((controller.bench / "bench.json").read_text())
    assert record["replaced"] == {"node2": "node4"}
    (note,) = record["notes"]
    assert note.startswith("node4 in place of node2: ") and note.endswith(
        "; 2 runs of its configurations are repeated"
    )
    assert note in " ".join(done.out.split()), done.out
    manifests = {
        run: json.loads((controller.bench / run / "manifest.json").read_text())
        for run in record["runs"]
    }
    hosts = [
        [slot["host"] for slot in manifest["placement"]["slots"]] for manifest in manifests.values()
    ]
    assert hosts == [["node1", "node4"]] * 2
    events = controller.events()
    assert [event["event"] for event in events if event["event"] in ("preflight", "superseded", "replaced")] == [
        "preflight", "superseded", "superseded", "replaced",
    ]  # fmt: skip
    # No interface is in this inventory: the one of the route is found, and handed to the launch
    # scripts.
    facts = manifests[record["runs"][0]]["facts"]["node4"]["interface"]
    assert (facts["name"], facts["why"]) == ("eth0", "the route to the other nodes")


def test_a_bench_is_resumed_on_spares_for_the_nodes_that_died_meanwhile(
    controller: Controller,
) -> None:
    text = controller.lab.inventory.read_text().replace(
        "    port: 22\n", "    port: 22\n    connect_timeout_s: 2\n"
    )
    (controller.project / "cluster.yaml").write_text(text)
    words = (
        "--hosts",
        "cluster.yaml",
        "--gpus",
        "1",
        "--nodes",
        "2",
        "--spares",
        "2",
        "--repeats",
        "2",
    )
    process = controller.start(
        "bench", *SMALL, "--set", "compute_ms=50", "--steps", judge.steps(40), *words
    )
    controller.wait_for_starts(2)
    process.kill()
    for node in ("node1", "node2"):
        faults.crash(controller.lab, node)
    done = controller.orch("resume", "--json", timeout_s=90)
    assert done.code == 0, done
    record = json.loads((controller.bench / "bench.json").read_text())
    assert record["replaced"] == {"node1": "node3", "node2": "node4"}
    manifests = [
        json.loads((controller.bench / run / "manifest.json").read_text()) for run in record["runs"]
    ]
    assert [
        [slot["host"] for slot in manifest["placement"]["slots"]] for manifest in manifests
    ] == [["node3", "node4"]] * 2
    (abandoned,) = (run for run in record["superseded"] if run.endswith("-r2"))
    outcome = json.loads((controller.bench / abandoned / "manifest.json").read_text())["outcome"]
    assert (
        outcome["state"] == "lost"
        and "the controller died in mid-run, and this node is lost" in outcome["error"]["message"]
    )
    assert [note for note in done.json["notes"] if note.startswith("node3 in place of node1: ")]
