"""fio, a program that knows nothing of orch, on two lab nodes: its numbers against what each fio
counted, and its files.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest

from tests.e2e.rig import Controller
from tests.support import judge

pytestmark = pytest.mark.skipif(not shutil.which("fio"), reason="no fio here")
SMALL = (
    "-f",
    "fio",
    "--gpus",
    "1",
    "--no-baseline",
    "--set",
    "size=2m",
    "--set",
    "ioengine=psync",
    "--set",
    "direct=false",
)


def files(controller: Controller) -> list[Path]:
    """The files of fio in the run's directories on the nodes."""
    return [
        path for node in ("node1", "node2") for path in controller.node_run(node).glob("fio-*/*")
    ]


def test_a_metric_is_what_the_fio_of_each_node_counted(controller: Controller) -> None:
    done = controller.orch(
        "bench",
        "randrw",
        *SMALL,
        "--nodes",
        "2",
        "--repeats",
        "2",
        "--steps",
        "2",
        "--warmup-steps",
        "0",
    )
    assert done.code == 0, done
    counted: dict[str, list[tuple[float, float]]] = {"read": [], "write": []}
    for run in controller.runs:
        jobs = [
            json.loads((run / "logs" / node / "fio.json").read_text())["jobs"][0]
            for node in ("node1", "node2")
        ]
        for direction, both in counted.items():
            of_nodes = [job[direction] for job in jobs]
            p99_us = max(node["clat_ns"]["percentile"]["99.000000"] / 1000 for node in of_nodes)
            both.append((sum(node["bw_bytes"] for node in of_nodes) / 1e6, p99_us))
    assert files(controller) == []

    summary = controller.orch("summarize", "--format", "csv")
    assert summary.code == 0, summary
    header, *rows = [line.split(",") for line in summary.out.splitlines()]
    shown = {(row[header.index("metric")], row[header.index("key.direction")]): row for row in rows}
    assert len(shown) == 8
    for direction, ((bandwidth, p99), (bandwidth2, p99_2)) in counted.items():
        for metric, (one, other) in {
            "bandwidth": (bandwidth, bandwidth2),
            "lat_p99": (p99, p99_2),
        }.items():
            row = shown[metric, direction]
            assert float(row[header.index("minimum")]) == pytest.approx(min(one, other), abs=0.006)
            assert float(row[header.index("maximum")]) == pytest.approx(max(one, other), abs=0.006)


def test_a_cancelled_run_leaves_no_file_of_fio(controller: Controller) -> None:
    bench = controller.start(
        "bench",
        "read",
        *SMALL,
        "--nodes",
        "2",
        "--repeats",
        "1",
        "--steps",
        "100",
        "--warmup-steps",
        "1",
    )
    deadline = time.monotonic() + 30 * judge.patience
    while (
        not list(controller.project.glob("runs/*/*/manifest.json")) or len(files(controller)) < 2
    ) and (time.monotonic() < deadline):
        time.sleep(0.1)
    assert len(files(controller)) == 2
    assert controller.orch("cancel").code == 0
    assert controller.end(bench, 30).code != 0
    assert files(controller) == []
