"""`orch dataset make` on real nodes, and preflight's eye for nodes that hold different data."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.rig import Controller
from tests.support.faultlab import ssh

SMALL = ("dataset", "make", "--images", "6", "--size", "16")
CHECK = ("check", "-f", "simulated", "--only", "data")
"""Without a folder it would also ask each node for PyTorch, which takes seconds to import."""


def with_data_dir(controller: Controller, directory: str, *others: str) -> str:
    """The lab's inventory with a place for data; ``others``: that of the nodes after the first."""
    text = Path(controller.lab.inventory).read_text()
    text = text.replace("  vars:\n", f"  vars:\n    data_dir: {directory}\n", 1)
    for number, other in enumerate(others, start=2):
        line = f"    address: 10.11.0.{number + 1}\n"
        assert line in text
        text = text.replace(line, f"{line}    vars: {{data_dir: {other}}}\n")
    path = controller.project / "with_data.yaml"
    path.write_text(text)
    return str(path)


def test_every_node_gets_the_same_data_set_once(controller: Controller) -> None:
    inventory = with_data_dir(controller, "/var/tmp/orch-data-once")
    first = controller.orch(*SMALL, "-H", inventory, "--json")
    assert first.code == 0, first.err
    assert sorted(first.json) == ["node1", "node2", "node3", "node4"]
    assert len({one["sha256"] for one in first.json.values()}) == 1 and all(
        one["made"] for one in first.json.values()
    )
    again = controller.orch(*SMALL, "-H", inventory)
    assert (again.code, again.out.count("\n")) == (0, 1)
    assert again.out.startswith("node[1-4]: 6 images, ") and again.out.endswith("already there\n")


def test_nodes_with_different_data_fail_a_check(controller: Controller) -> None:
    inventory = with_data_dir(controller, "/var/tmp/orch-data-one", "/var/tmp/orch-data-two")
    assert controller.orch(*SMALL, "-H", inventory, "-x", "node2").code == 0
    assert (
        controller.orch(*SMALL, "-H", inventory, "-x", "node1,node[3-4]", "--seed", "1").code == 0
    )
    checked = controller.orch(*CHECK, "-H", inventory)
    assert checked.code == 3 and "node2" in checked.out and "a different one" in checked.out, (
        checked
    )


def test_a_folder_that_is_gone_from_one_node_is_missed(controller: Controller) -> None:
    inventory = with_data_dir(controller, "/var/tmp/orch-data-gone")
    assert controller.orch(*SMALL, "-H", inventory).code == 0
    assert controller.orch(*CHECK, "-H", inventory).code == 0
    assert ssh(controller.lab, "node3", "rm -r /var/tmp/orch-data-gone/train").returncode == 0
    checked = controller.orch(*CHECK, "-H", inventory, "--json")
    assert checked.code == 3
    assert [
        (check["host"], check["found"])
        for check in checked.json["checks"]
        if check["verdict"] != "ok"
    ] == [("node3", "a different one")]


def test_a_directory_with_something_else_is_left_alone(controller: Controller) -> None:
    done = controller.orch(*SMALL, "--dir", "/etc")
    assert done.code == 1
    assert (
        "node[1-4]: data set: /etc: expected an empty or missing directory, found other content"
        in done.err
    )


def test_a_node_without_a_place_for_data_is_named_before_anything_is_contacted(
    controller: Controller,
) -> None:
    done = controller.orch(*SMALL)
    assert done.code == 2
    assert (
        "node1: expected a place for the data set. use --dir, or data_dir: in vars of this host"
        in done.err
    )
