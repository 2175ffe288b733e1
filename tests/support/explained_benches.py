"""Benches whose steps have known parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from orchestrator.record.rundir import BenchDir
from tests.support.run_folders import BATCH, NODES, WORLD, build, closing, rank_line, step_lines

READINGS = (
    r"^orch collective=(?P<collective>\S+) size_bytes=(?P<size_bytes>[0-9]+) in_place=(?P<in_place>[01]) "
    r"iterations=(?P<iterations>[0-9]+) time_s=(?P<time_s>[0-9.]+) max_time_s=(?P<max_time_s>[0-9.]+)$"
)


TIMES = {1_000_000: 0.010, 2_000_000: 0.020}
SOLO = {
    "solo_step_s": [0.41, 0.41, 0.41, 0.45],
    "input_wait_s": [0.0, 0.1, 0.0, 0.0],
    "gradient_buckets_bytes": [2_000_000],
}


def one_gpu(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
    """Make a run of `build` one of a single rank."""
    planned["spec"] |= {"nodes": 1, "gpus": 1}
    planned["placement"] |= {
        "world_size": 1,
        "slots": [{**planned["placement"]["slots"][0], "nproc": 1}],
    }
    solo = {
        "world_size": 1,
        "ranks": [0],
        "global_batch": BATCH,
        "solo_step_s": [0.40],
        "input_wait_s": [0.0],
    }
    lines = step_lines(0.40).replace(f"samples={BATCH * WORLD}", f"samples={BATCH}")
    logs[0] = {"node.out": "", "rank-0.out": rank_line(0, 1) + lines + closing(**solo)}


def several(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
    """Let a run of `build` tell the parts of its steps, and when its nodes started by clocks that
    its log speaks by.
    """
    logs[0]["rank-0.out"] = rank_line(0) + step_lines(0.50) + closing(**SOLO, networks=[])
    hosts = {
        f"node{n + 1}": {"started_mono_s": 898.0, "offset_s": 0.0, "bound_s": 0.001}
        for n in range(NODES)
    }
    planned["start"] = {"skew_s": 0.0, "bound_s": 0.001, "hosts": hosts}


def by_the_logs_clock(records: list[dict[str, Any]]) -> None:
    for record in records:
        record |= {"started_mono_s": 898.0, "ended_mono_s": 908.0}


def all_reduces(
    planned: dict[str, Any],
    logs: list[dict[str, str]],
    times: float = 1.0,
    measured: dict[int, float] = TIMES,
) -> None:
    """Make a run of `build` one that measured all-reduces, each so many ``times`` as long."""
    collectives(
        planned, logs, "allreduce", {size: times * time_s for size, time_s in measured.items()}
    )


def collectives(
    planned: dict[str, Any],
    logs: list[dict[str, str]],
    collective: str,
    measured: dict[int, float],
    **groups: int,
) -> None:
    """Make a run of `build` one that measured a collective, in ``groups`` of ranks: seconds by
    size, as training calls it.
    """
    form = 0 if collective == "reduce_scatter" else 1
    spec = {
        "framework": "collectives",
        "model": collective,
        "dtype": "fp32",
        "batch_size": 1,
        "loader": "none",
    }
    options = {"sizes": ",".join(map(str, measured)), "in_place": ("out", "in")[form], **groups}
    planned["spec"] |= spec | {"options": options}
    log = planned["framework"]["log"]
    planned["framework"] |= {
        "name": "collectives",
        "measures": "collectives",
        "log": {**log, "patterns": [], "readings": READINGS},
    }
    lines = [
        f"orch collective={collective} size_bytes={size} in_place={form} iterations=20"
        f" time_s={time_s:.6f} max_time_s={time_s:.6f}\n"
        for size, time_s in measured.items()
    ]
    said = closing(model=collective, dtype="fp32", batch_size=1, global_batch=WORLD)
    logs[0]["rank-0.out"] = rank_line(0) + "".join(lines) + said


def bench_of(root: Path, *more: str, measured: bool = True) -> BenchDir:
    """Write a bench of 1n1g and 2n2g, and ``more`` runs to come, and beside it, where ``measured``,
    one of all-reduces.
    """
    bench = BenchDir.create(root, {"bench_id": "b1", "runs": ["one", "four", *more]})
    build(bench, "one", one_gpu)
    build(bench, "four", several, by_the_logs_clock)
    if measured:
        build(BenchDir.create(root, {"bench_id": "b0", "runs": ["sizes"]}), "sizes", all_reduces)
    return bench
