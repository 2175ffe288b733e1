"""`orch check --audit` on the nodes of a lab."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.rig import Controller
from tests.support.features import needs

pytestmark = needs("audit")

CHECK = ("check", "-f", "simulated")


def test_an_audit_adds_its_checks_to_those_of_every_node_and_no_other_command_makes_them(
    controller: Controller,
) -> None:
    plain = controller.orch(*CHECK, "--json")
    assert plain.code == 0 and "audit" not in plain.json, plain
    assert "nccl_env" not in {check["name"] for check in plain.json["checks"]}
    audited = controller.orch(*CHECK, "--audit", "--json")
    assert audited.code == 0, audited
    hosts = {check["host"] for check in audited.json["checks"] if check["name"] == "nccl_env"}
    assert hosts == {*audited.json["audit"]} == {*audited.json["facts"]}
    assert "lo" in audited.json["audit"]["node1"]["interfaces"]


def test_a_variable_that_points_to_no_interface_fails_the_audit_and_one_check_can_be_asked(
    controller: Controller,
) -> None:
    text = Path(controller.lab.inventory).read_text()
    lint = controller.project / "lint.yaml"
    env = "  env: {NCCL_SOCKET_IFNAME: eth77}\n  vars:\n"
    lint.write_text(text.replace("  vars:\n", env, 1))
    done = controller.orch(*CHECK, "--only", "nccl_env", "--hosts", str(lint))
    assert done.code == 3 and "NCCL_SOCKET_IFNAME=eth77: no such interface" in done.out, done
    assert "runner" not in done.out
