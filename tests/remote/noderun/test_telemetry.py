"""What a node is sampled for: its own counters, AMD's files, processes that are not of the run, and
the bounds of all that.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from noderun import amdgpu, counters, foreign, nvml, telemetry
from orchestrator.results.telemetry.over_window import is_resolved, rate_over
from tests.support import judge


def tree(root: Path, files: Mapping[str, str]) -> str:
    """Write a part of sysfs, as recorded."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return str(root)


# -- the pace


class Costly:
    """Uses so much processor time for each look."""

    columns = ("n",)

    def __init__(self, seconds: float) -> None:
        self.seconds, self.looks = seconds, 0

    def read(self, now: float) -> list[float]:
        self.looks += 1
        end = time.process_time() + self.seconds
        while time.process_time() < end:
            pass
        return [float(self.looks)]


def test_a_source_is_read_less_often_the_more_it_costs() -> None:
    cheap, dear = (telemetry.Source(Costly(seconds), 1.0, 0.001) for seconds in (0.0, 0.01))
    for second in range(60):
        for source in (cheap, dear):
            source.read(100.0 + second)
    assert cheap.readable.looks == 60
    assert 0.01 * dear.readable.looks <= 0.001 * 60 + 0.02 + 1e-9, (
        "its share of a core, its first look, and the one that tells"
    )
    assert dear.read(160.0) in ([None], [float(dear.readable.looks)])


class Counting(nvml.NvidiaPower):
    """Counters of energy of which each look takes 3.9 ms of a processor; the power of a GPU is a
    ramp, once it works.
    """

    def __init__(self, gpus: int) -> None:
        super().__init__([nvml.Gpu(nvml.Nvml(None), None, None) for _ in range(gpus)])
        self.now, self.spent_s = 0.0, 0.0

    def read(self, now: float) -> list[float | None]:
        self.now = now
        return list(super().read(now))

    def of(self, device: nvml.Gpu) -> list[float | None]:
        self.spent_s += 0.0039
        working = max(0.0, self.now - 4.0)
        return [100.0 * self.now + 500.0 * working + 5.0 * working**2, None]


@pytest.mark.parametrize("gpus", [1, 4, 8])
def test_windows_of_ten_seconds_have_energy_however_many_gpus_a_node_has(
    monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    counting = Counting(gpus)
    monkeypatch.setattr(telemetry.time, "process_time", lambda: counting.spent_s)
    monkeypatch.setattr(nvml, "nvidia_devices", lambda *_: counting.devices)
    monkeypatch.setattr(nvml, "NvidiaPower", lambda _: counting)
    settings = {"device": "cuda", "devices": "0", "supervisor": 1, "run_id": "run"}
    sources = telemetry.sources_of(settings, lambda _: None, lambda **_: None)
    source = next(source for source in sources if source.readable is counting)
    rows = [(now, source.read(now)) for now in [0.003 + 1.002 * number for number in range(120)]]
    for begin in (20.4, 41.9, 63.1, 80.0):
        energy = [(now, row[0]) for now, row in rows if row[0] is not None]
        assert is_resolved(energy, begin, begin + 10)
        # 100 W and 500 W more, and a ramp of 10 W/s: in the middle of the window.
        power = 600.0 + 10.0 * (begin + 5 - 4.0)
        assert rate_over(energy, begin, begin + 10) == pytest.approx(power, rel=0.002)
    assert counting.spent_s / 120 <= gpus * 0.0025, "of a processor"


def test_a_source_that_fails_gives_nulls_and_is_asked_again() -> None:
    class Broken:
        columns = ("a", "b")

        def read(self, now: float) -> list[float]:
            if now < 102:
                raise OSError("gone")
            return [1.0, 2.0]

    source = telemetry.Source(Broken(), 1.0, 1.0)
    assert [source.read(100.0 + second) for second in range(3)] == [
        [None, None],
        [None, None],
        [1.0, 2.0],
    ]


def test_a_long_run_keeps_every_second_row_and_all_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "MOST_ROWS", 8)
    path = tmp_path / "samples"
    samples = telemetry.Samples(str(path), {"schema": 1})
    thinned = []
    for number in range(20):
        if samples.row([number]):
            thinned.append(number)
        if number == 3:
            samples.event(event="xid")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    rows = [line[0] for line in lines if isinstance(line, list)]
    assert thinned and len(rows) <= 8 and rows == sorted(rows) and rows[0] == 0 and rows[-1] == 19
    assert (
        lines[0] == {"schema": 1}
        and {"event": "xid"} in lines
        and list(tmp_path.iterdir()) == [path]
    )


