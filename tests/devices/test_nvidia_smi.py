"""nvidia-smi and the driver's lines in the kernel log, understood on several generations of
hardware and drivers.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checks.facts import parse_facts, ports_of, unpack_facts
from orchestrator.devices.gpu_states import gpu_states
from orchestrator.devices.nvidia_smi import gpu_facts, pairs, topology, xids

DATA = Path(__file__).parents[1] / "data" / "nvidia-smi"


def facts(name: str, **owners: str) -> dict[str, Any]:
    return gpu_facts(
        (DATA / name).read_text(), {pid.lstrip("p"): user for pid, user in owners.items()}
    )


def matrix(name: str) -> dict[str, Any]:
    found = topology((DATA / name).read_text())
    assert found
    return found


@pytest.mark.parametrize(
    ("name", "driver", "cuda", "gpus"),
    [
        ("gtx1070-418.xml", "418.56", "10.1", [("GeForce GTX 1070", 8116, 410, 2)]),
        ("v100-dgx1-418.xml", "418.126.02", "10.1", [("Tesla V100-SXM2-16GB", 16130, 11, 0)] * 2),
        ("v100s-460.xml", "460.73.01", "11.2", [("Tesla V100S-PCIE-32GB", 32510, 31689, 97)]),
        ("a100-dgx-525.xml", "525.147.05", "12.0", [("NVIDIA A100-SXM4-80GB", 81920, 3, 0)] * 3),
        ("h100-hgx-550.xml", "550.54.15", "12.4", [("NVIDIA H100 80GB HBM3", 81559, 1, 0)] * 2),
        ("h200-pair-580.xml", "580.159.04", "13.0", [("NVIDIA H200", 143771, 0, 0)] * 2),
        (
            "rtx4070-575.xml",
            "575.51.02",
            "12.9",
            [("NVIDIA GeForce RTX 4070 Laptop GPU", 8188, 2026, 30)],
        ),
    ],
)
def test_every_generation_tells_model_driver_memory_and_use(
    name: str, driver: str, cuda: str, gpus: list[tuple[str, int, int, int]]
) -> None:
    found = facts(name)
    assert [
        (one["name"], one["memory_mib"], one["used_mib"], one["utilization"])
        for one in found["gpus"]
    ] == gpus
    assert [one["index"] for one in found["gpus"]] == [str(index) for index in range(len(gpus))]
    assert {one["driver"] for one in found["gpus"]} == {driver}
    assert found["cuda_driver"] == cuda


@pytest.mark.parametrize(
    ("name", "gpu", "known"),
    [
        (
            "gtx1070-418.xml",
            0,
            {
                "power_limit_w": 151,
                "sm_max_mhz": 1911,
                "pcie_gen": 1,
                "pcie_gen_max": 3,
                "pcie_width": 16,
            },
        ),
        (
            "v100-dgx1-418.xml",
            0,
            {
                "ecc": "Enabled",
                "ecc_now": 0,
                "ecc_ever": 0,
                "pages_pending": "No",
                "power_limit_w": 300,
            },
        ),
        (
            "v100-dgx1-418.xml",
            1,
            {
                "ecc_now": 1,
                "ecc_ever": 3,
                "pages_pending": "Yes",
                "power_limit_w": 250,
                "sm_set_mhz": 1215,
            },
        ),
        (
            "v100s-460.xml",
            0,
            {"persistence": "Disabled", "sm_mhz": 1410, "sm_max_mhz": 1597, "sm_default_mhz": 1245},
        ),
        (
            "a100-dgx-525.xml",
            1,
            {
                "mig": "Enabled",
                "rows_pending": "Yes",
                "rows_failed": "No",
                "ecc_now": 0,
                "ecc_ever": 1,
            },
        ),
        (
            "a100-dgx-525.xml",
            2,
            {
                "pcie_width": 8,
                "pcie_width_max": 16,
                "slowed_by": "hw_slowdown, hw_thermal_slowdown",
            },
        ),
        (
            "h100-hgx-550.xml",
            0,
            {
                "fabric": "Completed/Success",
                "power_limit_w": 700,
                "power_default_w": 700,
                "ecc_now": 0,
            },
        ),
        (
            "h100-hgx-550.xml",
            1,
            {"ecc_now": 3, "ecc_ever": 4},
        ),  # 0 by parity, 1 by SEC-DED, 2 in DRAM; 1, 1 and 2 ever
        ("h100-no-fabric-580.xml", 0, {"fabric": "In Progress", "rows_failed": "Yes"}),
        (
            "h200-pair-580.xml",
            1,
            {
                "fabric": "Completed/Success",
                "sm_max_mhz": 1980,
                "pcie_gen": 5,
                "pcie_width": 16,
                "ecc_ever": 0,
            },
        ),
        (
            "rtx4070-575.xml",
            0,
            {"power_limit_w": 95, "power_default_w": 55, "pcie_width": 8, "pcie_width_max": 8},
        ),
    ],
)
def test_the_state_of_each_gpu_is_found_wherever_its_driver_keeps_it(
    name: str, gpu: int, known: dict[str, Any]
) -> None:
    state = gpu_states(facts(name))[gpu]
    assert {key: state.get(key) for key in known} == known


@pytest.mark.parametrize(
    ("name", "absent"),
    [
        (
            "gtx1070-418.xml",
            {"ecc", "ecc_now", "mig", "fabric", "rows_pending", "sm_set_mhz", "slowed_by"},
        ),
        ("v100-dgx1-418.xml", {"mig", "fabric", "rows_pending"}),
        ("v100s-460.xml", {"mig", "fabric", "rows_pending"}),
        ("rtx4070-575.xml", {"ecc", "ecc_now", "ecc_ever", "mig", "fabric", "sm_set_mhz"}),
    ],
)
def test_what_a_driver_does_not_know_is_absent_and_not_zero(name: str, absent: set[str]) -> None:
    assert all(absent.isdisjoint(state) for state in gpu_states(facts(name)))


def test_what_all_gpus_have_alike_is_kept_once() -> None:
    found = facts("a100-dgx-525.xml")["gpu"]
    assert (found["sm_max_mhz"], found["pcie_width"], found["mig"]) == (
        1410,
        [16, 16, 8],
        ["Disabled", "Enabled", "Disabled"],
    )


def test_a_node_of_eight_gpus_takes_little_room_in_a_manifest() -> None:
    text = (DATA / "h100-hgx-550.xml").read_text()
    entry = text[text.index("<gpu ") : text.index("</gpu>") + 6]
    eight = text[: text.index("<gpu ")] + entry * 8 + "</nvidia_smi_log>"
    whole = {"topology": matrix("h200-hgx.topo"), **gpu_facts(eight)}
    assert len(whole["gpus"]) == 8 and len(json.dumps(whole)) < 3500


def test_processes_are_told_with_their_users_and_without_their_arguments() -> None:
    found = facts("v100s-460.xml", p20461="alice")["gpu_processes"]
    assert found == [
        {"gpu": "0", "pid": "20461", "user": "alice", "name": "python3", "used_mib": 31673},
        {"gpu": "0", "pid": "20999", "user": None, "name": "tool", "used_mib": 5},
    ]
    assert facts("rtx4070-575.xml")["gpu_processes"] == []  # a display's


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<nvidia_smi_log><gpu>",
        "No devices were found",
        "<nvidia_smi_log>&x;</nvidia_smi_log>",
        "<a></a>",
    ],
)
def test_what_is_not_xml_of_nvidia_smi_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        gpu_facts(text)


def test_entities_are_refused_before_they_are_expanded() -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa">]><nvidia_smi_log>&a;</nvidia_smi_log>'
    with pytest.raises(ValueError, match="entities"):
        gpu_facts(bomb)


# ------------------------------------------------------------------ topology


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        # The cube mesh of a DGX-1 has 16 joined pairs of 28, half of them with two links.
        ("v100-dgx1.topo", {"NV1": 8, "NV2": 8, "SYS": 12}),
        ("h200-hgx.topo", {"NV18": 28}),
        ("h200-pair.topo", {"NV18": 1}),
        ("rtx5090-pair.topo", {"PHB": 1}),
        ("container.topo", {"NV4": 1}),
    ],
)
def test_the_links_of_all_pairs_are_read(name: str, kinds: dict[str, int]) -> None:
    assert Counter(pairs(matrix(name)).values()) == kinds


def test_columns_of_network_devices_and_places_are_read() -> None:
    dgx, hgx, container = (
        matrix("v100-dgx1.topo"),
        matrix("h200-hgx.topo"),
        matrix("container.topo"),
    )
    assert dgx["devices"][8:] == ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"]
    assert dgx["links"]["GPU5"].split()[8:] == ["SYS", "PIX", "SYS", "PHB"]
    assert (dgx["cpus"][0], dgx["cpus"][7], dgx["numa"]) == ("0-19,40-59", "20-39,60-79", [""] * 8)
    assert hgx["nics"] == {"NIC0": "mlx5_0", "NIC1": "mlx5_1", "NIC2": "mlx5_2", "NIC3": "mlx5_3"}
    assert (hgx["links"]["GPU0"].split()[8:], hgx["numa"]) == (
        ["PXB", "NODE", "SYS", "SYS"],
        list("00001111"),
    )
    assert (container["cpus"], container["numa"]) == (["", ""], ["", ""])


@pytest.mark.parametrize(
    "name", ["rocep12s0", "ionic_0", "mana_0", "roceP2p1s0f0", "hns_0", "NIC0", "cxgb4_0"]
)
def test_a_network_device_of_any_name_has_the_column_of_its_own(name: str) -> None:
    head = f"\tGPU0\tGPU1\t{name}\tmlx5_1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    found = topology(
        f"{head}GPU0\t X \tNV12\tPXB\tSYS\tN/A\t1\t\tN/A\nGPU1\tNV12\t X \tSYS\tPXB\t0-9\t0\t\tN/A\n"
    )
    assert found and found["devices"] == ["GPU0", "GPU1", name, "mlx5_1"]
    assert found["links"] == {"GPU0": "X NV12 PXB SYS", "GPU1": "NV12 X SYS PXB"}
    assert (found["cpus"], found["numa"]) == (["", "0-9"], ["1", "0"])


def test_a_matrix_with_a_cell_too_few_is_none_rather_than_shifted() -> None:
    assert topology("\tGPU0\tGPU1\tmlx5_0\nGPU0\t X \tNV1\tPIX\nGPU1\t X \tPIX\tSYS\n") is None


@pytest.mark.parametrize(
    "text", ["", "Failed to initialize NVML", "\tGPU0\tGPU1\nGPU0\t X \n", "\tGPU0\nGPU0\t <b>\n"]
)
def test_what_is_no_matrix_is_none(text: str) -> None:
    assert topology(text) is None


# ------------------------------------------------------------------ kernel log


def test_each_xid_of_each_gpu_is_told_once_with_its_age() -> None:
    lines = [
        [
            9000.4,
            "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        ],
        [
            8000,
            "NVRM: Xid (PCI:0000:b9:00): 74, pid=<unknown>, name=<unknown>, NVLink: fatal error detected on link 6",
        ],
        [500, "NVRM: GPU at PCI:0000:3b:00: GPU-x"],
        [400, "NVRM: Xid (0000:3B:00): 79, GPU has fallen off the bus."],
        [300, "NVRM: Xid (PCI:0000:01:00): 31, Ch 0000000b, engmask 00000120, intr 10000000"],
    ]
    found = xids(lines, ["00000000:3B:00.0", "00000000:B9:00.0"])
    assert [(one["gpu"], one["code"], one["count"], one["age_s"]) for one in found] == [
        ("1", 74, 1, 8000),
        ("0", 79, 2, 400),
        ("0000:01:00", 31, 1, 300),
    ]
    assert found[2]["text"] == "Ch 0000000b, engmask 00000120, intr 10000000"


# ------------------------------------------------------------------ what a runner packs


def packed(value: Any) -> str:
    return base64.b64encode(zlib.compress(json.dumps(value).encode())).decode()


@pytest.mark.parametrize(
    ("smi", "gpus"),
    [
        (None, None),
        ({"code": None, "text": ""}, "nvidia-smi did not answer in 10 s"),
        (
            {"code": 9, "text": "NVIDIA-SMI has failed because …\n"},
            "NVIDIA-SMI has failed because …",
        ),
        ({"code": 6, "text": ""}, "nvidia-smi ended with 6"),
        (
            {"code": 0, "text": "hello"},
            "nvidia-smi -q -x wrote unexpected output: no <nvidia_smi_log>; hello",
        ),
    ],
)
def test_gpus_that_nobody_can_tell_of_are_a_reason(smi: Any, gpus: Any) -> None:
    assert parse_facts(unpack_facts(packed({"smi": smi})))["gpus"] == gpus


@pytest.mark.parametrize(
    "value", [None, "", "no", packed([1]), packed({})[:-8], packed({"a": "b" * (9 << 20)})]
)
def test_what_is_not_packed_as_a_runner_does_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="packed facts"):
        unpack_facts(value)


def test_ports_are_told_without_the_kernels_numbers_and_gids_by_type() -> None:
    entries = [
        {"device": "mlx5_0", "port": "1", "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)",
         "link_layer": "InfiniBand", "lid": "0x1f", "firmware": "28.39.1002", "interfaces": ["ib0"],
         "gids": [[0, "fe80:0000:0000:0000:5c25:7303:0012:3456", "IB/RoCE v1", "ib0"]]},
        {"device": "mlx5_bond_0", "port": "1", "state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "25 Gb/sec (1X EDR)",
         "link_layer": "Ethernet", "lid": "0x0", "firmware": "", "interfaces": ["bond0"],
         "gids": [[0, "fe80:0000:0000:0000:0a00:27ff:fe00:0001", "IB/RoCE v1", "bond0"],
                  [1, "fe80:0000:0000:0000:0a00:27ff:fe00:0001", "RoCE v2", "bond0"],
                  [2, "0000:0000:0000:0000:0000:ffff:0a0b:0002", "IB/RoCE v1", "bond0"],
                  [3, "0000:0000:0000:0000:0000:ffff:0a0b:0002", "RoCE v2", "bond0"]]},
        {"device": "mlx5_2", "port": "1", "state": "1: DOWN", "phys_state": "3: Disabled", "rate": ""},
    ]  # fmt: skip
    found = ports_of(entries)
    assert [(one["state"], one["physical"], one["rate_gbit"]) for one in found] == [
        ("ACTIVE", "LinkUp", 400.0),
        ("ACTIVE", "LinkUp", 25.0),
        ("DOWN", "Disabled", None),
    ]
    assert (found[0]["gids"], found[0]["ipv4_gid"]) == ({"IB/RoCE v1": "0"}, None)
    assert (found[1]["gids"], found[1]["ipv4_gid"]) == ({"IB/RoCE v1": "0,2", "RoCE v2": "1,3"}, 3)
