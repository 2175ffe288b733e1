"""What is read from NVIDIA's management library. No GPU is at hand where tests run: the library is
a stand-in, compiled from
``tests/support/driver.c``, whose structures are written down there once more, from nvml.h."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from noderun import nvml
from tests.support.driver import stand_in


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> str:
    return stand_in(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """A process on the first GPU that descends from no supervisor of ours."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={}
    ) as process:
        os.environ["STRANGER"] = str(process.pid)
        yield process.pid
        process.kill()


def devices(driver: str, visible: str) -> tuple[list[Any], dict[str, Any]]:
    about: dict[str, Any] = {}
    return nvml.nvidia_devices(visible, about.update, driver), about


def test_gpus_are_those_of_the_run_in_its_order(driver: str) -> None:
    _, about = devices(driver, "1,0")
    assert [gpu["uuid"] for gpu in about["gpus"]] == ["GPU-1bff", "GPU-1b2c"]
    assert about["gpus"][0] == {
        "name": "NVIDIA H200", "uuid": "GPU-1bff", "limit_w": 700.0, "most_mhz": 1980, "shared": False,
    }  # fmt: skip
    _, about = devices(driver, "GPU-1b2c")
    assert [gpu["uuid"] for gpu in about["gpus"]] == ["GPU-1b2c"]
    _, about = devices(driver, "MIG-77aa")
    assert [(gpu["uuid"], gpu["shared"]) for gpu in about["gpus"]] == [("MIG-77aa", True)]


@pytest.mark.parametrize("visible", ["0,2", "GPU-1b", "GPU-9", "MIG-0"])
def test_a_device_that_is_not_there_or_not_clear_leaves_no_columns_at_all(
    driver: str, visible: str
) -> None:
    assert devices(driver, visible) == ([], {})


def test_no_driver_no_gpus() -> None:
    assert devices("libnot-there.so.1", "0") == ([], {})


def values_of(*sources: Any) -> dict[str, Any]:
    return {
        column: value
        for source in sources
        for column, value in zip(source.columns, source.read(0.0), strict=True)
    }


def test_values_are_in_the_units_of_their_columns_and_older_names_of_functions_count(
    driver: str,
) -> None:
    gpus, _ = devices(driver, "0,1")
    sources = nvml.NvidiaPower(gpus), nvml.NvidiaStates(gpus)
    first, second = values_of(*sources), values_of(*sources)
    assert first["gpu0.used_percent"] == 97 and first["gpu1.celsius"] == 59
    assert (first["gpu0.sm_mhz"], first["gpu0.memory_mhz"], first["gpu0.memory_bytes"]) == (
        1755,
        3201,
        81604378624,
    )
    assert first["gpu0.reasons"] == 4, (
        "of nvmlDeviceGetCurrentClocksThrottleReasons, as there is no other"
    )
    assert second["gpu0.energy_j"] - first["gpu0.energy_j"] == 1300.0, (
        "two GPUs count 650 J each at each look"
    )
    assert first["gpu0.power_w"] is None, "its energy says it"


def test_watts_are_read_where_energy_is_not_counted(driver: str) -> None:
    (gpu,), _ = devices(driver, "0")
    gpu.failed.add(("nvmlDeviceGetTotalEnergyConsumption", ()))
    assert values_of(nvml.NvidiaPower([gpu])) == {"gpu0.energy_j": None, "gpu0.power_w": 654.321}


def test_what_an_instance_does_not_have_is_null(driver: str) -> None:
    gpus, _ = devices(driver, "MIG-77aa")
    values = values_of(nvml.NvidiaPower(gpus), nvml.NvidiaStates(gpus))
    assert values["gpu0.used_percent"] is None and values["gpu0.energy_j"] is not None


def test_errors_are_counted_where_the_gpu_counts_them(driver: str) -> None:
    gpus, _ = devices(driver, "0,1")
    source = nvml.NvidiaErrors(gpus)
    values = dict(zip(source.columns, source.read(0.0), strict=True))
    assert values["gpu0.ecc_corrected"] is None and (
        values["gpu0.ecc_uncorrected"],
        values["gpu1.ecc_uncorrected"],
    ) == (1, 2)
    assert values["gpu0.pcie_replays"] == 12 and values["gpu0.nvlink_errors"] == 0 + 1 + 2, (
        "the fourth is not supported"
    )


def test_an_xid_is_told_once_with_its_gpu(driver: str) -> None:
    gpus, _ = devices(driver, "0,1")
    told: list[dict[str, Any]] = []
    source = nvml.NvidiaEvents(gpus, lambda **fields: told.append(fields))
    for _ in range(3):
        source.read(0.0)
    assert told == [{"event": "xid", "gpu": 1, "code": 63}]
    assert source.registered


def test_a_process_on_a_gpu_that_is_not_of_the_run_is_told_once(driver: str, stranger: int) -> None:
    gpus, _ = devices(driver, "0,1")
    told: list[dict[str, Any]] = []
    source = nvml.NvidiaProcesses(
        gpus, {"supervisor": 2**22 + 1, "run_id": "r"}, lambda **fields: told.append(fields)
    )
    for _ in range(2):
        source.read(0.0)
    assert [(each["event"], each["gpu"], each["pid"]) for each in told] == [
        ("process", 0, stranger)
    ]
    assert told[0]["name"].startswith("python") and told[0]["user"]
