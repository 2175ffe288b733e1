"""The facts of a node without a fault, and what preflight judges of facts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.checks.check import Check
from orchestrator.checks.facts import NodeFacts, node_facts, ports_of
from orchestrator.checks.judge import judge
from orchestrator.devices import nvidia_smi as nvidiasmi
from orchestrator.inventory.hosts import Host

DATA = Path(__file__).parents[1] / "data" / "nvidia-smi"
HOST = Host("gpu01", "10.11.0.2", gpus=2, vars={"interface": "ib0", "data_dir": "/data"})
GIB = 1 << 30
DATA_SET = {"digest": "ab" * 32, "names": 9, "sizes": 7, "bytes": 700, "whole": True}


def port(
    device: str = "mlx5_0", state: str = "4: ACTIVE", rate: str = "400 Gb/sec (4X NDR)", **more: Any
) -> dict[str, Any]:
    return {
        "device": device,
        "port": "1",
        "state": state,
        "phys_state": "5: LinkUp",
        "rate": rate,
        "link_layer": "InfiniBand",
    } | more


def healthy(
    gpus: str = "h100-hgx-550.xml", topology: str = "h200-hgx.topo", **changes: Any
) -> dict[str, Any]:
    """Return the facts of a node without a fault, but for those that the GPUs of the file have."""
    ports = ports_of([port("mlx5_0"), port("mlx5_1")])
    return {
        "runner_python": "3.10.12", "kernel": "5.15.0-105-generic", "machine": "x86_64", "cpu": "Xeon 8480C", "cores": 224,
        "memory_bytes": 2000 * GIB, "disk_free_bytes": 900 * GIB, "workdir": "/w", "login_s": 0.2, "clock_off_s": 0,
        "ports_busy": [], "boot_id": "b", "shm_bytes": 1000 * GIB,
        "framework": {"torch": "2.11.0", "cuda": "12.4", "nccl": "2.28.9"}, "host_key": "k",
        "limits": {"memlock": [None, None], "nofile": [1024, 1 << 20], "nproc": [None, None], "core": [0, None]},
        "interface": {"state": "up", "mtu": 4092, "speed_mbit": 400000, "kind": "32"},
        "route": {"interface": "eth0", "mtu": 1500, "speed_mbit": 25000, "kind": "1", "to": "10.11.0.3", "local": False},
        "hostname_addresses": ["10.11.0.2"], "data_dir": True, "data_set": dict(DATA_SET), "xids": [], "programs": {},
        "infiniband": ports, "infiniband_gbit": 800.0, "peermem": True, "open_driver": False,
        "topology": nvidiasmi.topology((DATA / topology).read_text()),
        **nvidiasmi.gpu_facts((DATA / gpus).read_text(), {"20461": "alice"}),
    } | changes  # fmt: skip


def known(facts: Mapping[str, Any]) -> dict[str, NodeFacts]:
    """Return the facts of several nodes as checks read them."""
    return {host: node_facts(values) for host, values in facts.items()}


def judged(facts: dict[str, Any], host: Host = HOST) -> dict[str, Check]:
    return {check.name: check for check in judge(host, facts, None, None)}


def verdict_of(name: str, facts: dict[str, Any], host: Host = HOST) -> tuple[str, str]:
    check = judged(facts, host)[name]
    if check.verdict != "ok":
        assert check.expected and check.hint
    return check.verdict, check.found
