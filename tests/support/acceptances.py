"""Acceptances as a controller leaves them: planned by the real planner, with logs that have the
given numbers.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import yamlfile
from orchestrator.errors import RunError
from orchestrator.features.accept.record import AcceptanceDir, AcceptanceRecord, Attempt
from orchestrator.features.accept.suite import choices_of, suite_of
from orchestrator.inventory import Host
from orchestrator.plan import Limits
from orchestrator.plan.bench import plan_run
from orchestrator.plan.folders import open_framework
from orchestrator.plan.planning import plan_bench
from orchestrator.plan.request import request_of
from orchestrator.plan.spec import RunSpec
from orchestrator.record.bench_record import new_bench_record
from orchestrator.record.manifest import RecordedOutcome, manifest_of, write_outcome
from orchestrator.record.rundir import BenchDir

SUITE = """\
title: small
stages:
  - {name: checks, checks: all, framework: gemm, run: 30s}
  - name: gemm
    bench: gemm
    choices: {dtype: bf16, repeats: 5, steps: 6, warmup_steps: 2, options: {sizes: "8192"}}
    run: 20s
    needs: [checks]
    bars: [{metric: tflops_rank, at: {size: 8192}, peers: 3%, earlier: 5%}]
"""
REFERENCE = """\
device: "NVIDIA H200"
source: "a table"
figures:
  - {framework: gemm, metric: tflops_rank, at: {dtype: bf16, size: 8192}, value: 668.76, tolerance: 8%,
     seen: [647.5, 670], devices: 9}
