"""One program over ssh, in steps of Slurm and in pods of Kubernetes, on the same nodes of a lab.

    orch lab up --slurm --pods --nodes 2
    orch lab exec -- sbatch --nodes 2 --wrap "sleep 2h"
    orch lab exec -- python benchmarks/engines.py JOB [--rounds 5]

A round runs each program once in each engine, every other round in reverse. Printed are medians,
their ratio to ssh, and the interval at 90 % of the ratio in the same round. Where that is within
1 %, two one-sided tests at 95 % find the engines equal (D. J. Schuirmann, "A comparison of the two
one-sided tests procedure and the power approach", 1987). Below them are start skew and the round
trip of a byte.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import orchestrator
from benchmarks.steps import byte
from orchestrator.inventory import open_inventory
from orchestrator.results.numbers.intervals import ratio_interval
from orchestrator.transport import Trust
from orchestrator.transport.connections import Connections
from tests.support import hashing

EQUAL = 0.01
NODES = 2
PROGRAMS: dict[str, Mapping[str, Any]] = {
    "resnet50": {
        "framework": "simulated",
        "options": {"compute_ms": 100, "gradient_mb": 0.1},
        "steps": 20,
    },
    "hashing": {"options": {"seconds": 1.0, "cpu_time": True}},
}
"""By model: a program that sleeps, and one that counts its own CPU time."""


def measure(project: Path, model: str, hosts: str) -> tuple[float, float]:
    """Return the result of a bench with one run, and its start skew in seconds."""
    options = {**PROGRAMS[model], "nodes": NODES, "repeats": 1, "baseline": False}
    plan = orchestrator.prepare(model, project=project, hosts=hosts, **options)
    bench = orchestrator.run(plan)
    bench.check()
    (manifest,) = bench.path.glob("*/manifest.json")
    row = next(row for row in bench.rows() if row["primary"])
    return row["value"], json.loads(manifest.read_text())["start"]["skew_s"]


def measure_bytes(job: str, rounds: int) -> dict[str, list[float]]:
    """Return the round trips of a byte to the first node, in seconds."""
    host = open_inventory(os.environ["ORCH_HOSTS"]).hosts[0]
    ways = {
        "ssh": host,
        "slurm": replace(host, transport="srun", vars={**host.vars, "slurm_job": job}),
        "pods": replace(host, transport="kubectl"),
    }
    connections = Connections(Trust(store=Path(os.devnull)))
    opened = {name: connections.connect(way) for name, way in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in opened.items():
            times[name].append(byte(way, *host.runner_python))
    for way in opened.values():
        way.close()
    connections.close()
    return times


def show(title: str, values: Mapping[str, list[float]], digits: int) -> None:
    """Print the medians, and the ratios to ssh."""
    for name, of_engine in values.items():
        line = f"{title:14} {name:6} {median(of_engine):10.{digits}f}"
        if name != "ssh" and min(values["ssh"]) > 0:
            sides = dict(enumerate(of_engine)), dict(enumerate(values["ssh"]))
            if found := ratio_interval(*sides, level=0.90):
                ratio = median(of_engine) / median(values["ssh"])
                line += f" {ratio:8.4f}  {found.low:.4f} to {found.high:.4f}"
                if title in PROGRAMS:
                    is_equal = found.low > 1 - EQUAL and found.high < 1 + EQUAL
                    line += "  equal within 1 %" if is_equal else "  not shown to be equal"
        print(line, flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("job")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    engines = {"ssh": "", "slurm": f"srun:{options.job}", "pods": "pods:app=lab"}
    skews: dict[str, list[float]] = {name: [] for name in engines}
    print(f"{'medians of ' + str(options.rounds) + ' rounds':32}  over ssh  90 % interval")
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        hashing.write(project)
        for model in PROGRAMS:
            results: dict[str, list[float]] = {name: [] for name in engines}
            for turn in range(options.rounds):
                for name, hosts in list(engines.items())[:: 1 if turn % 2 else -1]:
                    value, skew_s = measure(project, model, hosts or os.environ["ORCH_HOSTS"])
                    results[name].append(value)
                    skews[name].append(skew_s * 1000)
            show(model, results, 2)
    show("skew, ms", skews, 3)
    times = measure_bytes(options.job, options.rounds)
    show("a byte, ms", {name: [1000 * s for s in found] for name, found in times.items()}, 3)


if __name__ == "__main__":
    main()
