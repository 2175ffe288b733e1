"""One program over ssh, in pods of Kubernetes and in steps of Slurm, on the same nodes.

    orch lab up --slurm --pods --nodes 2
    orch lab exec -- sbatch --nodes 2 --wrap "sleep 2h"
    orch lab exec -- python benchmarks/engines.py --slurm JOB [--rounds 5]

Of a real cluster, ORCH_HOSTS is an inventory of machines that have its pods, here app=trainer:

    tests/kubernetes/up.sh FOLDER 2
    export KUBECONFIG=FOLDER/run/admin.conf ORCH_HOSTS=FOLDER/run/ssh.yaml
    FOLDER/enter kubectl create --validate=false -f tests/kubernetes/trainer.yaml
    FOLDER/enter python benchmarks/engines.py --pods app=trainer

A round runs each program once in each engine, every other round in reverse. Printed are medians,
their ratio to ssh, and the interval at 90 % of the ratio in the same round. Where that is within
1 %, two one-sided tests at 95 % find the engines equal (D. J. Schuirmann, "A comparison of the two
one-sided tests procedure and the power approach", 1987). Below them are start skew, the round trip
of a byte, and a megabyte each way.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import orchestrator
from benchmarks.steps import MEASURES
from orchestrator.api.selection import select
from orchestrator.errors import TransportError
from orchestrator.record import Project
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
    """Return the result of a bench with one run, and its start skew in seconds. It is done again if
    it loses a node, as it may on a busy machine.
    """
    options = {**PROGRAMS[model], "nodes": NODES, "repeats": 1, "baseline": False}
    while True:
        plan = orchestrator.prepare(model, project=project, hosts=hosts, **options)
        bench = orchestrator.run(plan)
        try:
            bench.check()
        except TransportError as error:
            print(f"{hosts}: {error}", file=sys.stderr, flush=True)
            continue
        (manifest,) = bench.path.glob("*/manifest.json")
        row = next(row for row in bench.rows() if row["primary"])
        return row["value"], json.loads(manifest.read_text())["start"]["skew_s"]


def measure_ways(engines: Mapping[str, str], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return what `steps` measures of the way to the first node by title and engine, in ms."""
    times = {title: {name: list[float]() for name in engines} for title in MEASURES}
    connections = Connections(Trust(store=Path(os.devnull)))
    with tempfile.TemporaryDirectory() as folder:
        hosts = {
            name: select(Project(Path(folder)), source, say=print_nothing).hosts[0]
            for name, source in engines.items()
        }
    opened = {name: connections.connect(host) for name, host in hosts.items()}
    for _ in range(rounds):
        for title, measure_way in MEASURES.items():
            for name, way in opened.items():
                (python,) = hosts[name].runner_python
                times[title][name].append(1000 * measure_way(way, python))
    for way in opened.values():
        way.close()
    connections.close()
    return times


def print_nothing(_: str) -> None:
    """Let the selection of hosts be silent."""


def show(title: str, values: Mapping[str, list[float]], digits: int) -> None:
    """Print the medians, and the ratios to ssh."""
    for name, of_engine in values.items():
        line = f"{title:24} {name:6} {median(of_engine):10.{digits}f}"
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
    parser.add_argument("--slurm", metavar="JOB")
    parser.add_argument("--pods", metavar="LABEL=VALUE", default="app=lab")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    engines = {"ssh": os.environ["ORCH_HOSTS"], "pods": f"pods:{options.pods}"}
    if options.slurm:
        engines["slurm"] = f"srun:{options.slurm}"
    skews: dict[str, list[float]] = {name: [] for name in engines}
    print(f"{'medians of ' + str(options.rounds) + ' rounds':42}  over ssh  90 % interval")
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder)
        hashing.write(project)
        for model in PROGRAMS:
            results: dict[str, list[float]] = {name: [] for name in engines}
            for turn in range(options.rounds):
                for name, hosts in list(engines.items())[:: 1 if turn % 2 else -1]:
                    value, skew_s = measure(project, model, hosts)
                    results[name].append(value)
                    skews[name].append(skew_s * 1000)
            show(model, results, 2)
    show("skew, ms", skews, 3)
    for title, times in measure_ways(engines, options.rounds).items():
        show(f"{title}, ms", times, 3)


if __name__ == "__main__":
    main()