"""
FACTS = {
    "hostname": "box",
    "boot_id": "b",
    "host_key": "k",
    "cpu": "a cpu",
    "routes": {"10.11.0.2": "eth0"},
}
STEADY = (660.0, 661.0, 659.5, 660.2, 660.7)


def hosts_of(count: int, gpus: int = 1) -> list[Host]:
    return [Host(f"node{n}", f"10.11.0.{n + 1}", gpus=gpus) for n in range(1, count + 1)]


def acceptance(
    root: Path,
    tflops: Mapping[int, Sequence[float]],
    *,
    nodes: int,
    gpus: int = 1,
    name: str = "a1-small",
    checks: Sequence[Mapping[str, str]] = (),
    earlier: Mapping[str, Any] | None = None,
    suite: str = SUITE,
    device: str = "NVIDIA H200",
    other: Mapping[str, str] | None = None,
    scaled: Callable[[RunSpec, int], float] = lambda spec, rank: 1.0,
) -> AcceptanceDir:
    """Return an acceptance of its ``gemm`` stage. ``tflops`` has the values of ranks over repeats;
    others have `STEADY`.

    ``other`` has the device of hosts that have none like ``device``; ``scaled`` returns the factor
    by which a configuration is faster on a rank.
    """
    hosts, document = hosts_of(nodes, gpus), yamlfile.loads(suite, "small.yaml")
    stage = suite_of(document, "small", "cuda").stages[1]
    folder = open_framework("gemm")
    request = request_of(
        "gemm",
        run_file=yamlfile.Document(choices_of(document, stage, nodes, gpus).value, {}, "x"),
        baseline=False,
    )
    plan = plan_bench(request, [folder], hosts, bench_id=f"{name}.bench", seed=1)
    record = AcceptanceRecord(
        acceptance_id=name,
        created="2026-11-24T08:00:00Z",
        orch="0.1.0",
        argv=("orch", "accept"),
        suite="small",
        document=suite,
        references=(REFERENCE,),
        device="cuda",
        inventory="cluster.yaml",
        hosts={host.name: host.address for host in hosts},
        stages=("checks", "gemm"),
        left_out={"soak": "takes about 5h, 1h of the budget is left"},
        attempts=(Attempt("gemm", plan.bench_id, tuple(host.name for host in hosts)),),
        over={"checks": "", "gemm": ""},
        earlier=earlier or {},
    )
    made = AcceptanceDir.create(root, record)
    names = {host.name: (other or {}).get(host.name, device) for host in hosts}
    facts = (
        {host: {**FACTS, "gpus": [{"index": "0", "name": name}]} for host, name in names.items()}
        if other
        else {}
    )
    facts = facts or {host.name: FACTS for host in hosts}
    made.write_checks("checks", facts, checks)
    content = new_bench_record(
        plan, {}, hosts, "cluster.yaml", (), Limits(), (), ("orch", "accept")
    )
    bench = BenchDir.create(made.path, content.as_dict())
    for run in plan.list_runs():
        decided = plan_run(
            run.folder, run.spec, hosts, run_id=run.run_id, repeat=run.repeat, port=29500
        )
        manifest = manifest_of(decided, run.folder, plan.bench_id, facts)
        outcome = {"state": "finished", "error": None, "clean": {}}
        directory = bench.run(run.run_id)
        directory.write_manifest({**manifest, "outcome": outcome})
        for node, host in enumerate(hosts):
            ranks = range(node * gpus, (node + 1) * gpus)
            logs = {"node.out": "", "node.err": ""}
            for rank in ranks:
                value = tflops.get(rank, STEADY)[run.repeat - 1] * (
                    1 + 0.0003 * ((rank * 7 + run.repeat) % 5)
                )
                logs[f"rank-{rank}.out"] = _log(
                    rank, gpus, value * scaled(run.spec, rank), list(names.values())
                )
                logs[f"rank-{rank}.err"] = ""
            data = {file: text.encode() for file, text in logs.items()}
            for file, content_of_file in data.items():
                directory.write_log(host.name, file, content_of_file)
            exit_record = _exit(run.run_id, node, ranks, gpus, data)
            directory.write_log(host.name, "exit.json", json.dumps(exit_record).encode())
    return made


def fail_runs(folder: AcceptanceDir, bench_id: str, host: str, count: int) -> None:
    """Let runs of a bench fail at a host, the first ones."""
    for run in folder.bench(bench_id).runs()[:count]:
        error = RunError(
            "rank 2 was killed by signal 9", kind="rank_failed", host=host, run_id=run.run_id
        )
        write_outcome(run, RecordedOutcome("failed", error, {}, {}, True))


def repeated(folder: AcceptanceDir, nodes: int) -> str:
    """Let the stage have been repeated on the first so many nodes, and return the id of that bench."""
    again = (
        acceptance(folder.path.parent / "again", {}, nodes=nodes, name="again").record().attempts
    )
    shutil.copytree(
        folder.path.parent / "again" / "again" / again[0].bench_id, folder.path / again[0].bench_id
    )
    folder.change(lambda record: replace(record, attempts=(*record.attempts, *again)))
    return again[0].bench_id


def _log(rank: int, gpus: int, tflops: float, devices: Sequence[str]) -> str:
    """Return the log of a rank; ``devices`` are the names by node."""
    node, world = rank // gpus, gpus * len(devices)
    place = f"rank={rank} local_rank={rank % gpus} world_size={world} node_rank={node} host=box{node} pid={100 + rank}"
    text = f"orch {place} device={devices[node]}\n"
    time_s = 2 * 8192**3 / 1e12 / (tflops or 1e-6)
    times = f"time_s={time_s:.9f} min_time_s={time_s:.9f}"
    text += f"orch gemm size=8192 calls=400 {times} tflops={tflops:.4f}\n"
    counts = [
        {"name": name, "count": gpus * devices.count(name)} for name in dict.fromkeys(devices)
    ]
    facts = {
        "world_size": world, "ranks": list(range(world)), "hosts": [f"box{n}" for n in range(len(devices))],
        "devices": counts, "steps": 6, "warmup_steps": 2, "model": "gemm", "dtype": "bf16",
        "framework": "pytorch", "framework_version": "2.11.0", "nccl": None, "simulated": False, "sizes": "8192", "remarks": [],
    }  # fmt: skip
    return text + (f"orch done {json.dumps(facts)}\n" if rank == 0 else "")


def _exit(
    run_id: str, node: int, ranks: range, gpus: int, files: Mapping[str, bytes]
) -> dict[str, Any]:
    digests = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }
    return {
        "schema": 1, "run_id": run_id, "node_rank": node, "state": "finished", "code": 0, "signal": None, "reason": None,
        "started_mono_s": 1.0, "ended_mono_s": 81.0, "boot_id": "x", "files": digests,
        "ranks": [{"rank": rank, "local_rank": rank % gpus, "code": 0, "signal": None} for rank in ranks],
    }  # fmt: skip
