"""The audit of a host: what is planted in a stand-in for its /sys and /proc is found with its cure,
and nothing is found in one without a fault.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from noderun.host_audit import MARK, host_report
from orchestrator.checks.check import Check
from orchestrator.checks.facts import node_facts, ports_of
from orchestrator.features.audit import report
from orchestrator.features.audit.advisories import advisories
from orchestrator.features.audit.audit import judge_host
from orchestrator.features.audit.catalogue import CATALOGUE
from orchestrator.features.audit.nccl import known_variables
from orchestrator.inventory import Host
from orchestrator.nodes.node import LEADER, boot_arguments
from orchestrator.plan.payload import booted_program
from tests.support.check_tables import assert_table
from tests.support.cli_project import Project
from tests.support.commands import orch
from tests.support.host_tree import (
    GPU,
    NIC,
    OTHER_GPU,
    OTHER_PORT,
    SLURM,
    TO_GPU,
    TO_NIC,
    HostTree,
)
from tests.support.judge import LIMIT_S
from tests.support.node_facts import port

DATA = Path(__file__).parents[2] / "data" / "host-audit"
HOST = Host("n1", "10.0.0.1", gpus=2)


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", "/home/user")


def facts_of(number: int) -> dict[str, Any]:
    """A node with eth0 in the network of all, eth1 in one of its own, eth2 without an address."""
    other = 3 - number
    networks = [
        {"name": "eth0", "addresses": [f"10.0.0.{number}/24"]},
        {"name": "eth1", "addresses": [f"10.{number}.0.1/24"]},
        {"name": "ib0", "addresses": [f"10.9.{number}.2/31"]},
    ]
    return {
        "infiniband": ports_of([port("mlx5_0")]),
        "networks": networks,
        "routes": {f"10.0.0.{other}": "eth0"},
        "route": {"interface": "eth0", "to": f"10.0.0.{other}"},
    }


FACTS = {f"n{number}": node_facts(facts_of(number)) for number in (1, 2)}


def audited(tree: HostTree, **env: str) -> list[Check]:
    told = json.loads(json.dumps(host_report(str(tree.root), [env.get("NCCL_TOPO_FILE", "")])))
    return judge_host(replace(HOST, env=env), FACTS, report.host_report(told))


def findings(checks: list[Check]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for check in checks:
        if check.verdict != "ok":
            assert check.hint and check.expected, check
            found.setdefault(check.name, []).append(check.found)
    return found


def test_nothing_is_found_on_a_host_without_a_fault(tmp_path: Path) -> None:
    checks = audited(HostTree(tmp_path))
    assert findings(checks) == {}
    of_hosts = {entry.name for entry in CATALOGUE if not entry.name.startswith("pod_")}
    assert {check.name for check in checks} == of_hosts


def test_ids_stay_as_they_are_and_are_listed_with_those_of_preflight(tmp_path: Path) -> None:
    """Records and scripts have these; new ones are added, none is renamed or removed."""
    ids = "acs iommu pcie_link governor cstates numa_balancing huge_pages gdrcopy ncu perf"
    done = Project(tmp_path).orch("check", "--list", "--json")
    listed = [entry["id"] for entry in json.loads(done.stdout)]
    tenancy = "kernel flaws nested management strangers slurm_private slurm_confined slurm_logins"
    pods = "slurm_between pod_token pod_rights pod_admission pod_network"
    ids = f"{ids} {tenancy} {pods}"
    assert {*ids.split(), "advisories", "nccl_env", "disk"} <= set(listed)
    assert len(listed) == len(set(listed))
    refused = Project(tmp_path).orch("check", "--only", "numa_balancign")
    assert "did you mean 'numa_balancing'?" in refused.stderr


def test_the_table_of_the_page_is_that_of_the_list() -> None:
    assert_table(Path(__file__).parents[3] / "docs" / "audit.md", CATALOGUE)


Plant = Callable[[HostTree], object]
PLANTS: dict[str, tuple[str, Plant, str]] = {
    "ACS on a switch": ("acs", lambda tree: tree.acs(TO_NIC, 0x1D),
        "ReqRedir CmpltRedir on 0000:42:01.0; not direct any more: GPU 43:00.0 and NIC 44:00.0"),
    "ACS on a root port": ("acs", lambda tree: tree.acs(OTHER_PORT, 0x04), "ReqRedir on 0000:60:01.0"),
    "ACS that only root reads": ("acs", lambda tree: tree.acs(TO_GPU, 0, size=64),
        "ACS of 5 bridges: this user may not read it"),
    "translation of transfers": ("iommu", lambda tree: tree.group(NIC, 2, "DMA-FQ"), "DMA-FQ for NIC 44:00.0; 3 groups"),
    "an old kernel without iommu=pt": ("iommu", lambda tree: [
        tree.write("proc/cmdline", "intel_iommu=on"), *(tree.group(a, n, "") for n, a in enumerate((GPU, OTHER_GPU, NIC)))],
        "translated for GPU 43:00.0, NIC 44:00.0, GPU 61:00.0; 3 groups"),
    "lanes of a GPU": ("pcie_link", lambda tree: tree.link(GPU, current_link_width="8"), "GPU 43:00.0: x8 of x16"),
    "speed of a card": ("pcie_link", lambda tree: tree.link(NIC, current_link_speed="16.0 GT/s PCIe"),
        "NIC 44:00.0: 16.0 GT/s PCIe of 32.0 GT/s PCIe"),
    "a slow slot": ("pcie_link", lambda tree: tree.link(OTHER_PORT, max_link_speed="16.0 GT/s PCIe"),
        "GPU 61:00.0: a slot of 16.0 GT/s PCIe for 32.0 GT/s PCIe"),
    "one GPU of two is slow": ("pcie_link", lambda tree: tree.link(GPU, current_link_speed="2.5 GT/s PCIe"),
        "GPU 43:00.0: 2.5 GT/s PCIe of 32.0 GT/s PCIe"),
    "all GPUs are slow": ("pcie_link",
        lambda tree: [tree.link(place, current_link_speed="8.0 GT/s PCIe") for place in (GPU, OTHER_GPU)],
        "GPU 43:00.0, GPU 61:00.0: 8.0 GT/s PCIe of 32.0 GT/s PCIe"),
    "a governor that waits for load": ("governor",
        lambda tree: tree.write("sys/devices/system/cpu/cpu3/cpufreq/scaling_governor", "powersave"),
        "powersave (intel_pstate) on 1 processor"),
    "deep sleep": ("cstates", lambda tree: tree.write("sys/devices/system/cpu/cpu0/cpuidle/state1/disable", "0"),
        "C6 (290 µs) enabled"),
    "NUMA balancing": ("numa_balancing", lambda tree: tree.write("proc/sys/kernel/numa_balancing", "1"),
        "kernel.numa_balancing is 1"),
    "no huge pages": ("huge_pages",
        lambda tree: tree.write("sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]"), "never"),
    "allocations that stall": ("huge_pages",
        lambda tree: tree.write("sys/kernel/mm/transparent_hugepage/defrag", "[always] defer madvise never"),
        "madvise, defrag always"),
    "no gdrdrv": ("gdrcopy", lambda tree: (tree.root / "sys/module/gdrdrv").rmdir(), "gdrdrv is not loaded"),
    "no rights for ncu": ("ncu", lambda tree: tree.write("proc/driver/nvidia/params", "RmProfilingAdminOnly: 1"),
        "only root may profile"),
    "no rights for perf": ("perf", lambda tree: tree.write("proc/sys/kernel/perf_event_paranoid", "4"),
        "perf_event_paranoid is 4"),
    "an old container toolkit": ("advisories",
        lambda tree: tree.program("nvidia-ctk", "NVIDIA Container Toolkit CLI version 1.17.7"),
        "nvidia-container-toolkit 1.17.7: CVE-2025-23266 "),
    "an old runc": ("advisories", lambda tree: tree.program("runc", "runc version 1.1.11"),
        "runc 1.1.11: CVE-2024-21626 "),
    "an old containerd": ("advisories", lambda tree: tree.program("containerd", "containerd containerd.io 1.7.27 x"),
        "containerd 1.7.27: CVE-2026-53488 "),
    "an old driver": ("advisories", lambda tree: tree.write("sys/module/nvidia/version", "570.133.20"),
        "nvidia-driver 570.133.20: CVE-2025-23280 "),
    "old firmware": ("advisories", lambda tree: tree.write("sys/class/infiniband/mlx5_0/fw_ver", "28.43.1014"),
        "connectx-firmware of mlx5_0 43.1014: CVE-2025-23351 "),
    "an old CUDA": ("advisories", lambda tree: tree.program("nvcc", "Cuda compilation tools, release 12.4, V12.4.131"),
        "cuda-toolkit 12.4: CVE-2025-33230 "),
    "a kernel that waits for a restart": ("kernel", lambda tree: tree.write("boot/vmlinuz-6.1.0-100-amd64", ""),
        "6.1.0-57-amd64 runs"),
    "a flaw without mitigation": ("flaws",
        lambda tree: tree.write("sys/devices/system/cpu/vulnerabilities/mds", "Vulnerable: no microcode"), "vulnerable: mds"),
    "KVM in a virtual machine": ("nested", lambda tree: tree.write("dev/kvm", ""), "/dev/kvm can be opened"),
    "a BMC in reach": ("management", lambda tree: tree.write("dev/ipmi0", ""), "/dev/ipmi0"),
    "jobs that all see": ("slurm_private", lambda tree: tree.program("scontrol", SLURM.replace("jobs,", "")),
        "PrivateData=usage,users"),
    "devices of other jobs": ("slurm_confined",
        lambda tree: tree.program("scontrol", SLURM.replace("ConstrainDevices        = yes", "ConstrainDevices = no")),
        "ConstrainDevices=no"),
    "tasks without groups": ("slurm_confined",
        lambda tree: tree.program("scontrol", SLURM.replace("task/affinity,task/cgroup", "task/affinity")),
        "TaskPlugin=task/affinity"),
    "logins without a job": ("slurm_logins", lambda tree: tree.write("etc/pam.d/sshd", "@include common-auth"),
        "/etc/pam.d/sshd does not name pam_slurm_adopt"),
    "nothing between two jobs": ("slurm_between",
        lambda tree: tree.program("scontrol", SLURM.replace("/usr/sbin/nhc", "(null)")), "no health check, prolog or epilog"),
    "a misspelt variable in a file": ("nccl_env", lambda tree: tree.write("etc/nccl.conf", "NCCL_SOKCET_IFNAME=eth0"),
        "'NCCL_SOKCET_IFNAME' of /etc/nccl.conf, which NCCL does not read"),
    "a space before the sign": ("nccl_env", lambda tree: tree.write("home/user/.nccl.conf", "NCCL_DEBUG =INFO"),
        "'NCCL_DEBUG ' of /home/user/.nccl.conf, which NCCL does not read"),
}  # fmt: skip


@pytest.mark.parametrize("fault", PLANTS)
def test_what_is_planted_in_a_stand_in_is_found_and_nothing_else(
    fault: str, tmp_path: Path
) -> None:
    name, plant, words = PLANTS[fault]
    tree = HostTree(tmp_path)
    plant(tree)
    found = findings(audited(tree))
    assert list(found) == [name] and len(found[name]) == 1, found
    assert found[name][0].startswith(words)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_processes_of_other_people_are_counted_and_those_of_the_system_are_not(
    tmp_path: Path,
) -> None:
    tree = HostTree(tmp_path)
    for number, user in enumerate((0, 33, 1003, 1003, 1004, 61187, 65534), 20):
        tree.write(f"proc/{number}/comm", "train")
        os.chown(tree.root / f"proc/{number}", user, user)
    assert findings(audited(tree)) == {"strangers": ["processes of 2 other users are seen"]}


def test_nothing_of_slurm_is_asked_where_there_is_none_and_no_other_setting_is_told(
    tmp_path: Path,
) -> None:
    tree = HostTree(tmp_path)
    told = host_report(str(tree.root))["tenant"]
    assert "SlurmctldParameters" not in told["slurm"] and told["slurm"]["Prolog"] == ""
    (tree.root / "usr/bin/scontrol").write_text("#!/bin/sh\nexit 1\n")
    tree.write("etc/pam.d/sshd", "")
    assert not {check.name for check in audited(tree) if check.name.startswith("slurm")}


VARIABLES = [
    ({"NCCL_P2P_DISABLE": "1"}, "warning", "NCCL_P2P_DISABLE=1: GPUs exchange data through the host's memory"),
    ({"NCCL_ALGO": "Ring", "NCCL_NVLS_ENABLE": "1"}, "warning", "NCCL_ALGO=Ring"),
    ({"NCCL_FOO": "1"}, "warning", "'NCCL_FOO' of the inventory, which NCCL does not read"),
    ({"NCCL_FOO": "1", "NCCL_NET_PLUGIN": "fastrak"}, "ok", "NCCL_FOO, NCCL_NET_PLUGIN"),
    ({"NCCL_IB_HCA": "=mlx5_0:1,mlx5_7:1"}, "warning", "NCCL_IB_HCA==mlx5_0:1,mlx5_7:1: no device mlx5_7"),
    ({"NCCL_IB_HCA": "^mlx5_9"}, "ok", "NCCL_IB_HCA"),
    ({"NCCL_IB_HCA": "mlx5"}, "ok", "NCCL_IB_HCA"),
    ({"NCCL_SOCKET_IFNAME": "eth9"}, "failed", "NCCL_SOCKET_IFNAME=eth9: no such interface"),
    ({"NCCL_SOCKET_IFNAME": "=eth"}, "failed", "NCCL_SOCKET_IFNAME==eth: no such interface"),
    ({"NCCL_SOCKET_IFNAME": "eth1"}, "warning", "NCCL_SOCKET_IFNAME=eth1: eth1 shares no network with the other nodes"),
    ({"NCCL_SOCKET_IFNAME": "eth2"}, "warning", "NCCL_SOCKET_IFNAME=eth2: no address on eth2"),
    ({"NCCL_SOCKET_IFNAME": "eth"}, "ok", "NCCL_SOCKET_IFNAME"),
    ({"NCCL_SOCKET_IFNAME": "^eth"}, "ok", "NCCL_SOCKET_IFNAME"),
    ({"NCCL_SOCKET_IFNAME": "ib0"}, "ok", "NCCL_SOCKET_IFNAME"),
    ({"NCCL_TOPO_FILE": "/opt/topo.xml"}, "warning", "NCCL_TOPO_FILE=/opt/topo.xml: no such file"),
]  # fmt: skip


@pytest.mark.parametrize(("env", "verdict", "words"), VARIABLES)
def test_variables_of_nccl_are_judged_by_what_the_node_has(
    env: dict[str, str], verdict: str, words: str, tmp_path: Path
) -> None:
    tree = HostTree(tmp_path)
    (check,) = (check for check in audited(tree, **env) if check.name == "nccl_env")
    assert (check.verdict, check.found) == (verdict, words)


def test_a_topology_file_that_is_there_and_a_variable_that_a_login_overrides_are_no_fault(
    tmp_path: Path,
) -> None:
    tree = HostTree(tmp_path)
    tree.write("opt/topo.xml", "<system/>")
    tree.write("etc/nccl.conf", "#NCCL_SHM_DISABLE=1\nNCCL_P2P_DISABLE=1\nNVSHMEM_DISABLE_NVLS=1")
    env = {"NCCL_P2P_DISABLE": "0", "NCCL_VERSION": "2.28.3-1"}  # as images of CUDA set it
    assert findings(audited(tree, NCCL_TOPO_FILE="/opt/topo.xml", **env)) == {}


def test_one_run_of_findings_names_all_advisories_and_the_version_that_mends_them(
    tmp_path: Path,
) -> None:
    tree = HostTree(tmp_path)
    tree.program("nvidia-ctk", "NVIDIA Container Toolkit CLI version 1.16.1\ncommit: x")
    (check,) = (check for check in audited(tree) if check.verdict != "ok")
    for cve in ("CVE-2024-0132", "CVE-2025-23359", "CVE-2025-23266", "CVE-2026-24260"):
        assert cve in check.found
    assert check.expected == "1.19.1 or later" and "2026/5850" in check.hint
    tree.program("nvidia-ctk", "NVIDIA Container Toolkit CLI version 1.20.0")
    tree.program("runc", "runc version 1.1.15")  # of a branch that is affected and was not mended
    (check,) = (check for check in audited(tree) if check.verdict != "ok")
    assert check.found.startswith("runc 1.1.15: CVE-2025-31133 ")
    assert check.expected == "1.2.8 or later"


@pytest.mark.parametrize("vendor", ["0x1002", ""])
def test_nothing_of_nvidia_is_asked_of_other_nodes(vendor: str, tmp_path: Path) -> None:
    tree = HostTree(tmp_path, vendor)
    tree.write("proc/driver/nvidia/params", "RmProfilingAdminOnly: 1")
    checks = audited(tree)
    assert findings(checks) == {}
    names = {check.name for check in checks}
    assert names.isdisjoint({"gdrcopy", "ncu"})
    assert names.isdisjoint({"acs", "iommu", "pcie_link"}) is not bool(vendor)


def test_gpus_that_all_save_power_and_a_root_login_are_no_fault(tmp_path: Path) -> None:
    tree = HostTree(tmp_path)
    tree.link(GPU, current_link_speed="2.5 GT/s PCIe")
    tree.link(OTHER_GPU, current_link_speed="2.5 GT/s PCIe")
    tree.write("proc/driver/nvidia/params", "RmProfilingAdminOnly: 1")
    tree.write("proc/sys/kernel/perf_event_paranoid", "4")
    tree.write("proc/self/status", "CapEff:\t000001ffffffffff")
    checks = {check.name: check for check in audited(tree)}
    assert {check.verdict for check in checks.values()} == {"ok"}
    assert checks["pcie_link"].found.endswith("GPUs now slower to save power")


def test_a_virtual_machine_with_two_h200_has_one_finding() -> None:
    """What a real one told: its image's variables and files of NCCL are no fault but one."""
    told = json.loads((DATA / "h200-vm.json").read_text())
    checks = judge_host(HOST, FACTS, report.host_report(told))
    assert findings(checks) == {"nccl_env": ["NCCL_NVLS_ENABLE=0: no reduction in NVLink switches"]}
    found = {check.name: check.found for check in checks}
    assert found["pcie_link"] == "2 at 32.0 GT/s PCIe x16" and found["iommu"] == "off"
    assert found["advisories"] == "nvidia-driver 580.159.04" and "acs" not in found


