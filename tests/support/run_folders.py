"""Run directories as a controller leaves them, made from plain values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from orchestrator.record.rundir import BenchDir, RunDir

NODES, GPUS, STEPS, WARMUP, BATCH = 2, 2, 12, 2, 16
WORLD = NODES * GPUS
LOG = {
    "files": ["rank-0.out"],
    "patterns": [
        r"orch step=(?P<step>[0-9]+) t=(?P<timestamp>[0-9.]+) step_time_s=(?P<step_time_s>[0-9.]+) samples=(?P<samples>[0-9]+)"
    ],
    "nodes": "first",
    "scope": "global",
    "cumulative": False,
    "rank": r"orch rank=(?P<rank>[0-9]+) local_rank=[0-9]+ world_size=(?P<world_size>[0-9]+)",
    "rank_files": ["rank-*.out"],
    "closing": r"orch done (?P<json>\{.*\})",
}


def rank_line(rank: int, world: int = WORLD) -> str:
    place = f"local_rank={rank % GPUS} world_size={world} node_rank={rank // GPUS} host=box{rank // GPUS} pid={100 + rank}"
    return f"orch rank={rank} {place} device=NVIDIA H200\n"


def step_lines(seconds: float = 0.5, last: int = STEPS) -> str:
    lines = ["orch step=0 t=900.000000 step_time_s=0 samples=0 loss=nan\n"]
    for step in range(1, last + 1):
        end = 900 + step * seconds
        lines.append(
            f"orch step={step} t={end:.6f} step_time_s={seconds:.6f} samples={BATCH * WORLD} loss=6.9\n"
        )
    return "".join(lines)


def closing(**changes: Any) -> str:
    facts = {
        "world_size": WORLD,
        "ranks": list(range(WORLD)),
        "hosts": ["box0", "box1"],
        "devices": {"NVIDIA H200": WORLD},
        "steps": STEPS,
        "model": "resnet50",
        "dtype": "fp16",
        "batch_size": BATCH,
        "global_batch": BATCH * WORLD,
        "framework": "torch",
        "framework_version": "2.13.0",
        "nccl": None,
        "simulated": False,
    }
    return f"orch done {json.dumps(facts | changes)}\n"


def manifest(run_id: str, repeat: int = 1) -> dict[str, Any]:
    spec = {
        "framework": "pytorch",
        "model": "resnet50",
        "nodes": NODES,
        "gpus": GPUS,
        "device": "cuda",
        "batch_size": BATCH,
    }
    spec |= {
        "dtype": "fp16",
        "loader": "synthetic",
        "steps": STEPS,
        "warmup_steps": WARMUP,
        "timeout_s": 600.0,
        "options": {},
    }
    slots = [
        {
            "host": f"node{i + 1}",
            "address": f"10.11.0.{i + 2}",
            "node_rank": i,
            "first_rank": i * GPUS,
            "nproc": GPUS,
        }
        for i in range(NODES)
    ]
    return {
        "run_id": run_id,
        "bench_id": "b1",
        "repeat": repeat,
        "spec": spec,
        "origins": {"steps": "command line"},
        "framework": {
            "name": "pytorch",
            "title": "PyTorch",
            "digest": "00",
            "simulated": False,
            "log": LOG,
        },
        "payload": {},
        "placement": {
            "slots": slots,
            "master_addr": "10.11.0.2",
            "master_port": 29500,
            "world_size": WORLD,
        },
        "facts": {"node1": {"kernel": "6.1"}, "node2": {"kernel": "6.1"}},
        "start": None,
        "outcome": {"state": "finished", "error": None, "clean": {}},
    }


def logs_of(node: int, seconds: float = 0.5) -> dict[str, str]:
    files = {"node.out": "", "node.err": "noise\n"}
    for rank in range(node * GPUS, (node + 1) * GPUS):
        files[f"rank-{rank}.out"] = rank_line(rank)
        files[f"rank-{rank}.err"] = (
            "libibverbs: Warning: no userspace device-specific driver found\n"
        )
    if node == 0:
        files["rank-0.out"] += step_lines(seconds) + closing()
    return files


def exit_record(run_id: str, node: int, files: dict[str, bytes]) -> dict[str, Any]:
    ranks = [
        {"rank": r, "local_rank": r % GPUS, "code": 0, "signal": None}
        for r in range(node * GPUS, (node + 1) * GPUS)
    ]
    digests = {
        name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        for name, data in files.items()
    }
    return {
        "schema": 1, "run_id": run_id, "node_rank": node, "state": "finished", "code": 0, "signal": None, "reason": None,
        "started_mono_s": 1.0, "ended_mono_s": 81.0, "boot_id": "x", "ranks": ranks, "files": digests,
    }  # fmt: skip


Before = Callable[[dict[str, Any], list[dict[str, str]]], Any]
After = Callable[[list[dict[str, Any]]], Any]


def lasting(seconds: float) -> After:
    """Return what makes both nodes report that the run took so long."""

    def longer(records: list[dict[str, Any]]) -> None:
        for record in records:
            record["ended_mono_s"] = record["started_mono_s"] + seconds

    return longer


def build(
    bench: BenchDir,
    run_id: str,
    before: Before = lambda planned, logs: None,
    after: After = lambda records: None,
    *,
    repeat: int = 1,
    seconds: float = 0.5,
) -> RunDir:
    """Write a run as collection leaves it. ``before`` changes manifest and logs, ``after`` the exit
    records made from them.
    """
    run = bench.run(run_id)
    planned, logs = (
        deepcopy(manifest(run_id, repeat)),
        [logs_of(node, seconds) for node in range(NODES)],
    )
    before(planned, logs)
    data = [{name: text.encode() for name, text in files.items()} for files in logs]
    records = [exit_record(run_id, node, files) for node, files in enumerate(data)]
    after(records)
    run.write_manifest(planned)
    for node, (files, record) in enumerate(zip(data, records, strict=True)):
        for name, content in files.items():
            run.write_log(f"node{node + 1}", name, content)
        run.write_log(f"node{node + 1}", "exit.json", json.dumps(record).encode())
    return run
