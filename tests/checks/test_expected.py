"""What an inventory expects of its hosts: met, not met, and not known."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.inventory import versions
from orchestrator.inventory.hosts import Host
from tests.support.node_facts import HOST, healthy, judged, verdict_of

MET = {
    "gpu": "NVIDIA H100*", "gpus": 2, "memory_gib": 79.5, "driver": ">=550, <560", "nvlink": "NV18", "ecc": True, "mig": False,
    "persistence": True, "compute_mode": "Default", "power_limit_w": 700, "pcie": {"generation": 5, "width": 16},
    "cuda": "12.*", "nccl": ">=2.20", "versions": {"torch": ">=2.9"},
    "infiniband": {"ports": 2, "rate_gbit": 400, "link_layer": "InfiniBand"},
    "mtu": 4092, "speed_gbit": 400, "memlock": "unlimited", "nofile": 1 << 20, "nproc": "unlimited", "shm_gib": 1000,
    "ram_gib": 2000, "cores": 224, "cpu": "Xeon*", "kernel": "5.15*",
}  # fmt: skip
UNMET = {
    "gpu": ("NVIDIA H200", "gpu NVIDIA H100 80GB HBM3", "gpu NVIDIA H200"),
    "gpus": (8, "gpus 2", "gpus 8"),
    "memory_gib": (80, "memory_gib 79.647 GiB", "memory_gib 80 GiB or more"),
    "driver": ("580*", "driver 550.54.15", "driver 580*"),
    "nvlink": ("NV12", "nvlink NV18", "nvlink NV12"),
    "ecc": (False, "ecc on", "ecc off"),
    "mig": (True, "mig off", "mig on"),
    "persistence": (False, "persistence on", "persistence off"),
    "compute_mode": ("Exclusive_Process", "compute_mode Default", "compute_mode Exclusive_Process"),
    "power_limit_w": (701, "power_limit_w 700 W", "power_limit_w 701 W or more"),
    "pcie": ({"generation": 5, "width": 32}, "pcie.width 16", "pcie.width 32 or more"),
    "cuda": (">=12.6", "cuda 12.4", "cuda >=12.6"),
    "nccl": (">=2.29", "nccl 2.28.9", "nccl >=2.29"),
    "versions": (
        {"torch": "2.11*", "cudnn": ">=9"},
        "versions.cudnn unknown",
        "versions.cudnn >=9",
    ),
    "infiniband": (
        {"ports": 8, "rate_gbit": 400},
        "infiniband 2 such",
        "infiniband 8 ports ACTIVE at 400 Gb/s",
    ),
    "mtu": (9000, "mtu 4092", "mtu 9000"),
    "speed_gbit": (800, "speed_gbit 400 Gb/s", "speed_gbit 800 Gb/s or more"),
    "nofile": ("unlimited", "nofile 1048576", "nofile unlimited"),
    "shm_gib": (1001, "shm_gib 1000 GiB", "shm_gib 1001 GiB or more"),
    "ram_gib": (2001, "ram_gib 2000 GiB", "ram_gib 2001 GiB or more"),
    "cores": (112, "cores 224", "cores 112"),
    "cpu": ("EPYC*", "cpu Xeon 8480C", "cpu EPYC*"),
    "kernel": (">=6", "kernel 5.15.0-105-generic", "kernel >=6"),
}


def expecting(**expect: Any) -> Host:
    return replace(HOST, expect=expect)


def test_every_expectation_that_an_inventory_may_hold_is_tried_here() -> None:
    from orchestrator.inventory.values import MachineValues

    known = MachineValues.model_fields["expect"].annotation
    assert set(MET) == set(known.model_fields) and set(UNMET) == set(MET) - {"memlock", "nproc"}  # type: ignore[union-attr]


@pytest.mark.parametrize("key", MET)
def test_an_expectation_that_is_met_is_told_by_its_name(key: str) -> None:
    assert verdict_of("expect", healthy(), expecting(**{key: MET[key]})) == (
        "ok",
        f"{key} as expected",
    )


@pytest.mark.parametrize("key", UNMET)
def test_an_expectation_that_is_not_met_fails_with_both_values(key: str) -> None:
    value, found, expected = UNMET[key]
    check = judged(healthy(), expecting(**{key: value}))["expect"]
    assert (check.verdict, check.found, check.expected) == ("failed", found, expected)
    assert f"correct {key.partition('.')[0]}" in check.hint


@pytest.mark.parametrize(
    "key", ["gpu", "nvlink", "infiniband", "nccl", "mtu", "memlock", "shm_gib", "ecc"]
)
def test_what_nothing_is_known_of_is_not_as_expected(key: str) -> None:
    unknown = {
        "gpus": None,
        "topology": None,
        "infiniband": [],
        "framework": {"error": "x"},
        "interface": None,
        "route": None,
    }
    facts = {
        name: value
        for name, value in (healthy() | unknown).items()
        if name not in ("limits", "shm_bytes")
    }
    assert verdict_of("expect", facts, expecting(**{key: MET[key]}))[0] == "failed"


@pytest.mark.parametrize(
    ("found", "required", "is_met"),
    [
        ("2.28.9", ">=2.20", True), ("2.9.1", ">=2.20", False), ("2.20", ">=2.20.0", True), ("12.8", ">=12.4,<13", True),
        ("13.0", ">=12.4, <13", False), ("2.11.0+cu130", "==2.11", True), ("2.11.0+cu130", "!=2.11", False),
        ("580.95.05", "580*", True), ("5801", "580.*", False), ("unknown", ">=1", False),
        ("NVIDIA H200", "NVIDIA H[12]00", True),
    ],
)  # fmt: skip
def test_versions_are_compared_number_by_number(found: str, required: str, is_met: bool) -> None:
    assert versions.is_requirement(required) and versions.meets(found, required) is is_met