def test_no_more_of_the_kernels_command_line_is_told_than_is_judged(tmp_path: Path) -> None:
    assert host_report(str(HostTree(tmp_path).root))["command_line"] == "iommu=pt"


def test_each_advisory_has_a_source_and_its_first_good_versions_are_good() -> None:
    for advisory in advisories():
        assert advisory.source.startswith("https://") and advisory.id.startswith("CVE-")
        assert [advisory.fix_for(fixed) for fixed in advisory.fixed] == [""] * len(advisory.fixed)
        assert list(advisory.fixed) == sorted(
            advisory.fixed, key=lambda text: [int(part) for part in text.split(".")]
        )


def test_a_variable_that_nccl_does_not_read_is_told_before_it_is_measured(tmp_path: Path) -> None:
    inventory = tmp_path / "lab.yaml"
    inventory.write_text(
        "schema: 1\ndefaults: {gpus: 1, env: {NCCL_IBHCA: mlx5, NCCL_HOME: /n}}\nhosts: {n1: {}}\n"
    )
    bench = ("bench", "resnet50", "-f", "simulated", "--dry-run", "--hosts", str(inventory))
    done = orch(tmp_path, *bench, "--env", "NCCL_ALG=Ring,Tree")
    assert done.returncode == 0, done.stderr
    assert "--env NCCL_ALG is not read by NCCL; did you mean NCCL_ALGO?" in done.stderr
    assert "inventory: env NCCL_IBHCA is not read by NCCL; did you mean NCCL_IB_HCA?" in done.stderr
    assert "NCCL_HOME is not" not in done.stderr


