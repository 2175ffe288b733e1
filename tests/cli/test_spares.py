"""Spares before a bench begins: whose places they take, and that their devices are recorded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.connection_cache import ConnectionCache
from orchestrator.api.prepare import begin_bench, recall_interfaces
from orchestrator.api.selection import Selection
from orchestrator.cli.spares import with_spares
from orchestrator.errors import Faults
from orchestrator.inventory import open_inventory
from orchestrator.inventory.devices import with_devices
from orchestrator.record import Project
from orchestrator.record.pending_work import reopen
from tests.support.fake_bench import LIMITS, FakeBench

HELD = {"held_by": "run r9 of ann@desk"}
UNFIT = {"disk_error": "Read-only file system"}


def bench_in(folder: Path, **more: Any) -> FakeBench:
    folder.mkdir()
    return FakeBench(folder, spares=["c"], **more)


def selected(rig: FakeBench) -> Selection:
    project = Project.here({"ORCH_PROJECT": str(rig.source.parent)})
    return Selection(
        project, open_inventory(str(rig.source)), tuple(rig.hosts), str(rig.source), str(rig.source)
    )


def members(
    rig: FakeBench, opened: ConnectionCache | None = None, *, waits: bool = False
) -> tuple[list[str], list[str]]:
    """Return the hosts of the bench, and the spares that are left."""
    opened = opened or ConnectionCache()
    opened.cluster = rig.cluster
    selection = with_spares(
        selected(rig), rig.spares, rig.plan, opened, accept_new=False, waits=waits
    )
    return [host.name for host in selection.hosts], [host.name for host in opened.spares]


def test_a_host_that_no_configuration_uses_is_left_alone_and_takes_no_spare(tmp_path: Path) -> None:
    rig = bench_in(tmp_path / "one", nodes=(1,))
    rig.b.away = True
    assert members(rig) == (["a", "b"], ["c"])
    rig = bench_in(tmp_path / "other", nodes=(1,))
    rig.a.away = rig.b.away = True
    assert members(rig) == (["c", "b"], [])
    assert rig.b.contacts == 0


def test_a_bench_that_waits_keeps_a_held_host_for_which_no_spare_is_left(tmp_path: Path) -> None:
    rig = bench_in(tmp_path / "bench")
    rig.a.facts, rig.b.facts = HELD, UNFIT
    with pytest.raises(Faults, match="another run holds this node"):
        members(rig)
    assert members(bench_in(tmp_path / "free"), waits=True) == (["a", "b"], ["c"])
    rig = bench_in(tmp_path / "held")
    rig.a.facts, rig.b.facts = HELD, UNFIT
    opened = ConnectionCache()
    assert members(rig, opened, waits=True) == (
        ["a", "c"],
        [],
    )  # a spare mends what no waiting does
    assert not opened.facts  # preflight looks again after waiting
    rig = bench_in(tmp_path / "unfit")
    rig.a.facts = rig.b.facts = UNFIT
    with pytest.raises(Faults, match="Read-only file system"):
        members(rig, waits=True)


def test_the_devices_that_were_chosen_of_a_spare_are_recorded_so_that_the_bench_can_go_on(
    tmp_path: Path,
) -> None:
    rig = bench_in(tmp_path / "bench")
    hosts = tuple(with_devices(host, "0,1") for host in rig.hosts)
    opened = ConnectionCache(
        rig.cluster, spares=tuple(with_devices(host, "2,3") for host in rig.spares)
    )
    selection = replace(selected(rig), hosts=hosts)
    plan, root = replace(rig.plan, bench_id="bench-2"), tmp_path / "others"
    begin: dict[str, Any] = {"argv": ["orch"], "accept_new": False, "opened": opened}
    controller = begin_bench(plan, (), selection, hosts, LIMITS, (), root, **begin)
    (spare,) = reopen(controller.bench).spares
    assert (spare.name, spare.vars["cuda_visible_devices"]) == ("c", "2,3")
    controller.ownership.release()


def test_a_dry_run_shows_the_interface_that_preflight_will_find_among_the_hosts_that_are_used(
    tmp_path: Path,
) -> None:
    rig = bench_in(tmp_path / "bench")
    selection = replace(selected(rig), hosts=(*rig.hosts, *rig.spares))
    facts = {}
    for host in selection.hosts:
        last = host.address.rpartition(".")[2]
        networks = [
            {
                "name": name,
                "state": "up",
                "mtu": 1500,
                "kind": "1",
                "speed_mbit": mbit,
                "addresses": [f"{base}.{last}/24"],
            }
            for name, base, mbit in (("eth0", "10.11.0", 1000), ("ib0", "10.12.0", 200_000))
        ]
        routes = {other.address: "eth0" for other in selection.hosts if other is not host}
        route = {"interface": "eth0", "local": False}
        facts[host.name] = {
            "networks": networks if host.name != "c" else networks[:1],
            "routes": routes,
            "route": route,
        }
    selection.project.deployed.parent.mkdir()
    entries = {name: {"facts": {"simulated": values}} for name, values in facts.items()}
    selection.project.deployed.write_text(json.dumps({"hosts": entries}))
    found = recall_interfaces(rig.plan, selection)
    assert {name: values["interface"]["name"] for name, values in found.items()} == {
        "a": "ib0",
        "b": "ib0",
    }
