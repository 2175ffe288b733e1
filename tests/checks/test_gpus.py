"""What preflight judges of GPUs, as nvidia-smi shows them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import pytest

from orchestrator.checks.check import Check
from orchestrator.checks.cross_node import characteristics
from orchestrator.checks.facts import node_facts
from orchestrator.checks.gpus import count_check
from orchestrator.checks.judge import judge, unfit
from orchestrator.devices import nvidia_smi as nvidiasmi
from orchestrator.devices.gpu_states import gpu_states, select_gpus, without_places
from orchestrator.errors import RunError
from orchestrator.inventory.hosts import Host
from tests.support.node_facts import DATA, HOST, healthy, judged, verdict_of


@pytest.mark.parametrize(
    ("name", "gpus", "verdict", "found"),
    [
        ("gpus", "v100-dgx1-418.xml", "ok", "2 x Tesla V100-SXM2-16GB 16 GiB, driver 418.126.02"),
        ("gpus", "v100s-460.xml", "failed", "1 GPU"),
        ("idle", "h100-hgx-550.xml", "ok", "all 2 GPUs idle"),
        ("cuda", "h100-hgx-550.xml", "ok", "the driver's 12.4, the framework's 12.4"),
        ("cuda", "v100-dgx1-418.xml", "warning", "the driver's CUDA is 10.1, the framework's 12.4"),
        ("ecc", "h100-hgx-550.xml", "warning", "GPU 1: 3 uncorrected errors since the driver was loaded"),
        ("ecc", "v100-dgx1-418.xml", "warning",
         "GPU 1: 1 uncorrected error since the driver was loaded, page retirement pending"),
        ("ecc", "a100-dgx-525.xml", "warning", "GPU 1: row remapping pending"),
        ("clocks", "h100-hgx-550.xml", "ok", "up to 1980 MHz, 700 W"),
        (
            "clocks",
            "v100-dgx1-418.xml",
            "warning",
            "GPU 1: power limited to 250 W, default 300 W, clock set to 1215 MHz, default 1290 MHz",
        ),
        ("clocks", "a100-dgx-525.xml", "warning",
         "GPU 2: clocks lowered by the hardware, by half or more and temperature, by half or more"),
        ("modes", "h100-hgx-550.xml", "ok", "compute mode Default, persistence enabled"),
        ("modes", "a100-dgx-525.xml", "warning", "GPU 1: MIG is on"),
        ("pcie", "h100-hgx-550.xml", "ok", "generation 5 x16"),
        ("pcie", "a100-dgx-525.xml", "warning", "GPU 2: 8 of 16 lanes"),
        ("fabric", "h100-hgx-550.xml", "ok", "NVSwitch fabric complete"),
    ],
)  # fmt: skip
def test_gpus_of_several_generations_are_judged(
    name: str, gpus: str, verdict: str, found: str
) -> None:
    assert verdict_of(name, healthy(gpus)) == (verdict, found)


def test_a_fabric_that_is_not_complete_and_memory_past_repair_refuse_a_run() -> None:
    facts = healthy("h100-no-fabric-580.xml")
    host = replace(HOST, gpus=1)
    assert verdict_of("fabric", facts, host) == ("failed", "GPU 0: In Progress")
    assert verdict_of("ecc", facts, host) == ("failed", "GPU 0: a memory row could not be remapped")
    error = unfit(judge(host, facts, None, None))[0]
    assert isinstance(error, RunError) and (error.host, error.kind) == ("gpu01", "node_unfit")


def test_an_old_consumer_card_has_no_checks_of_what_it_does_not_have() -> None:
    checks = judged(healthy("gtx1070-418.xml", "rtx5090-pair.topo"), replace(HOST, gpus=1))
    assert {"ecc", "fabric"}.isdisjoint(checks)
    assert {
        checks[name].verdict for name in ("gpus", "idle", "clocks", "modes", "pcie", "links")
    } == {"ok"}


def test_who_uses_the_gpus_is_named() -> None:
    found = verdict_of("idle", healthy("v100s-460.xml"), replace(HOST, gpus=1))
    assert found == (
        "warning",
        "GPU 0: python3 of alice (process 20461); GPU 0: tool of an unknown user (process 20999)",
    )
    hidden = healthy("v100s-460.xml", gpu_processes=[])
    assert (
        verdict_of("idle", hidden, replace(HOST, gpus=1))[1]
        == "GPU 0: memory or time used by processes that nvidia-smi does not list"
    )


@pytest.mark.parametrize(
    ("gpus", "found"),
    [
        (None, "no nvidia-smi, amd-smi or rocm-smi"),
        ([], "0 GPUs"),
        ("nvidia-smi did not answer in 10 s", "nvidia-smi did not answer in 10 s"),
    ],
)
def test_a_node_without_an_answer_from_nvidia_smi_fails_and_is_judged_no_further(
    gpus: Any, found: str
) -> None:
    checks = judged(healthy() | {"gpus": gpus}, replace(HOST, gpus=None))
    assert (checks["gpus"].verdict, checks["gpus"].found) == ("failed", found)
    assert {"idle", "ecc", "clocks"}.isdisjoint(checks)


@pytest.mark.parametrize(
    ("xids", "verdict", "found"),
    [
        ([], "ok", "no Xid since the machine started"),
        ("not readable: Operation not permitted", "ok", "kernel log not readable: Operation not permitted"),
        ([{"gpu": "3", "code": 31, "count": 1, "age_s": 300, "text": "Ch 0b"}], "ok", "GPU 3: Xid 31 (Ch 0b) 5 min ago"),
        ([{"gpu": "3", "code": 31, "count": 1, "age_s": 9, "text": "x"},
          {"gpu": "0", "code": 79, "count": 2, "age_s": 7200, "text": "GPU has fallen off the bus."}],
         "warning", "GPU 0: Xid 79 (fallen off the bus) 2 h ago"),
    ],
)  # fmt: skip
def test_xids_of_the_hardware_warn_and_those_of_programs_are_told(
    xids: Any, verdict: str, found: str
) -> None:
    assert verdict_of("xid", healthy(xids=xids)) == (verdict, found)


def test_a_pair_without_its_nvlink_is_named_where_a_switch_joins_all_others() -> None:
    text = (DATA / "h200-hgx.topo").read_text().splitlines()
    for row, column in ((3, 6), (6, 3)):  # GPU2 and GPU5
        cells = text[row].split("\t")
        cells[column] = "SYS"
        text[row] = "\t".join(cells)
    assert verdict_of(
        "links",
        healthy(topology="h200-hgx.topo") | {"topology": nvidiasmi.topology("\n".join(text))},
    ) == (
        "warning",
        "GPU2-GPU5 SYS",
    )
    assert verdict_of("links", healthy(topology="v100-dgx1.topo")) == (
        "ok",
        "NV1 8 pairs, NV2 8 pairs, SYS 12 pairs",
    )


@pytest.mark.parametrize("devices", ["1", " GPU-1b"])
def test_only_the_gpus_of_a_run_are_looked_at(devices: str) -> None:
    """Beside the second GPU works somebody else, on one that is hot, throttled and has an Xid."""
    facts = healthy("h200-pair-580.xml", "h200-pair.topo")
    facts["gpu"] |= {
        "uuid": ["GPU-0a", "GPU-1b"],
        "slowed_by": ["hw_slowdown", "gpu_idle"],
        "power_limit_w": [300, 700],
    }
    facts["gpus"][0] |= {"used_mib": 90_000, "utilization": 100, "name": "NVIDIA L4"}
    facts["gpu_processes"] = [{"pid": "7", "gpu": "0", "name": "train", "user": "bob"}]
    facts["xids"] = [{"gpu": "0", "code": 79, "count": 1, "age_s": 60, "text": ""}]
    whole = judged(facts)
    assert [name for name, check in whole.items() if check.verdict != "ok" and name in ("idle", "xid", "clocks")] == [
        "idle", "xid", "clocks",
    ]  # fmt: skip
    host = Host("lab2", "10.11.0.3", gpus=1, vars={**HOST.vars, "cuda_visible_devices": devices})
    own = select_gpus(facts, devices)
    checks = judged(own, host)
    assert checks["gpus"].found.startswith("1 x NVIDIA H200 140 GiB, driver 580.159.04")
    assert {checks[name].verdict for name in ("gpus", "idle", "xid", "clocks")} == {
        "ok"
    } and "links" not in checks
    assert [gpu["index"] for gpu in gpu_states(own)] == ["1"]
    assert (
        characteristics(node_facts(own))["gpu"] == "NVIDIA H200"
        and characteristics(node_facts(own))["power limit"] == "700 W"
    )


def test_the_matrix_of_some_gpus_has_their_numbers_and_of_a_lab_no_places() -> None:
    facts = healthy("h200-pair-580.xml", "h200-hgx.topo")
    facts |= {"gpus": [facts["gpus"][0] | {"index": str(at)} for at in range(8)], "gpu": {}}
    own = select_gpus(facts, "2,5")["topology"]
    assert own["devices"][:3] == ["GPU0", "GPU1", "NIC0"] and list(own["links"]) == ["GPU0", "GPU1"]
    assert own["links"]["GPU1"].split()[:2] == [
        nvidiasmi.pairs(facts["topology"])["GPU2", "GPU5"],
        "X",
    ]
    assert own["numa"] == ["0", "1"] and len(own["links"]["GPU0"].split()) == len(own["devices"])
    nodes = [
        without_places(select_gpus(facts, devices))["topology"] for devices in ("0,1", "2,3", "6,7")
    ]
    assert nodes[0] == nodes[1] == nodes[2] and nodes[0]["links"]["GPU0"].startswith("X NV")


def test_a_listed_gpu_that_does_not_exist_is_missed() -> None:
    host = Host("lab2", "10.11.0.3", gpus=2, vars={**HOST.vars, "cuda_visible_devices": "1,2"})
    check = judged(select_gpus(healthy("h200-pair-580.xml"), "1,2"), host)["gpus"]
    assert (check.verdict, check.found) == ("failed", "1 GPU in vars.cuda_visible_devices 1,2")


def test_mig_instances_leave_the_facts_of_all_gpus_and_are_counted() -> None:
    facts = healthy("h200-pair-580.xml")
    assert select_gpus(facts, "MIG-0f") == facts | {"devices": "MIG-0f", "instances": 1}
    host = Host(
        "lab2", "10.11.0.3", gpus=3, vars={**HOST.vars, "cuda_visible_devices": "MIG-0,MIG-1,MIG-2"}
    )
    assert judged(select_gpus(facts, "MIG-0,MIG-1,MIG-2"), host)["gpus"].verdict == "ok"
    assert judged(select_gpus(facts, "MIG-0,MIG-1"), host)["gpus"].verdict == "failed"
    assert select_gpus(facts | {"gpus": "no nvidia-smi"}, "0")["gpus"] == "no nvidia-smi"


# ------------------------------------------------------------------ GPUs that do not answer

NOT_TOLD = (
    "N/A",
    "[N/A]",
    "Not Supported",
    "Requested functionality has been deprecated",
    "Insufficient Permissions",
)


def smi_with(path: str, text: str) -> dict[str, Any]:
    """Return the facts of two H100 of which the second has this text as a value."""
    root = ElementTree.fromstring(
        (DATA / "h100-hgx-550.xml").read_text().partition("?>")[2].strip()
    )
    node = root.findall("gpu")[1]
    for name in path.split("/"):
        below = node.find(name)
        node = ElementTree.SubElement(node, name) if below is None else below
    node.text = text
    return nvidiasmi.gpu_facts(ElementTree.tostring(root, encoding="unicode"))


def verdict_with(path: str, text: str) -> Check:
    return count_check(HOST, node_facts(smi_with(path, text)), 2)


@pytest.mark.parametrize(
    "path", [*sorted(nvidiasmi._NUMERIC), "ecc_mode/current_ecc", "product_name", "fabric/status"]
)
@pytest.mark.parametrize(
    "text", ["GPU requires reset", "[Unknown Error]", "ERR!", "Unknown", "GPU is lost"]
)
def test_an_error_in_place_of_any_value_that_is_read_fails_the_gpu(path: str, text: str) -> None:
    check = verdict_with(path, text)
    assert (
        check.verdict == "failed"
        and check.found.startswith("GPU 1: ")
        and path.replace("/", ".") in check.found
    )


@pytest.mark.parametrize(
    "path",
    [
        *sorted(nvidiasmi._NUMERIC),
        "ecc_errors/volatile/dram_uncorrectable",
        "remapped_rows/remapped_row_failure",
    ],
)
@pytest.mark.parametrize("text", ["-1", "-1 MiB", "nan"])
def test_a_value_that_cannot_be_fails_the_gpu(path: str, text: str) -> None:
    check = verdict_with(path, text)
    expected = f"GPU 1: error: {text} ({path.replace('/', '.')})"
    assert (check.verdict, check.found) == ("failed", expected)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("fb_memory_usage/used", "no memory in use of GPU 1"),
        ("utilization/gpu_util", "no utilization of GPU 1"),
    ],
)
@pytest.mark.parametrize("text", ["N/A", ""])
def test_a_gpu_of_which_memory_or_use_is_not_told_is_not_called_idle(
    path: str, text: str, found: str
) -> None:
    verdict = verdict_of("idle", smi_with(path, text))
    assert verdict == ("warning", f"not known: nvidia-smi tells {found}")


LOST = "Unable to determine the device handle for GPU 0000:43:00.0: GPU is lost."


@pytest.mark.parametrize(
    ("written", "replaced", "verdict", "found"),
    [
        ("<attached_gpus>2<", "<attached_gpus>8<", "failed", "2 GPUs; 6 others attached"),
        ("</nvidia_smi_log>", f"</nvidia_smi_log>\n{LOST}\n", "warning", f"2 GPUs; nvidia-smi says: {LOST}"),
        ("<?xml", "WARNING: infoROM is corrupted at gpu 0000:43:00.0\n<?xml", "warning",
         "2 GPUs; nvidia-smi says: WARNING: infoROM is corrupted at gpu 0000:43:00.0"),
        ("<product_name>NVIDIA H100 80GB HBM3<", "<product_name>NVIDIA H100 PCIe<", "warning",
         "GPU 0: NVIDIA H100 PCIe 80 GiB; GPU 1: NVIDIA H100 80GB HBM3 80 GiB"),
    ],
)  # fmt: skip
def test_what_nvidia_smi_says_of_the_gpus_it_does_not_list_is_told(
    written: str, replaced: str, verdict: str, found: str
) -> None:
    text = (DATA / "h100-hgx-550.xml").read_text()
    assert written in text
    facts = nvidiasmi.gpu_facts(text.replace(written, replaced, 1))
    check = count_check(HOST, node_facts(facts), None)
    assert (check.verdict, check.found) == (verdict, found)
    chosen = select_gpus(facts, "1")
    assert count_check(HOST, node_facts(chosen), 1).verdict != "failed"


def test_a_lost_gpu_is_named_where_one_is_too_few() -> None:
    text = (DATA / "v100s-460.xml").read_text().replace("<attached_gpus>1<", "<attached_gpus>2<")
    check = count_check(HOST, node_facts(nvidiasmi.gpu_facts(f"{text}\n{LOST}\n")), None)
    assert (check.verdict, check.found) == (
        "failed",
        f"1 GPU; 1 other attached; nvidia-smi says: {LOST}",
    )


def test_a_fabric_that_has_lost_bandwidth_is_told() -> None:
    health = "<health><bandwidth>{}</bandwidth><route_unhealthy>False</route_unhealthy></health>"
    text = (DATA / "h100-hgx-550.xml").read_text()
    head, tail = text.rsplit("</fabric>", 1)
    for word, verdict in (
        ("Degraded", ("warning", "GPU 1: bandwidth Degraded")),
        ("Full", ("ok", "NVSwitch fabric complete")),
        ("N/A", ("ok", "NVSwitch fabric complete")),
    ):
        facts = healthy() | nvidiasmi.gpu_facts(f"{head}{health.format(word)}</fabric>{tail}")
        assert verdict_of("fabric", facts) == verdict


@pytest.mark.parametrize("path", sorted(nvidiasmi._NUMERIC))
@pytest.mark.parametrize("text", NOT_TOLD)
def test_a_value_that_a_gpu_does_not_have_is_no_fault(path: str, text: str) -> None:
    assert verdict_with(path, text).verdict == "ok"


@pytest.mark.parametrize(
    ("path", "text", "verdict"),
    [
        ("fan_speed", "Unknown Error", "warning"),
        ("fan_speed", "GPU requires reset", "failed"),
        ("product_brand", "Unknown", "ok"),
        ("gpu_recovery_action", "None", "ok"),
        ("gpu_recovery_action", "Drain and Reset", "failed"),
        ("gpu_reset_status/reset_required", "No", "ok"),
        ("gpu_reset_status/reset_required", "Yes", "failed"),
        ("pstate", "GPU is lost", "failed"),
        ("inforom_version/ecc_object", "Corrupted infoROM", "failed"),
    ],
)
def test_elsewhere_an_error_is_told_and_one_that_ends_all_work_fails_the_gpu(
    path: str, text: str, verdict: str
) -> None:
    assert verdict_with(path, text).verdict == verdict


def test_only_the_gpus_of_a_run_have_to_answer() -> None:
    facts = smi_with("utilization/gpu_util", "GPU requires reset")
    assert (
        count_check(replace(HOST, gpus=1), node_facts(select_gpus(facts, "0")), 1).verdict == "ok"
    )
    assert (
        count_check(replace(HOST, gpus=1), node_facts(select_gpus(facts, "1")), 1).verdict
        == "failed"
    )


def test_gpus_of_which_neither_memory_nor_use_is_told_are_not_called_idle() -> None:
    gpus = [{**gpu, "used_mib": None, "utilization": None} for gpu in healthy()["gpus"]]
    verdict, found = verdict_of("idle", healthy() | {"gpus": gpus})
    assert verdict == "warning" and "of GPU 0,1" in found