def test_the_variables_that_nccl_documents_are_known() -> None:
    known = known_variables()
    assert len(known) > 250 and known["NCCL_ALGO"] and not known["NCCL_DEBUG"]
    assert {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_TOPO_FILE"} <= {*known}


@pytest.mark.parametrize("value", [None, -1, "x", [], [[]], [{}], {}, {"x": 1}, {"x": {}}, True])
def test_whatever_a_node_sends_the_rest_is_judged(value: Any, tmp_path: Path) -> None:
    told = host_report(str(HostTree(tmp_path).root))
    for name in told:
        checks = judge_host(HOST, FACTS, report.host_report({**told, name: value}))
        assert "nccl_env" in {check.name for check in checks}, name


def test_the_program_that_travels_audits_this_machine() -> None:
    """As it is sent: after whatever a login prints, on standard input, with its request."""
    program = booted_program("host_audit")
    done = subprocess.run(
        [sys.executable, *boot_arguments(program)],
        input=LEADER + program + b'{"files": ["/etc/hostname", "/nowhere"]}\n',
        capture_output=True,
        timeout=LIMIT_S,
        check=True,
    )
    told = json.loads(done.stdout.decode().removeprefix(MARK))
    assert told["files"] == {"/etc/hostname": True, "/nowhere": False}
    checks = judge_host(HOST, FACTS, report.host_report(told))
    assert {check.verdict for check in checks} <= {"ok", "warning", "unknown"}
    assert "lo" in told["interfaces"]
