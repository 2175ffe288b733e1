"""The time of a collective on given hosts, from earlier benches: the newest curve of time over
size.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import OrchError
from orchestrator.features.explain.curve import reaches
from orchestrator.grouping import group_pairs
from orchestrator.record import RunDir
from orchestrator.record.evidence import invalid, read_rendered_files
from orchestrator.record.manifest import read_manifest
from orchestrator.record.rundir import benches
from orchestrator.results import Cell, cells_of, interval, median
from orchestrator.results.links.collectives import medians
from orchestrator.results.parts.transfers import ALL_REDUCE, Link
from orchestrator.results.read import read_run

Settings = Mapping[str, Mapping[str, str]]
"""By host, the environment variables that configure NCCL."""

_SETTING = ("NCCL_", "TORCH_NCCL_")
_TELLING = "NCCL_DEBUG"


@dataclass(frozen=True, slots=True)
class MeasuredCurve:
    """The median time (s) of a call over ``repeats`` runs, by size in bytes, in order of size, with
    bench and type of the measurement. The time depends on the bytes, so a measurement with one type
    applies to all. ``uncertain`` is how far a time may be off, as a share: half of its 95 %
    interval, median over sizes; 0 without repeats. ``passed_over`` are newer benches whose sizes
    end too far below the requested one."""

    times_s: Mapping[int, float]
    bench_id: str
    dtype: str
    in_place: bool
    repeats: int
    uncertain: float = 0.0
    passed_over: tuple[str, ...] = ()


def newest_curve(
    runs: Path,
    shape: str,
    settings: Settings,
    *,
    link: Link = ALL_REDUCE,
    device: str = "",
    reaching: int = 0,
) -> MeasuredCurve | None:
    """Return the newest curve measured with this shape (``4n8g``) on exactly these hosts, with
    these NCCL settings.

    None if there is no such measurement. Curves that cover ``reaching`` bytes are preferred to
    shorter ones. ``runs`` is the project's directory of benches. ``device`` is ``cuda`` or ``cpu``,
    empty for any. A reduce-scatter must go to another buffer, and any other collective must be in
    place, as DistributedDataParallel and FSDP call them. Among several types the one with the most
    good repeats is taken, then fp32. A bench that cannot be read is skipped: `orch summarize` names
    its fault.
    """
    in_place = link.collective != "reduce_scatter"
    short: list[MeasuredCurve] = []
    for bench in benches(runs):
        try:
            results = [read_run(run) for run in bench.runs() if _is_of(run, link, settings)]
        except OrchError:  # damaged, or of an earlier version
            continue
        fitting = [cell for cell in cells_of(results, "time") if _fits(cell, shape, device)]
        best = max(
            fitting, key=lambda cell: (len(cell.good), cell.spec.dtype == "fp32"), default=None
        )
        times = medians([(run.repeat, run.readings) for run in best.good], in_place) if best else {}
        if best and times:
            passed_over = tuple(curve.bench_id for curve in short)
            name, off = bench.path.name, _uncertain(best, in_place)
            curve = MeasuredCurve(
                times, name, best.spec.dtype, in_place, len(best.good), off, passed_over
            )
            if reaches(max(times), reaching):
                return curve
            short.append(curve)
    return short[0] if short else None


def settings_of(run: RunDir) -> Settings:
    """Return the NCCL settings of a run on each of its hosts, without its log settings. Raise
    DataError if they are damaged.

    In a run on CPUs all hosts are without settings, because NCCL is not used.
    """
    manifest = read_manifest(run)
    by_host: dict[str, dict[str, str]] = {}
    for host in manifest.hosts:
        text = (
            read_rendered_files(run, host).get("env.sh", "")
            if manifest.spec.device == "cuda"
            else ""
        )
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise invalid(f"expected lines of shell, got: {error}", host, "env.sh") from None
        pairs = (word.partition("=")[::2] for word in words if word.startswith(_SETTING))
        by_host[host] = {name: value for name, value in pairs if not name.startswith(_TELLING)}
    return by_host


def _is_of(run: RunDir, link: Link, settings: Settings) -> bool:
    """Return True if a run's manifest fits, before its logs are read."""
    manifest = read_manifest(run)
    options = manifest.spec.options
    groups = (options.get("group_ranks", 0), options.get("group_distance", 1))
    measured = manifest.measure.name == "collectives" and manifest.spec.model == link.collective
    return measured and groups == (link.ranks, link.distance) and settings_of(run) == settings


def _fits(cell: Cell, shape: str, device: str) -> bool:
    return (
        cell.spec.shape == shape
        and device in ("", cell.spec.device)
        and not cell.simulated
        and bool(cell.good)
    )


def _uncertain(cell: Cell, in_place: bool) -> float:
    points = [point for run in cell.good for point in run.readings if point.in_place == in_place]
    times = group_pairs((point.size_bytes, point.time_s) for point in points)
    intervals = [ends for ends in map(interval, times.values()) if ends]
    if not intervals:
        return 0.0
    return median([math.sqrt(ends.high / ends.low) - 1 for ends in intervals])
