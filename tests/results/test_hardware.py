"""What a table says of the hardware and versions of its rows, and where they are not alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.results.run import RunResult
from orchestrator.results.summary import summarize
from tests.support.cells import cell
from tests.support.summaries import rows


def facts(driver: str, torch: str, free: int) -> dict[str, Any]:
    return {
        "hostname": "x",
        "kernel": "6.1",
        "disk_free_bytes": free,
        "gpus": [
            {
                "index": "0",
                "name": "NVIDIA H200",
                "driver": driver,
                "used_mib": str(free),
                "utilization": "0",
            }
        ]
        * 8,
        "framework": {"torch": torch, "cuda": "12.8"},
    }


def seen(networks: list[str], *gbit: Any) -> dict[str, Any]:
    """Return what a run on H200s observed, with the rates of its nodes' ports."""
    nodes = {
        f"node{i}": facts("550.54", "2.13.0", 0) | {"infiniband_gbit": rate}
        for i, rate in enumerate(gbit)
    }
    return {"facts": nodes, "observed": {"devices": {"NVIDIA H200": 8}, "networks": networks}}


IMPOSSIBLE = "impossible: the arithmetic of 1 × H200 allows at most 77724 samples/s"
TOO_FAST = "impossible: a link of 12.5 GB/s per node allows at most 500841 samples/s"


@pytest.mark.parametrize(
    ("results", "told"),
    [
        (cell("1n1g", [8e4] * 3, dtype="fp16", result=seen([], 400)), (IMPOSSIBLE,)),
        (cell("1n1g", [7e4] * 3, dtype="fp16", result=seen([], 400)), ()),
        (
            cell("1n1g", [8e4] * 3, dtype="fp16", options={"image_size": 64}, result=seen([], 400)),
            (),
        ),
        (
            cell(
                "1n1g", [8e4] * 3, dtype="fp16", options={"num_classes": 10}, result=seen([], 400)
            ),
            (),
        ),
        (
            cell("2n8g", [6e5] * 3, dtype="fp16", result=seen(["NET/IB on mlx5_0"], 100.0, 400.0)),
            (TOO_FAST, "InfiniBand differs: 100 Gb/s on node0, 400 Gb/s on node1"),
        ),
        (
            cell("2n8g", [6e5] * 3, dtype="fp16", result=seen(["NET/IB on mlx5_0"], 400.0, 400.0)),
            (),
        ),
        (cell("2n8g", [6e5] * 3, dtype="fp16", result=seen(["NET/IB on mlx5_0"], 100.0, None)), ()),
        (
            cell(
                "2n8g", [6e5] * 3, dtype="fp16", result=seen(["NET/Socket on eth0"], 100.0, 100.0)
            ),
            (),
        ),
        (cell("2n8g", [6e5] * 3, dtype="fp16", result=seen([], 100.0, 100.0)), ()),
    ],
)
def test_a_speed_is_called_impossible_where_device_or_link_are_known_and_only_there(
    results: list[RunResult], told: tuple[str, ...]
) -> None:
    assert (
        rows(summarize(results))[results[0].spec.shape if results[0].spec else ""].qualifications
        == told
    )


def test_repeats_on_different_devices_have_no_bound() -> None:
    first, second, third = cell("1n1g", [8e4] * 3, dtype="fp16", result=seen([], 400))
    other = replace(third, observed={"devices": {"NVIDIA B200": 8}})
    assert not [
        text
        for text in summarize([first, second, other]).rows[0].qualifications
        if text.startswith("impossible")
    ]


def test_a_simulated_speed_is_never_called_impossible() -> None:
    results = [
        replace(run, simulated=True)
        for run in cell("1n1g", [8e4] * 3, dtype="fp16", result=seen([], 400))
    ]
    assert not [
        text for text in summarize(results).rows[0].qualifications if text.startswith("impossible")
    ]


def test_facts_that_must_be_alike_are_folded_by_value_where_they_are_not() -> None:
    nodes = {
        f"gpu{i:02d}": facts("550.54" if i < 4 else "535.86", "2.13.0", i) for i in range(1, 5)
    }
    row = summarize(cell("4n8g", [9.0] * 3, result={"facts": nodes})).rows[0]
    assert row.qualifications == ("driver differs: 535.86 on gpu04, 550.54 on gpu[01-03]",)


def test_a_version_that_changes_between_repeats_is_said() -> None:
    first, second, third = cell("1n1g", [9.0] * 3)
    results = [
        replace(r, facts={"a": facts("1", v, 0)})
        for r, v in ((first, "2.13"), (second, "2.13"), (third, "2.14"))
    ]
    assert summarize(results).rows[0].qualifications == ("torch differs: 2.13 on a, 2.14 on a",)