# -- counters


def test_packages_are_added_up_and_a_counter_that_wraps_goes_on(tmp_path: Path) -> None:
    zones = {
        "intel-rapl:0": ("package-0", 900),
        "intel-rapl:1": ("package-1", 100),
        "intel-rapl:0:0": ("core", 5),
    }
    files = {}
    for zone, (title, count) in zones.items():
        most, energy = str(1000 * 1_000_000), str(count * 1_000_000)
        files |= {
            f"{zone}/name": title,
            f"{zone}/energy_uj": energy,
            f"{zone}/max_energy_range_uj": most,
        }
    about: dict[str, Any] = {}
    packages = counters.Packages(about.update, tree(tmp_path, files))
    assert about == {"packages": ["package-0", "package-1"]} and packages.columns == ["package_j"]
    assert packages.read(0.0) == [1000.0]
    (tmp_path / "intel-rapl:0/energy_uj").write_text("50000000\n")
    assert packages.read(1.0) == [1150.0], "900 + 100 until it wrapped at 1000, and 50 since"


def test_where_only_root_may_read_the_packages_there_is_no_column(tmp_path: Path) -> None:
    about: dict[str, Any] = {}
    packages = counters.Packages(about.update, tree(tmp_path, {"intel-rapl:0/name": "package-0"}))
    assert (packages.columns, packages.read(0.0), about) == ([], [], {})


def test_ports_count_words_of_four_bytes_and_errors_of_every_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        "port_rcv_data": "250",
        "port_xmit_data": "1000",
        "symbol_error": "3",
        "link_downed": "1",
    }
    lost = {"packet_seq_err": "5", "rcvd_seq_err": "6", "duplicate_request": "9"}
    files = {f"mlx5_0/ports/1/counters/{name}": text for name, text in values.items()}
    files |= {f"mlx5_0/ports/1/hw_counters/{name}": text for name, text in lost.items()}
    base = tree(tmp_path, files)
    paths = counters.port_paths(base)
    monkeypatch.setattr(counters, "port_paths", lambda: paths)
    about: dict[str, Any] = {}
    ports, errors = counters.Ports(about.update), counters.PortErrors()
    assert about == {"ports": ["mlx5_0:1"]}
    assert dict(zip(ports.columns, ports.read(0.0), strict=True)) == {
        "port0.received": 1000,
        "port0.sent": 4000,
    }
    assert dict(zip(errors.columns, errors.read(0.0), strict=True)) == {
        "port0.errors": 4,
        "port0.lost": 11,
    }


def test_this_machine_counts_its_processors_and_interfaces() -> None:
    usage = counters.Usage()
    before, stolen = usage.read(0.0)
    assert 0 <= stolen <= before
    judge.wait_for(lambda: usage.read(0.0)[0] > before, 20, "no processor was busy")
    assert set(counters.interface_counts()) >= {"lo"}
    assert not [name for name in counters.Interfaces(lambda _: None).names if name == "lo"]


