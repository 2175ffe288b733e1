"""What earlier benches know of the time of a collective on some hosts: the newest curve of time over size."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.collectives import medians
from orchestrator.errors import OrchError
from orchestrator.intervals import interval
from orchestrator.results import read_run
from orchestrator.rundir import BenchDir
from orchestrator.stats import median
from orchestrator.summary import Cell, cells_of

__all__ = ["Curve", "newest_curve"]


@dataclass(frozen=True, slots=True)
class Curve:
    """The median over ``repeats`` runs of the time (s) of a call, by size in bytes, in order of size; in which bench and with
    which type it was measured. A time depends on bytes, so that of one type stands for all. ``uncertain`` is how far a time
    may be off, as a share: half of its 95 % interval, the median over sizes; 0 where there are no repeats to tell."""

    times_s: Mapping[int, float]
    bench_id: str
    dtype: str
    in_place: bool
    repeats: int
    uncertain: float = 0.0


def newest_curve(
    runs: Path, shape: str, hosts: Sequence[str], *, collective: str = "allreduce", device: str = "", in_place: bool = True
) -> Curve | None:
    """Return the newest curve that was measured with this shape (``4n8g``) on exactly these hosts; None where there is none.

    ``runs`` is the project's directory of benches. ``device`` is ``cuda`` or ``cpu``, empty for any. All-reduce is in place, as
    DistributedDataParallel calls it. Of several types the one with most good repeats is taken, then fp32. A bench that cannot
    be read is passed by: `orch summarize` tells what is wrong with it.
    """
    for path in sorted(runs.glob("*/bench.json"), reverse=True):
        try:
            bench = BenchDir.open(path.parent)
            results = [read_run(run) for run in bench.runs() if _is_of(run.manifest(), collective, hosts)]
        except (OrchError, KeyError, TypeError, AttributeError):  # damaged, or of an earlier version
            continue
        fitting = [cell for cell in cells_of(results) if _fits(cell, shape, device)]
        best = max(fitting, key=lambda cell: (len(cell.good), cell.spec.dtype == "fp32"), default=None)
        times = medians([(run.repeat, run.readings) for run in best.good], in_place) if best else {}
        if best and times:
            return Curve(times, path.parent.name, best.spec.dtype, in_place, len(best.good), _uncertain(best, in_place))
    return None


def _is_of(manifest: Mapping[str, Any], collective: str, hosts: Sequence[str]) -> bool:
    """Tell by the manifest alone whether a run is worth reading."""
    measured = manifest["framework"].get("measures") == "collectives" and manifest["spec"]["model"] == collective
    return measured and {slot["host"] for slot in manifest["placement"]["slots"]} == set(hosts)


def _fits(cell: Cell, shape: str, device: str) -> bool:
    return cell.spec.shape == shape and device in ("", cell.spec.device) and not cell.simulated and bool(cell.good)


def _uncertain(cell: Cell, in_place: bool) -> float:
    times: dict[int, list[float]] = {}
    for point in (point for run in cell.good for point in run.readings if point.in_place == in_place):
        times.setdefault(point.size_bytes, []).append(point.time_s)
    found = [reach for some in times.values() if (reach := interval(some))]
    return median([math.sqrt(reach.high / reach.low) - 1 for reach in found]) if found else 0.0
