"""Vendors of GPUs: one file adds one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from orchestrator.devices.vendor import show_devices, vendors
from tests.support.judge import LIMIT_S

INVENTED = """
from orchestrator.devices.vendor import Device, Vendor

VENDOR = Vendor(
    name="invented",
    order=9,
    recognises=lambda raw: "abacus" in raw,
    facts=lambda raw: {"gpus": [{"index": "0", "name": raw["abacus"]}], "gpu_tool": "abacus"},
    show=lambda devices: f"export BEADS_VISIBLE={devices}\\n",
    devices=(Device("Abacus X1", 2e12, 0, 1e12, 0, 1e9, 1e6),),
)
"""
USED = """
import json, sys
import orchestrator.devices

orchestrator.devices.__path__.append(sys.argv[1])
from orchestrator.checks.facts import told_facts
from orchestrator.inventory import Host
from orchestrator.plan.environment import visible_devices
from orchestrator.results.numbers.peaks import devices_in

facts = told_facts({"abacus": "Abacus X1"})
shown = visible_devices(Host("a", "a", gpus=2, vars={"cuda_visible_devices": "0,1"}))
print(json.dumps([facts["gpus"], facts["gpu_tool"], "xids" in facts, shown, devices_in("Abacus X1")["Abacus X1"].half]))
"""


def test_a_file_adds_a_vendor_with_its_facts_its_variable_and_its_peaks(tmp_path: Path) -> None:
    (tmp_path / "invented.py").write_text(INVENTED)
    command = [sys.executable, "-c", USED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    gpus, tool, has_xids, shown, half = json.loads(done.stdout)
    assert (gpus, tool, has_xids, half) == (
        [{"index": "0", "name": "Abacus X1"}],
        "abacus",
        False,
        2e12,
    )
    assert (
        shown == f"export CUDA_VISIBLE_DEVICES=0,1\n{show_devices('0,1')}export BEADS_VISIBLE=0,1\n"
    )


def test_each_vendor_knows_other_devices() -> None:
    names = [device.name for vendor in vendors() for device in vendor.devices]
    assert [vendor.name for vendor in vendors()] == ["nvidia", "amd"] and len(names) == len(
        set(names)
    )
