"""Inventories as text: read, and refused with all their faults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from orchestrator import yamlfile
from orchestrator.errors import Faults, OrchError
from orchestrator.inventory.formats import parse_text
from orchestrator.inventory.hosts import Inventory, SshSettings

DATA = Path(__file__).parents[1] / "data" / "inventories"
SECRET = "hunter2-and-more"
SECRET_NAMES = (
    "admin_password", "dbPassword", "ansible_become_pass", "ansible_become_password", "ansible_ssh_pass", "slurmdbd_pass",
    "mysql_root_pw", "grafana_admin_password", "ipmi_password", "k3s_token", "vault_db", "munge_key", "clientSecret",
    "api_key", "ngc_apikey", "private_key", "gcp_credentials", "registry_auth", "passphrase", "wifi_psk", "sshpass",
    "login_pwd",
)  # fmt: skip


def read(text: str, source: str = "lab.yaml") -> Inventory:
    return parse_text(text, source, yamlfile.loads)


def faults_of(make: Callable[[], object]) -> list[str]:
    with pytest.raises(OrchError) as caught:
        make()
    error = caught.value
    assert (error.exit_code, error.kind) == (2, "config_invalid")
    return [str(each) for each in (error.errors if isinstance(error, Faults) else [error])]


def plain(inventory: Inventory) -> dict[str, Any]:
    """Return the values of an inventory that are not defaults, ready for JSON."""
    unset = asdict(SshSettings())
    hosts = {}
    for host in inventory.hosts:
        ssh = {key: value for key, value in asdict(host.ssh).items() if value != unset[key]}
        values = {
            "ssh": ssh,
            "env": dict(host.env),
            "vars": dict(host.vars),
            "expect": dict(host.expect),
        }
        basics = {"address": host.address, "gpus": host.gpus, "slots": host.slots}
        hosts[host.name] = basics | {key: value for key, value in values.items() if value}
    groups = {name: list(members) for name, members in inventory.groups.items()}
    return {"hosts": hosts, "groups": groups, "secrets": list(inventory.secrets)}
