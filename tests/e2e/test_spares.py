"""Spare hosts: they take the places of hosts that are unreachable, unfit or held, and the bench says which."""

from __future__ import annotations

import json
import re

from tests.e2e.rig import LONG, QUICK, Controller
from tests.support import judge


def test_spares_replace_hosts_that_are_unreachable_unfit_or_held(controller: Controller) -> None:
    known = controller.lab.inventory.read_text()
    gone = "hosts:\n  gone: {address: 10.11.0.250, ssh: {connect_timeout_s: 1}}\n"
    (controller.project / "six.yaml").write_text(
        known.replace("hosts:\n", gone).replace("  node1:\n", "  node1:\n    vars: {python: /none}\n")
    )
    words = ("--hosts", "six.yaml", "--gpus", "1")
    done = controller.orch("bench", *QUICK, *words, "--spares", "2", "--nodes", "3")
    assert done.code == 0, done
    # The kernel may know already that nobody has this address, or not say so within the second.
    reason = "(no answer on port 22 within 1 s|no route to the host)"
    assert re.search(f"spare node3 in place of gone: {reason}", done.err), done
    assert "spare node4 in place of node1: simulated: expected " in done.err
    (record,) = controller.project.glob("runs/*/bench.json")
    assert [note.split(":")[0] for note in json.loads(record.read_text())["notes"]] == [
        "spare node3 in place of gone", "spare node4 in place of node1",
    ]  # fmt: skip
    (manifest,) = controller.project.glob("runs/*/*/manifest.json")
    assert [slot["host"] for slot in json.loads(manifest.read_text())["placement"]["slots"]] == ["node3", "node4", "node2"]

    few = controller.orch("bench", *QUICK, *words, "--spares", "1", "--nodes", "4")
    assert few.code != 0 and re.search(f"orch: gone: {reason}", few.err) and "node1: " in few.err, few

    process = controller.start("bench", *LONG, "--nodes", "1", "--gpus", "1")
    status = "held     node1  by run"
    judge.wait_for(lambda: status in controller.orch("status").out, 30, "no run holds the first node")
    held = controller.orch("bench", *QUICK, "--gpus", "1", "--spares", "1", "--nodes", "1", "-x", "node[2-3]")
    assert held.code == 0 and "spare node4 in place of node1: another run holds this node: " in held.err, held
    process.terminate()
    assert controller.end(process, 60).code == 143