def test_a_baseline_measured_with_another_driver_is_said() -> None:
    old = cell("1n1g", [9.0] * 3, result={"facts": {"a": facts("535.86", "2.13", 0)}})
    new = cell("1n2g", [9.0] * 3, result={"facts": {"a": facts("550.54", "2.13", 0)}})
    found = rows(summarize([*old, *new]))
    assert found["1n1g"].qualifications == ()
    assert found["1n2g"].qualifications == ("driver is 550.54, the baseline's was 535.86",)


def test_a_number_measured_on_ailing_gpus_says_so_once_with_the_nodes() -> None:
    ailing = {"pcie_width": [16] * 7 + [8], "pcie_width_max": 16, "ecc_now": [0, 2] + [0] * 6}
    nodes = {
        f"gpu0{n}": facts("580.95", "2.13.0", 0) | ({"gpu": ailing} if n < 3 else {})
        for n in (1, 2, 3, 4)
    }
    for node in nodes.values():
        node["gpus"] = [{**gpu, "index": str(index)} for index, gpu in enumerate(node["gpus"])]
    row = summarize(cell("4n8g", [9.0] * 3, result={"facts": nodes})).rows[0]
    assert row.qualifications == (
        "before it ran on gpu[01-02]: GPU 1: 2 uncorrected errors since the driver was loaded",
        "before it ran on gpu[01-02]: GPU 7: 8 of 16 lanes",
    )
    on_cpu = cell("4n8g", [9.0] * 3, device="cpu", result={"facts": nodes})
    assert not [
        text for text in summarize(on_cpu).rows[0].qualifications if text.startswith("before")
    ]


def test_nodes_whose_mtu_or_power_limit_is_not_the_same_are_said() -> None:
    nodes = {name: facts("580.95", "2.13.0", 0) | {"interface": {"mtu": mtu}, "gpu": {"power_limit_w": watts}}
             for name, mtu, watts in (("a", 9000, 700), ("b", 1500, 700), ("c", 9000, 500))}  # fmt: skip
    row = summarize(cell("3n8g", [9.0] * 3, result={"facts": nodes})).rows[0]
    assert row.qualifications == (
        "MTU differs: 1500 on b, 9000 on a,c",
        "power limit differs: 500 W on c, 700 W on a,b",
    )


@pytest.mark.parametrize(
    "odd",
    [
        {
            "gpus": [{"utilization": 0, "used_mib": "0"}],
            "xids": [1],
            "gpu": 7,
            "topology": {"links": 3},
            "interface": "x",
        },
        {},
        {"gpus": None, "framework": None},
        {"gpus": "nvidia-smi failed"},
        {"gpus": [1, {}], "framework": [2]},
    ],
)
def test_odd_facts_say_nothing(odd: dict[str, Any]) -> None:
    assert (
        summarize(cell("1n1g", [9.0] * 3, result={"facts": {"a": odd}})).rows[0].qualifications
        == ()
    )


@pytest.mark.parametrize(
    "devices",
    [
        {"NVIDIA H200": 8},
        [["NVIDIA H200", 8]],
        [{"name": "NVIDIA H200", "count": 8}],
        ["NVIDIA H200", "NVIDIA H200"],
    ],
)
def test_hardware_and_versions_are_one_line(devices: Any) -> None:
    seen = {
        "devices": devices,
        "framework": "torch",
        "framework_version": "2.13.0",
        "deepspeed": "0.19.8",
        "cuda": "12.8",
        "cudnn": None,
        "nccl": "2.27.3",
    }
    result = {"observed": seen, "facts": {"a": facts("550.54", "2.13.0", 1)}}
    row = summarize(cell("1n1g", [9.0] * 3, result=result)).rows[0]
    assert (
        row.hardware
        == "NVIDIA H200 · torch 2.13.0 · DeepSpeed 0.19.8 · CUDA 12.8 · NCCL 2.27.3 · driver 550.54"
    )


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        ("cuda", "NVIDIA H200 · torch 2.13.0 · CUDA 12.8 · driver 550.54"),
        ("cpu", "cpu EPYC · torch 2.13.0 · CUDA 12.8 · driver 550.54"),
    ],
)
def test_of_a_program_that_does_not_speak_of_itself_preflight_knows_the_hardware(
    device: str, expected: str
) -> None:
    nodes = {host: {**facts("550.54", "2.13.0", 1), "cpu": "EPYC"} for host in "ab"}
    result = {"observed": {"networks": []}, "facts": nodes}
    assert (
        summarize(cell("2n1g", [9.0] * 3, result=result, device=device)).rows[0].hardware
        == expected
    )


def test_versions_that_differ_between_nodes_are_all_named() -> None:
    nodes = {"a": facts("550.54", "2.13.0", 1), "b": facts("550.54", "2.12.0", 1)}
    result = {"observed": {"networks": []}, "facts": nodes}
    row = summarize(cell("2n1g", [9.0] * 3, result=result, device="cuda")).rows[0]
    assert row.hardware == "NVIDIA H200 · torch 2.13.0 · CUDA 12.8 · torch 2.12.0 · driver 550.54"
