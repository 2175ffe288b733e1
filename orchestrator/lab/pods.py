"""Pods in a namespace lab: a stand-in for a Kubernetes cluster, whose API the real kubectl speaks."""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError, RunError
from orchestrator.lab.identity import write_certificate
from orchestrator.lab.state import Lab, last_words
from orchestrator.procs import record_pid

ADDRESS, PORT = "10.11.0.1", 6443
_READY_S = 30.0


def require(kind: str) -> None:
    """Raise ConfigError unless a lab of this kind on this machine can have pods."""
    where = "orch lab up --pods"
    if kind != "namespaces":
        hint = "run it as root, with --kind namespaces"
        message = f"expected a lab of namespaces for pods, got one of {kind}"
        raise ConfigError(message, where=where, hint=hint)
    if importlib.util.find_spec("aiohttp") is None:
        hint = "pip install 'orch-bench[pods]'"
        raise ConfigError("expected aiohttp, but it is not installed", where=where, hint=hint)


def prepare(lab: Lab, gpus: int, slots: int, address: str = ADDRESS, port: int = PORT) -> None:
    """Write what the API server reads, and the kubeconfig with its users."""
    folder = lab.pods_folder
    folder.mkdir()
    write_certificate(folder, address)
    tokens = {secrets.token_hex(16): role for role in ("admin", "viewer", "tenant", "stranger")}
    capacity = {"cpu": slots, **({"nvidia.com/gpu": gpus} if gpus else {})}
    files = {"tokens.json": tokens, "cluster.json": {"capacity": capacity}}
    server = {"server": f"https://{address}:{port}"}
    server["certificate-authority"] = str(folder / "server.crt")
    files["kubeconfig"] = _kubeconfig(server, tokens)
    for name, value in files.items():
        (folder / name).touch(mode=0o600)
        (folder / name).write_text(json.dumps(value), encoding="utf-8")


def _kubeconfig(server: dict[str, str], tokens: dict[str, str]) -> dict[str, Any]:
    users = [{"name": role, "user": {"token": token}} for token, role in tokens.items()]
    contexts = [
        {"name": role.replace("admin", "lab"), "context": {"cluster": "lab", "user": role}}
        for role in tokens.values()
    ]
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "lab", "cluster": server}],
        "users": users,
        "contexts": contexts,
        "current-context": "lab",
    }


def start(
    lab: Lab, prefix: Sequence[str], address: str = ADDRESS, port: int = PORT
) -> subprocess.Popen[bytes]:
    """Start the API server, with ``prefix`` on the controller's side, and wait until it serves."""
    folder = lab.pods_folder
    (folder / "ready").unlink(missing_ok=True)
    argv = [*prefix, sys.executable, "-m", "orchestrator.lab.apiserver", str(lab.directory), address, str(port)]  # fmt: skip
    with (folder / "server.log").open("ab") as output:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=Path(__file__).parents[2],
            start_new_session=True, env=os.environ | {"ORCH_LAB": lab.marker},
        )  # fmt: skip
    record_pid(folder / "pid", process.pid)
    deadline = time.monotonic() + _READY_S
    while not (folder / "ready").exists():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            process.wait()
            words = last_words([folder / "server.log"])
            message = f"the API server of the lab did not start{words}"
            raise RunError(message, kind="node_unfit", where="lab")
        time.sleep(0.01)
    return process
