"""`orch check` on real nodes: what it finds, what an inventory may expect, and the node that is not
like the others.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rig import QUICK, Controller, Done, running
from tests.support.judge import LIMIT_S

CHECK = ("check", "-f", "simulated")


def checks(done: Done) -> dict[tuple[str, str], dict[str, Any]]:
    """What was judged, by host and check; the last of several."""
    return {(check["host"], check["name"]): check for check in done.json["checks"]}


def expecting(controller: Controller, text: str) -> str:
    """The lab's inventory with groups of which something is expected."""
    path = controller.project / "expecting.yaml"
    path.write_text(
        Path(controller.lab.inventory).read_text().replace("hosts:\n", f"{text}\nhosts:\n", 1)
    )
    return str(path)


def test_nodes_that_another_run_holds_are_named_with_their_owner_in_any_work_directory(
    controller: Controller,
) -> None:
    process = running(controller, nodes=2)
    mine = controller.runs[-1].name
    moved = controller.project / "moved.yaml"
    text = controller.lab.inventory.read_text()
    moved.write_text(text.replace("  vars:\n", "  vars:\n    workdir: /tmp/elsewhere\n", 1))
    for inventory in (str(controller.lab.inventory), str(moved)):
        done = controller.orch(*CHECK, "--json", "--hosts", inventory)
        held = {host: check for (host, name), check in checks(done).items() if name == "held"}
        assert done.code == 0 and sorted(held) == ["node1", "node2"], done
        assert {check["verdict"] for check in held.values()} == {"warning"}
        assert held["node2"]["found"].startswith(f"by run {mine} of root@"), held
        refused = controller.orch("bench", *QUICK, "--nodes", "2", "--hosts", inventory)
        assert (
            refused.code == 1 and f"another run holds this node: run {mine} of root@" in refused.err
        ), refused
    deployed = controller.orch("deploy", "-f", "simulated")
    assert "\nheld " in deployed.out, deployed
    process.send_signal(signal.SIGTERM)
    controller.end(process, 20)
    deployed = controller.orch("deploy", "-f", "simulated")
    assert "same boot" in deployed.out and "\nheld " not in deployed.out, deployed
    again = controller.orch("bench", *QUICK, "--nodes", "2", "--hosts", str(moved))
    assert again.code == 0 and " held" not in again.out + again.err, again


@pytest.fixture
def small_mtu(controller: Controller) -> Iterator[str]:
    """A node whose interface has another MTU than those of the others."""

    def set_mtu(mtu: int) -> None:
        into = [
            "nsenter",
            "-t",
            str(controller.lab.node("node3").pid),
            "-n",
            "ip",
            "link",
            "set",
            "eth0",
            "mtu",
            str(mtu),
        ]
        subprocess.run(into, check=True, timeout=LIMIT_S)

    set_mtu(1400)
    yield "node3"
    set_mtu(1500)


def test_way_limits_and_shared_memory_of_every_node_are_told(controller: Controller) -> None:
    done = controller.orch(*CHECK, "--json")
    assert done.code == 0, done
    found, facts = checks(done), done.json["facts"]
    shm = os.statvfs("/dev/shm")
    for number, name in enumerate(("node1", "node2", "node3", "node4"), start=2):
        # node1 is the master: its own way leads to the next one.
        target = "10.11.0.3" if name == "node1" else "10.11.0.2"
        assert (facts[name]["route"]["to"], facts[name]["route"]["source"]) == (
            target,
            f"10.11.0.{number}",
        )
        assert (facts[name]["route"]["interface"], facts[name]["interface"]["mtu"]) == (
            "eth0",
            1500,
        )
        assert facts[name]["hostname_addresses"] == [f"10.11.0.{number}"]
        assert (
            facts[name]["shm_bytes"] >= shm.f_frsize and facts[name]["limits"]["nofile"][1] >= 1024
        )
        assert found[name, "route"]["found"].startswith("to the master through eth0, MTU 1500")
        assert found[name, "limits"]["found"].startswith("memlock ")
        assert {
            found[name, check]["verdict"] for check in ("route", "hostname", "interface", "limits")
        } == {"ok"}


def test_a_node_with_another_mtu_is_named_and_does_not_stop_a_bench(
    controller: Controller, small_mtu: str
) -> None:
    done = controller.orch(*CHECK)
    assert done.code == 0
    (row,) = [line for line in done.out.splitlines() if line.startswith("alike")]
    assert (
        row.split()[:3] == ["alike", small_mtu, "warning"]
        and "MTU 1400; expected MTU 1500 as on node[1-2,4]" in row
    )
    assert "node[1-2,4]: interface.mtu 1500 · node3: interface.mtu 1400" in done.out
    bench = controller.orch("bench", *QUICK, "--nodes", "4")
    assert (
        bench.code == 0
        and "node3: alike: MTU 1400; expected MTU 1500 as on node[1-2,4]" in bench.err
    ), bench
    (row,) = controller.orch("summarize", "--json").json["rows"]
    assert "MTU differs: 1400 on node3, 1500 on node[1-2,4]" in row["qualifications"]


def test_an_expectation_that_is_not_met_ends_with_three_and_refuses_a_bench(
    controller: Controller,
) -> None:
    inventory = expecting(
        controller,
        'groups:\n  class: {hosts: "node[1-3]", expect: {mtu: 1500}}\n  odd: {hosts: node2, expect: {mtu: 9000}}',
    )
    done = controller.orch(*CHECK, "-H", inventory, "--json")
    found = checks(done)
    assert done.code == 3
    assert {name: found[name, "expect"]["verdict"] for name in ("node1", "node2", "node3")} == {
        "node1": "ok",
        "node2": "failed",
        "node3": "ok",
    }
    assert ("node4", "expect") not in found
    deployed = controller.orch("deploy", "-f", "simulated", "-H", inventory)
    assert deployed.code == 0 and deployed.err.endswith(
        "orch: everything is deployed, but 1 check failed: orch check ends with exit status 3,"
        " and a bench on these hosts would be refused\n"
    ), deployed
    assert (found["node2", "expect"]["found"], found["node2", "expect"]["expected"]) == (
        "mtu 1500",
        "mtu 9000",
    )
    bench = controller.orch("bench", *QUICK, "--nodes", "4", "-H", inventory)
    assert (
        bench.code == 1 and "orch: node2: expect: expected mtu 9000, found mtu 1500" in bench.err
    ), bench
    assert not list(controller.project.glob("runs/*/*/manifest.json"))


def test_only_the_checks_that_are_named_are_shown_and_judged(controller: Controller) -> None:
    inventory = expecting(
        controller, "groups:\n  all4: {hosts: 'node[1-4]', expect: {cores: 100000}}"
    )
    done = controller.orch(*CHECK, "-H", inventory, "--only", "route,framework")
    assert done.code == 0
    assert [line.split()[0] for line in done.out.splitlines() if line.strip()] == [
        "check",
        "simulated",
        "route",
    ]
    assert controller.orch(*CHECK, "-H", inventory, "--only", "reach,expect").code == 3
