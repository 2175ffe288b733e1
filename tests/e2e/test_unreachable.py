"""Hosts that do not answer, left out on request, and what a bench without them says."""

from __future__ import annotations

import json
import re

from tests.e2e.rig import QUICK, Controller


def test_hosts_that_cannot_be_reached_are_left_out_and_named(controller: Controller) -> None:
    known = controller.lab.inventory.read_text().replace(
        "hosts:\n", "hosts:\n  gone: {address: 10.11.0.250, ssh: {connect_timeout_s: 1}}\n"
    )
    (controller.project / "five.yaml").write_text(known)
    words = ("--hosts", "five.yaml", "--skip-unreachable")
    # The kernel may know already that nobody has this address, or not say so within the second.
    reason = "(no answer on port 22 within 1 s|no route to the host)"
    said = re.compile(rf"left out, because unreachable: gone \({reason}\)")
    refused = controller.orch("check", "--only", "reach", "--hosts", "five.yaml")
    assert refused.code == 3 and re.search(f"orch: gone: {reason}", refused.err), refused
    assert "? to go on without it: --skip-unreachable\n" in refused.err
    assert "reached all 4 hosts" in controller.orch("check", "--only", "reach", *words).out
    done = controller.orch("bench", *QUICK, "--nodes", "4", "--gpus", "1", *words)
    assert done.code == 0 and said.search(done.err) and said.search(" ".join(done.out.split())), (
        done
    )
    few = controller.orch("bench", *QUICK, "--nodes", "5", "--gpus", "1", *words)
    assert few.code == 2 and "expected 5 hosts, 4 selected" in few.err, few
    (controller.project / "tiny.yaml").write_text(
        "title: tiny\nstages: [{name: checks, checks: [runner], framework: simulated, run: 5s}]\n"
    )
    certificate = controller.orch("accept", "tiny.yaml", "--json", *words)
    assert certificate.code != 5 and said.search(certificate.err), certificate
    nodes = [node["host"] for node in json.loads(certificate.out)["nodes"]]
    assert nodes == ["node1", "node2", "node3", "node4"]
    none = controller.orch("check", "--only", "reach", "-x", "node[1-4]", *words)
    assert none.code == 3 and re.search(f"orch: gone: {reason}", none.err), none
    assert "--skip-unreachable" not in none.err
    # Nothing is left to go on with.
    alone = controller.orch("check", "--only", "reach", "-x", "node[1-4]", "--hosts", "five.yaml")
    assert alone.code == 3 and "--skip-unreachable" not in alone.err, alone
