"""Vendors of GPUs: a file on each side adds one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from noderun.vendors import VENDORS
from orchestrator.devices.vendor import show_devices, vendors
from orchestrator.plan.bundle import bundle
from orchestrator.plan.payload import find_folder
from tests.support.judge import LIMIT_S

INVENTED = """
from orchestrator.devices.vendor import Device, Hints, Vendor

VENDOR = Vendor(
    name="invented",
    order=9,
    recognises=lambda raw: "abacus" in raw,
    facts=lambda raw: {"gpus": [{"index": "0", "name": raw["abacus"]}], "gpu_tool": "abacus"},
    show=lambda devices: f"export BEADS_VISIBLE={devices}\\n",
    variables=("BEADS_VISIBLE",),
    devices=(Device("Abacus X1", 2e12, 0, 1e12, 0, 1e9, 1e6),),
    tools=("abacus",),
    hints=Hints(reset="push all beads to the left", limits="slide them back"),
)
"""
ON_NODE = """
class Abacus:
    name = "invented"
    reports = {"abacus": ["abacus", "--beads"]}
    instead = {}
    listings = ("abacus",)
    pid = "process (\\\\d+)"
    texts = {"wood": "/dev/null"}
    log_word = ""
    peer_modules = ()
    driver = "/dev/null"
    opened = ("/dev/abacus",)
    devices = "/dev/abacus[0-9]*"
    by_uuid = "BEADS_VISIBLE"

    @staticmethod
    def numbered_gpus(root):
        return [["0000:01:00.0", "BEAD-1"]]
"""
ASKED = """
started = start_reports(sys.argv[1])
reports = {name: collect_output(program, TOLD_S) for name, program in started.items()}
describe_gpus(reports)
print(json.dumps([reports["abacus"], reports["owners"], reports["wood"], DEVICES["invented"], gpus_of_node("/none")]))
"""
USED = """
import json, sys
import orchestrator.devices

orchestrator.devices.__path__.append(sys.argv[1])
from orchestrator.checks.facts import node_facts, parse_facts
from orchestrator.checks.gpus import count_check, gpu_checks
from orchestrator.inventory import Host
from orchestrator.plan.command_line import training_command
from orchestrator.plan.environment import visible_devices
from orchestrator.results.numbers.peaks import devices_in

facts = parse_facts({"abacus": "Abacus X1"})
shown = visible_devices(Host("a", "a", gpus=2, vars={"cuda_visible_devices": "0,1"}))
host = Host("a", "a", gpus=1)
jammed = node_facts(facts | {"gpu": {"index": ["0"], "broken": ["jammed"]}})
broken = count_check(host, jammed, 1).hint
slowed = node_facts(facts | {"gpu": {"slowed_by": "hw_slowdown"}})
capped = node_facts(facts | {"gpu": {"power_limit_w": 300, "power_default_w": 400}})
clocks = [check.hint for known in (slowed, capped) for check in gpu_checks(host, known, 1) if check.name == "clocks"]
left_out = training_command("BEADS_VISIBLE=0 python train.py", lambda path: True).left_out
half = devices_in("Abacus X1")["Abacus X1"].half
print(json.dumps([facts["gpus"], facts["gpu_tool"], "xids" in facts, shown, half, broken, clocks, left_out]))
"""


def test_a_file_adds_a_vendor_with_its_facts_its_variable_and_its_peaks(tmp_path: Path) -> None:
    (tmp_path / "invented.py").write_text(INVENTED)
    command = [sys.executable, "-c", USED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr
    gpus, tool, has_xids, shown, half, hint, clocks, left_out = json.loads(done.stdout)
    assert clocks == ["check cooling and power of this machine", "slide them back"]
    assert hint == "push all beads to the left" and left_out == ["BEADS_VISIBLE=0"]
    assert (gpus, tool, has_xids, half) == (
        [{"index": "0", "name": "Abacus X1"}],
        "abacus",
        False,
        2e12,
    )
    assert (
        shown == f"export CUDA_VISIBLE_DEVICES=0,1\n{show_devices('0,1')}export BEADS_VISIBLE=0,1\n"
    )


def test_a_file_and_its_row_add_a_vendor_on_the_node(tmp_path: Path) -> None:
    folder = tmp_path / "noderun"
    shutil.copytree(find_folder("remote") / "noderun", folder)
    (folder / "invented.py").write_text(ON_NODE)
    table = (folder / "vendors.py").read_text()
    assert table.endswith(")\n")
    table = f"{table[:-2]}, Abacus)\n".replace(
        "from noderun.amd", "from noderun.invented import Abacus\nfrom noderun.amd"
    )
    (folder / "vendors.py").write_text(table)
    tool = tmp_path / "bin" / "abacus"
    tool.parent.mkdir()
    tool.write_text(f"#!/bin/sh\necho process {os.getpid()}\n")
    tool.chmod(0o700)
    sources = [bundle(folder, part).decode() for part in ("container_probe", "binding", "facts")]
    program = tmp_path / "program.py"  # longer than an argument may be
    program.write_text("\n".join(one.split("if __name__")[0] for one in sources) + ASKED)

    done = subprocess.run(
        [sys.executable, "-I", "-S", str(program), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={"PATH": f"{tool.parent}:/bin"},
    )

    assert done.returncode == 0, done.stderr
    told, owners, wood, devices, gpus = json.loads(done.stdout)
    assert told == {"code": 0, "text": f"process {os.getpid()}\n"}
    assert list(owners) == [str(os.getpid())] and wood == ""
    assert devices == "/dev/abacus[0-9]*" and gpus == [["0000:01:00.0", "BEAD-1"]]


def test_each_vendor_knows_other_devices() -> None:
    names = [device.name for vendor in vendors() for device in vendor.devices]
    assert len(names) == len(set(names)) > 0


def test_both_halves_know_the_same_vendors_in_the_same_order() -> None:
    """In this order a node tells its drivers, and the next deploy asks for them."""
    here = [(vendor.name, vendor.driver) for vendor in vendors()]
    assert here == [(vendor.name, vendor.driver) for vendor in VENDORS]
    assert [name for name, _ in here] == ["nvidia", "amd"]
