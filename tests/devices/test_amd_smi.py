"""amd-smi, rocm-smi and the checks of AMD's GPUs, on recorded output of MI210, MI250 and MI300X."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checks.facts import parse_facts
from orchestrator.checks.gpus import gpu_checks
from orchestrator.checks.judge import judge
from orchestrator.devices.amd_smi import amd_gpu_facts, rocm_gpu_facts
from orchestrator.devices.answers import measure
from orchestrator.devices.gpu_states import gpu_states, select_gpus
from orchestrator.inventory import Host
from orchestrator.results.hardware import devices_of_node
from orchestrator.results.language_model import device_of, with_devices
from orchestrator.results.numbers.peaks import devices_in

DATA = Path(__file__).parents[1] / "data/amd-smi"
HOST = Host("node1", "10.11.0.2")


def data(name: str) -> str:
    return (DATA / name).read_text()


def two_mi300x(process: str = "", **of_second: Any) -> dict[str, Any]:
    """The facts of a node with the two GPUs whose metrics are recorded; the second is like the
    first, but for ``of_second``.
    """
    (entry,) = json.loads(data("mi300x-static.json"))["gpu_data"]
    second = {**entry, "gpu": 1, "bus": {"bdf": "0000:93:00.0"}, **of_second}
    static = json.dumps({"gpu_data": [entry, second]})
    return amd_gpu_facts(static, data("mi300x-metric.json"), process, {"4242": "alice"})


def test_a_recorded_mi300x_tells_model_driver_memory_and_use() -> None:
    facts = two_mi300x()
    assert facts["gpus"] == [
        {
            "index": str(index),
            "name": "AMD Instinct MI300X",
            "driver": "6.19.14",
            "memory_mib": 196592,
            "used_mib": used,
            "utilization": busy,
        }
        for index, used, busy in ((0, 17153, 94), (1, 284, 0))
    ]
    assert (facts["gpu"]["uuid"], facts["gpu"]["bus_id"]) == (
        "GPU-6f1f0a2b3c4d5e6f",
        ["0000:83:00.0", "0000:93:00.0"],
    )


def test_a_recorded_mi210_tells_limit_clocks_lanes_ecc_and_numa_node() -> None:
    facts = amd_gpu_facts(data("mi210-static.json"), "", "Invalid platform", {})
    (state,) = gpu_states(facts)
    assert (state["name"], state["memory_mib"], state["power_limit_w"]) == (
        "AMD Instinct MI210",
        65520,
        300,
    )
    assert (
        state["sm_max_mhz"],
        state["mem_max_mhz"],
        state["pcie_width_max"],
        state["pcie_gen_max"],
    ) == (1700, 1600, 16, 4)
    assert (state["ecc"], state["numa_node"]) == ("Enabled", 1)
    assert state["used_mib"] is state["utilization"] is None  # unknown, not zero
    assert {check.name: check.found for check in gpu_checks(HOST, facts, 1)}[
        "clocks"
    ] == "up to 1700 MHz, 300 W"


@pytest.mark.parametrize(
    ("part", "key"), [("mem_usage", "used_vram"), ("usage", "gfx_activity"), ("ecc", "total_uncorrectable_count")]
)  # fmt: skip
@pytest.mark.parametrize("value", [-1, "-1"])
def test_a_number_below_0_is_no_value_and_fails_the_gpu(part: str, key: str, value: Any) -> None:
    metrics = json.loads(data("mi300x-metric.json"))
    entry = (metrics if isinstance(metrics, list) else metrics["gpu_data"])[0]
    entry.setdefault(part, {})[key] = {"value": value, "unit": "MB"}
    facts = amd_gpu_facts(data("mi300x-static.json"), json.dumps(metrics), "", {})
    (check,) = (check for check in judge(HOST, facts, None, 1) if check.name == "gpus")
    assert check.verdict == "failed" and f"error: -1 ({part}.{key}" in check.found


def test_a_recorded_mi250_of_the_older_program_tells_one_device_a_die() -> None:
    facts = rocm_gpu_facts("WARNING: deprecated\n" + data("mi250-rocm-smi.json"), {})
    assert [gpu["name"] for gpu in facts["gpus"]] == ["AMD INSTINCT MI250 (MCM) OAM AC MBA"] * 2
    assert [(gpu["driver"], gpu["utilization"]) for gpu in facts["gpus"]] == [
        ("6.2.4", 10),
        ("6.2.4", 20),
    ]
    assert facts["gpu"]["power_limit_w"] == 560 and facts["gpu"]["mem_mhz"] == 1600
    (device,) = devices_in(facts["gpus"][0]["name"]).values()
    assert (device.name, device.peak("bf16")) == ("MI250", 362.1e12 / 2)


def test_processes_are_told_with_gpu_and_user_and_a_sentence_is_none() -> None:
    info = {
        "name": "/usr/bin/python3",
        "pid": 4242,
        "memory_usage": {"vram_mem": {"value": 17 * 2**30, "unit": "B"}},
    }
    listed = [{"gpu": 0, "process_list": [{"process_info": "No running processes detected"}]}]
    listed += [{"gpu": 1, "process_list": [{"process_info": info}]}]
    facts = two_mi300x(json.dumps(listed))
    assert facts["gpu_processes"] == [
        {"gpu": "1", "pid": "4242", "user": "alice", "name": "python3", "used_mib": 17 * 1024}
    ]
    idle = next(check for check in gpu_checks(HOST, facts, 2) if check.name == "idle")
    assert idle.found == (
        "GPU 1: python3 of alice (process 4242); GPU 0: memory or time used by processes that amd-smi does not list"
    )


def test_a_process_of_the_older_program_is_told_without_a_gpu() -> None:
    whole = json.loads(data("mi250-rocm-smi.json"))
    whole["system"] |= {"PID4242": "python3, 2, 177386942464, 0, 4", "PID7": "idle, 0, 0, 0, 0"}
    facts = rocm_gpu_facts(json.dumps(whole), {"4242": "alice"})
    idle = next(check for check in gpu_checks(HOST, facts, 2) if check.name == "idle")
    assert (idle.verdict, idle.found) == ("warning", "python3 of alice (process 4242)")


def test_partitions_are_a_warning_and_have_no_peak() -> None:
    whole = two_mi300x()
    parts = two_mi300x(partition={"accelerator_partition": "CPX", "memory_partition": "NPS4"})
    assert devices_of_node(whole) == ["AMD Instinct MI300X"]
    assert devices_of_node(parts) == ["AMD Instinct MI300X", "AMD Instinct MI300X CPX"]
    modes = next(check for check in gpu_checks(HOST, parts, 2) if check.name == "modes")
    assert (modes.verdict, modes.found) == ("warning", "GPU 1: in partitions (CPX)")
    observed = {
        "devices": [{"name": "AMD Instinct MI300X", "count": 2}]
    }  # HIP names a partition so too
    assert (
        device := device_of(with_devices(observed, devices_of_node(whole)))
    ) and device.name == "MI300X"
    assert device_of(with_devices(observed, devices_of_node(parts))) is None


@pytest.mark.parametrize(("name", "device", "tflops"), [
    ("AMD Instinct MI250X", "MI250X", 191.5),
    ("AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2", "MI250X", 191.5),
    ("AMD Instinct MI210", "MI210", 181),
    ("AMD Instinct MI300X VF", "MI300X", 1307.4),
])  # fmt: skip
def test_peaks_are_those_of_what_hip_shows_as_a_device(
    name: str, device: str, tflops: float
) -> None:
    (found,) = devices_in(name).values()
    assert (found.name, found.peak("bf16")) == (device, pytest.approx(tflops * 1e12))


def test_a_name_that_leaves_open_which_model_it_is_has_no_peak() -> None:
    assert device_of({"devices": [{"name": "AMD Instinct MI250X/MI250"}]}) is None


def test_the_checks_of_a_node_name_amds_programs_and_know_no_xids() -> None:
    raw = {
        "amd_static": {"code": 0, "text": data("mi300x-static.json")},
        "kernel_log": {"lines": [], "total": 0},
    }
    facts = parse_facts(raw)
    assert "xids" not in facts and facts["gpus"][0]["name"] == "AMD Instinct MI300X"
    few = {check.name: check for check in gpu_checks(replace(HOST, gpus=8), facts, 8)}["gpus"]
    assert (few.verdict, few.found, few.expected) == (
        "failed",
        "1 GPU",
        "8 GPUs",
    ) and "amd-smi" in few.hint
    ports = {"infiniband": [], "infiniband_gbit": 400.0, "peermem": False, "open_driver": False}
    assert "gdr" not in {check.name for check in judge(HOST, facts | ports | rest(), None, None)}


def rest() -> dict[str, Any]:
    """What the checks of a host need beside its GPUs."""
    return {
        "runner_python": "3.10.12", "kernel": "6.8.0", "machine": "x86_64", "cpu": "EPYC", "cores": 64, "memory_bytes": 1 << 40,
        "disk_free_bytes": 1 << 40, "workdir": "/w", "login_s": 0.1, "clock_off_s": 0, "ports_busy": [], "boot_id": "b",
        "shm_bytes": 1 << 40, "framework": {}, "host_key": "k", "limits": {}, "programs": {},
    }  # fmt: skip


@pytest.mark.parametrize(("raw", "reason"), [
    ({"amd_static": {"code": None, "text": ""}}, "amd-smi did not answer in 10 s"),
    ({"amd_static": {"code": 0, "text": "Invalid platform\n"}}, "amd-smi wrote unexpected output: no JSON: Invalid platform"),
    ({"amd_static": {"code": 1, "text": "no permission on /dev/kfd\n"}}, "amd-smi: no permission on /dev/kfd"),
    ({"rocm": {"code": 0, "text": "{}"}}, "rocm-smi wrote unexpected output: no card0: {}"),
    ({"rocm": {"code": 2, "text": ""}}, "rocm-smi ended with 2"),
])  # fmt: skip
def test_a_program_that_does_not_tell_is_the_reason(raw: dict[str, Any], reason: str) -> None:
    facts = parse_facts(raw)
    assert facts["gpus"] == reason
    assert gpu_checks(HOST, facts, 1)[0].found == reason


def test_the_older_program_is_read_where_the_newer_one_is_missing() -> None:
    raw = {"amd_static": None, "rocm": {"code": 0, "text": data("mi250-rocm-smi.json")}}
    assert parse_facts(raw)["gpu_tool"] == "rocm-smi"


def test_devices_are_chosen_by_number_and_by_the_uuid_that_rocr_takes() -> None:
    facts = two_mi300x(asic={"market_name": "AMD Instinct MI300X", "asic_serial": "0xB1"})
    assert gpu_states(facts)[1]["uuid"] == "GPU-00000000000000b1"
    assert [gpu["index"] for gpu in select_gpus(facts, "1")["gpus"]] == ["1"]
    assert [gpu["index"] for gpu in select_gpus(facts, "GPU-6f1f")["gpus"]] == ["0"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "[1]", '{"gpu_data": 3}', '[{"gpu": 0, "asic": "N/A"}]', "[" * 100000]
)
def test_what_is_not_of_amd_smi_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        amd_gpu_facts(text, "", "", {})


@pytest.mark.parametrize(
    "text", ["UNKNOWN", "AMDSMI_STATUS_UNEXPECTED_DATA", "Unable to get usage", "ERROR: GPU[1]"]
)
def test_an_error_in_place_of_a_value_fails_the_gpu(text: str) -> None:
    static, metric = (json.loads(data(f"mi300x-{part}.json")) for part in ("static", "metric"))
    entries = metric["gpu_data"] if isinstance(metric, dict) else metric
    entries[0]["usage"]["gfx_activity"] = text
    facts = amd_gpu_facts(json.dumps(static), json.dumps(metric), "", {})
    check = gpu_checks(replace(HOST, gpus=1), facts, 1)[0]
    assert (check.verdict, "GPU 0: " in check.found, facts["gpus"][0]["utilization"]) == (
        "failed",
        True,
        None,
    )


def test_gpus_whose_metrics_cannot_be_had_are_not_called_idle() -> None:
    facts = amd_gpu_facts(data("mi300x-static.json"), "Invalid platform", "", {})
    idle = next(
        check for check in gpu_checks(replace(HOST, gpus=1), facts, 1) if check.name == "idle"
    )
    assert (idle.verdict, idle.found[:9]) == ("warning", "not known")


@pytest.mark.parametrize("number", [[], {}, None, 1e300])
def test_a_number_of_a_gpu_that_is_none_costs_no_other_fact(number: Any) -> None:
    (entry,) = json.loads(data("mi300x-static.json"))["gpu_data"]
    told = json.dumps({"gpu_data": [{**entry, "gpu": number}]})
    facts = amd_gpu_facts(
        told, told, json.dumps([{"gpu": number, "process_list": [{"pid": 7}]}]), {}
    )
    assert (
        facts["gpus"][0]["name"] == "AMD Instinct MI300X"
        and facts["gpu_processes"][0]["gpu"] == "0"
    )


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, None),
        ("9" * 400, None),
        (None, None),
        ([], None),
        ({"value": "N/A"}, None),
        ("Gen 4", 4),
        ("ERROR: GPU[1]", None),
    ],
)
def test_only_numbers_are_measures(value: Any, number: Any) -> None:
    assert measure(value) == number
