"""Servers that ask for passwords, and projects with hosts behind them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from orchestrator.inventory.hosts import Host
from tests.contract.bastion import Bastion
from tests.contract.rig import Rig

__all__ = ["REACH", "eavesdropper", "environment", "project", "with_passwords"]

REPOSITORY = Path(__file__).parents[3]


def project(rig: Rig, folder: Path, *hosts: Host, transport: str = "openssh") -> Path:
    """Write a project with an inventory of these hosts."""
    (folder / "inventory").mkdir(parents=True)
    lines = ["schema: 1", "defaults:", "  gpus: 0", f"  transport: {transport}", "hosts:"]
    for number, host in enumerate(hosts, 1):
        settings = {
            name: getattr(host.ssh, name) for name in ("user", "port", "key", "jump", "config")
        }
        ssh = ", ".join(
            f"{name}: {value if name == 'port' else repr(value)}"
            for name, value in settings.items()
            if value
        )
        lines.append(
            f"  node{number}: {{address: {host.address}, ssh: {{{ssh}}}, vars: {{workdir: {folder}/work{number}}}}}"
        )
    (folder / "inventory" / "cluster.yaml").write_text("\n".join(lines) + "\n")
    return folder


def environment(folder: Path) -> dict[str, str]:
    kept = {
        name: os.environ[name] for name in ("PATH", "HOME", "XDG_RUNTIME_DIR") if name in os.environ
    }
    return kept | {
        "ORCH_PROJECT": str(folder),
        "PYTHONPATH": str(REPOSITORY),
        "COLUMNS": "120",
        "TERM": "dumb",
    }


REACH = [sys.executable, "-m", "orchestrator", "check", "--only", "reach"]


def with_passwords(rig: Rig, *options: str) -> Bastion:
    """Start a server that asks for the password alone."""
    server = rig.serve(*options, kind=Bastion)
    pam = server.directory / "etc" / "pam"
    pam.write_text(
        "".join(line for line in pam.read_text().splitlines(keepends=True) if "google" not in line)
    )
    return server


def eavesdropper(rig: Rig, heard: Path) -> Bastion:
    """Start a server that asks for a password too, and writes down what it is told."""
    script = heard.with_name("script")
    script.write_text(f"#!/bin/sh\ntr '\\0' '\\n' >> {heard}\nexit 1\n")
    script.chmod(0o755)
    server = rig.serve(kind=Bastion)
    (server.directory / "etc" / "pam").write_text(
        f"auth required pam_exec.so expose_authtok {script}\n"
    )
    return server
