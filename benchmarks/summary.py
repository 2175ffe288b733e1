"""The speed of summarising the logs of all ranks of a wide cluster, compared with the usual way.

    python benchmarks/summary.py [--nodes 256] [--ranks 8] [--steps 10000] [--rounds 5] [--dir FOLDER]

One run is written as `orch` would have left it: the manifest, and for each node the exit record
with sizes and digests and a log of every rank, one line per step. Then, alternating, `orch
summarize` reads it, including the check of every digest; and the usual way reads it, as DLPerf's
scripts for PyTorch do: all lines of a file in a list, for each line one regular expression for the
number of the step, and another that finds all decimal numbers and takes one of them; nothing is
checked. The output has medians in MiB/s, and the peak sum of the resident memory of all processes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from orchestrator.inventory.hosts import Host
from orchestrator.plan.bench import PlannedRun, plan_run
from orchestrator.plan.configurations import configure
from orchestrator.plan.folders import open_framework
from orchestrator.plan.request import Request
from orchestrator.record.manifest import manifest_of
from orchestrator.record.rundir import BenchDir

USUAL = r"""
import re, sys
from pathlib import Path
speeds = {}
for path in sorted(Path(sys.argv[1]).glob("logs/*/rank-*.out")):
    numbers, times = re.compile(r"(\d+[.]\d+)\s"), []
    with open(path) as file:
        lines = file.readlines()
    for line in lines:
        if "orch step=" in line:
            step = int(re.findall(re.compile(r"step=(\d+)"), line)[0])
            if step > 5:
                times.append(float(re.findall(numbers, line)[1]))
    speeds[path] = len(times) / sum(times)
print(len(speeds))
"""
BATCH = 128


def main() -> None:
    """Write the run, let both read it, print time and memory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=256)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--dir", type=Path, help="where the logs are written; a temporary folder if not given"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.dir) as folder:
        bench, size = written(Path(folder), asked)
        print(
            f"{asked.nodes} nodes x {asked.ranks} ranks x {asked.steps} steps, {size / 2**20:.0f} MiB",
            flush=True,
        )
        run = bench / json.loads((bench / "bench.json").read_text())["runs"][0]
        contenders = {
            "orch": [sys.executable, "-m", "orchestrator", "summarize", str(bench)],
            "usual": [sys.executable, "-c", USUAL, str(run)],
        }
        figures: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
        for _ in range(asked.rounds):
            for name, argv in contenders.items():
                figures[name].append(taken(argv))
        ours = statistics.median(took for took, _ in figures["orch"])
        for name, values in figures.items():
            middle = statistics.median(took for took, _ in values)
            memory = max(memory for _, memory in values)
            note = f"ratio {middle / ours:5.2f}  {memory:.0f} MiB at most, n={len(values)}"
            print(
                f"  {name:6} {middle:8.2f} s {size / 2**20 / middle:8.1f} MiB/s  {note}", flush=True
            )


def taken(argv: list[str]) -> tuple[float, float]:
    """Return the seconds of a command, and the peak MiB resident in it and its children."""
    began, memory = time.monotonic(), 0.0
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(
            argv, stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        while child.poll() is None:
            memory = max(memory, sum(map(resident_mib, family(child.pid))))
            time.sleep(0.1)
        took = time.monotonic() - began
        said.seek(0)
        text = said.read()
    if child.returncode:
        sys.exit(f"{argv[:4]} ended with {child.returncode}: {text[-800:]}")
    return took, memory


def family(pid: int) -> list[int]:
    """Return a process and its descendants."""
    try:
        children = [
            int(word)
            for path in Path(f"/proc/{pid}/task").glob("*/children")
            for word in path.read_text().split()
        ]
    except OSError:
        children = []
    return [pid, *(descendant for child in children for descendant in family(child))]


def resident_mib(pid: int) -> float:
    """Return the MiB resident in a process, with its share of pages that several processes use."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0.0
    return next(
        (int(line.split()[1]) / 1024 for line in text.splitlines() if line.startswith("Pss:")), 0.0
    )


def written(root: Path, asked: argparse.Namespace) -> tuple[Path, int]:
    """Write a bench of one run. Returns its folder and the bytes of its logs."""
    folder = open_framework("simulated")
    log = replace(
        folder.framework.log,
        files=("rank-*.out",),
        rank_files=("rank-*.out",),
        nodes="every",
        scope="process",
        closing="",
    )
    folder = replace(folder, framework=replace(folder.framework, log=log))
    hosts = [
        Host(name=f"node{n}", address=f"10.11.{n // 250}.{n % 250 + 2}", slots=asked.ranks, gpus=0)
        for n in range(asked.nodes)
    ]
    request = Request(
        "resnet50",
        (asked.nodes,),
        (asked.ranks,),
        single={"steps": asked.steps, "batch_size": BATCH},
    )
    (spec,) = configure(request, [folder], hosts).specs
    run = PlannedRun("wide.000", 1, spec, folder, "wide")
    plan = plan_run(folder, spec, hosts, run_id=run.run_id, repeat=1, port=20000)
    bench = BenchDir.create(root, {"bench_id": "wide", "runs": [run.run_id]})
    rundir = bench.run(run.run_id)
    rundir.write_manifest(manifest_of(plan, folder, "wide", {host.name: {} for host in hosts}))
    size, chance = 0, random.Random(7)
    for slot in plan.placement.slots:
        files = {}
        for rank in range(slot.first_rank, slot.first_rank + slot.nproc):
            text = log_of(rank, slot.nproc, slot.node_rank, spec.world_size, asked.steps, chance)
            rundir.log_path(slot.host, f"rank-{rank}.out").write_bytes(text)
            files[f"rank-{rank}.out"] = {
                "bytes": len(text),
                "sha256": hashlib.sha256(text).hexdigest(),
            }
            size += len(text)
        record = {
            "schema": 1,
            "run_id": run.run_id,
            "node_rank": slot.node_rank,
            "state": "finished",
            "code": 0,
            "signal": None,
        }
        rundir.write_log(
            slot.host, "exit.json", json.dumps({**record, "ranks": [], "files": files}).encode()
        )
    rundir.update_manifest(outcome={"state": "finished", "error": None, "clean": {}})
    return bench.path, size


def log_of(
    rank: int, nproc: int, node_rank: int, world_size: int, steps: int, chance: random.Random
) -> bytes:
    """Return the log of one rank: its rank line, and a line per step."""
    at, lines = 1000.0 + chance.random(), []
    who = f"orch rank={rank} local_rank={rank % nproc} world_size={world_size} node_rank={node_rank} host=node{node_rank}"
    lines.append(f"{who} pid=1 device=cpu")
    for step in range(1, steps + 1):
        took = 0.25 + 0.001 * chance.random()
        at += took
        lines.append(
            f"orch step={step} t={at:.6f} step_time_s={took:.6f} samples={BATCH} loss=6.9078"
        )
    return ("\n".join(lines) + "\n").encode()


if __name__ == "__main__":
    main()