def test_the_closest_limit_of_processor_time_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As cpu.stat reads in the unified hierarchy and in that of the controller alone; a group
    without a limit counts none.
    """
    of_pod = "usage_usec 9\nnr_periods 50\nnr_throttled 20\nthrottled_usec 7"
    root = tree(
        tmp_path,
        {
            "pod/cpu.stat": of_pod,
            "pod/run/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_time 0",
        },
    )
    monkeypatch.setattr(counters, "own_groups", lambda controller: [(f"{root}/pod/run", True)])
    assert counters.Quota().read(0.0) == [50, 20]
    monkeypatch.setattr(counters, "own_groups", lambda controller: [(f"{root}/none", True)])
    assert counters.Quota().read(0.0) == [None, None]


# -- AMD


def gpu_files(card: int, watts: int) -> dict[str, str]:
    """Files of an MI250X under load, as the documentation of amdgpu describes them."""
    base = f"card{card}/device"
    return {
        f"{base}/vendor": "0x1002",
        f"{base}/device": "0x7408",
        f"{base}/unique_id": f"73c0d2b{card}",
        f"{base}/gpu_busy_percent": "98",
        f"{base}/mem_info_vram_used": "51539607552",
        f"{base}/pp_dpm_sclk": "0: 500Mhz \n1: 1400Mhz *\n2: 1700Mhz ",
        f"{base}/pp_dpm_mclk": "0: 400Mhz \n1: 1600Mhz *",
        f"{base}/ras/umc_err_count": "ue: 0\nce: 2",
        f"{base}/hwmon/hwmon{card}/power1_average": str(watts * 1_000_000),
        f"{base}/hwmon/hwmon{card}/power1_cap": "560000000",
        f"{base}/hwmon/hwmon{card}/temp1_input": "46000",
        f"{base}/hwmon/hwmon{card}/temp2_input": "61000",
    }


def test_amds_gpus_are_read_from_sysfs(tmp_path: Path) -> None:
    base = tree(
        tmp_path, {**gpu_files(0, 400), **gpu_files(1, 410), "card2/device/vendor": "0x10de"}
    )
    about: dict[str, Any] = {}
    source = amdgpu.AmdGpus("1", about.update, base)
    assert about["gpus"] == [
        {"name": "AMD 0x7408", "uuid": "73c0d2b1", "limit_w": 560.0, "most_mhz": 1700, "shared": False}
    ]  # fmt: skip
    assert dict(zip(source.columns, source.read(0.0), strict=True)) == {
        "gpu0.power_w": 410.0, "gpu0.used_percent": 98, "gpu0.sm_mhz": 1400, "gpu0.memory_mhz": 1600, "gpu0.celsius": 61.0,
        "gpu0.memory_bytes": 51539607552, "gpu0.ecc_corrected": 2, "gpu0.ecc_uncorrected": 0,
    }  # fmt: skip
    assert amdgpu.AmdGpus("0,2", about.update, base).columns == [], "the third is another vendor's"


# -- processes of others


def busy() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "while True: pass"], env={})


def test_processor_time_of_others_is_told_with_the_name_of_who_uses_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(foreign, "MOST_TOLD", 10_000)  # this machine may have many
    told: list[dict[str, Any]] = []
    look: Callable[[float], list[float]] = foreign.Foreign(
        {"supervisor": 2**22 + 1, "run_id": "r"}, lambda **fields: told.append(fields)
    ).read
    with busy() as process:
        try:
            start = time.monotonic()
            look(start)
            judge.wait_for(lambda: used_s(process.pid) > 0.6, 30, "it gets no processor")
            (seconds,) = look(start + 1.0)  # as if it had been one second
            assert seconds >= 0.5 and process.pid in [each["pid"] for each in told]
            assert next(each for each in told if each["pid"] == process.pid)["name"].startswith(
                "python"
            )
        finally:
            process.kill()


def test_descendants_of_the_supervisor_and_what_bears_its_mark_are_of_the_run() -> None:
    with busy() as process:
        try:
            own = foreign.OwnProcesses({"supervisor": os.getpid(), "run_id": "r"})
            assert own.has(process.pid) and process.pid in own.tree(foreign.busy_ticks())
            other = foreign.OwnProcesses({"supervisor": 2**22 + 1, "run_id": "r"})
            assert not other.has(process.pid)
        finally:
            process.kill()
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={"ORCH_RUN_ID": "r"}
    ) as process:
        own = foreign.OwnProcesses({"supervisor": 2**22 + 1, "run_id": "r"})
        judge.wait_for(
            lambda: b"ORCH_RUN_ID" in Path(f"/proc/{process.pid}/environ").read_bytes(),
            5,
            "no environment",
        )
        assert own.has(process.pid)
        process.kill()


def used_s(pid: int) -> float:
    entry = foreign.stat_of(pid)
    assert entry
    return float(entry[2]) / os.sysconf("SC_CLK_TCK")
