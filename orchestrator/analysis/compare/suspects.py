"""Possible causes of a change in one cell, ranked: measurements first, then choices, then facts.

This is a list of suspects with their evidence, never a proof; `orch bisect` proves.
``docs/compare.md`` documents the order:

1. parts of a step that were measured and changed with it, by the share of the change that each
   accounts for;
2. conditions that were measured during the runs and changed in the direction of the change: load by
   others, lowered clocks;
3. choices, then facts of machines and libraries, then the programs around a run, each in the order
   of `causes.RANKING`: within
   these, first those that act on a part that accounts for half of the change, last those known to act in the other direction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

from orchestrator.analysis.compare.causes import Distinction
from orchestrator.grouping import group_pairs
from orchestrator.plan.spec import EXTRA_CHOICES
from orchestrator.results import Cell, RunResult, median
from orchestrator.results.parts.step_parts import parse_step_parts

MEASURED, CONDITION, CHOICE, FACT, AROUND = "measured", "condition", "choice", "fact", "around"
_ORDER = (MEASURED, CONDITION, CHOICE, FACT, AROUND)
_LEAST_SHARE, _HALF = 0.1, 0.5
_LEAST_LOAD = 0.05
_LEAST_SAMPLED = 0.05
_SAMPLED = {
    "gpu_clock_mhz": 1, "gpu_power_w": 0, "gpu_used_percent": 0, "gpu_celsius": 0, "foreign_cores": -1, "sent_bytes_per_s": 0,
    "link_errors": -1,
}  # fmt: skip
"""What telemetry samples, and whether more of it makes a run faster (1) or slower (-1); 0 where it
may be a consequence.
"""
_INPUT, _COMPUTE, _REST = "wait for input", "computation alone", "communication and waiting"
_OF = {
    "load": "the processors of the busiest node used by others",
    "lowered clocks": "the window at most",
}
_ACTS_ON = {
    _INPUT: ("loader", "node.data*", "options.*worker*", "options.*prefetch*"),
    _COMPUTE: (
        "dtype", "batch_size", "options.compile*", "env.OMP_*", "env.MKL_*", "program.devices", "program.cudnn",
        "program.framework_version", "node.gpus.*", "node.cpu", "node.cores", "load",
    ),
    _REST: (
        "env.NCCL_*", "env.GLOO_*", "options.bucket*", "options.*compress*", "program.networks", "program.nccl",
        "program.backend", "node.interface.*", "hosts",
    ),
}  # fmt: skip
"""Names of differences, by the part of a step on which they act."""
_CHOICES = (
    "metric", "simulated", "framework", "model", "device", "options", "env", "dtype", "batch_size", "loader", "nodes", "gpus",
    "payload", "template", "hosts", "steps", "warmup_steps", *EXTRA_CHOICES,
)  # fmt: skip
_FACTS = ("program", "node", "load")
_BITS = {"fp32": 32, "tf32": 19, "fp16": 16, "bf16": 16, "fp8": 8}


@dataclass(frozen=True, slots=True)
class Suspect:
    """One difference that may explain a change.

    ``kind``: measured (a part of a step), condition, choice, fact, or around (programs that start
    and watch a run). ``share`` is the share of the change that it accounts for, None if it is not
    measured.
    """

    name: str
    before: str
    after: str
    kind: str
    share: float | None
    evidence: str


@dataclass(frozen=True, slots=True)
class CellSuspects:
    """The suspects of one cell that became slower or faster, by its case and metric."""

    case: str
    metric: str
    suspects: tuple[Suspect, ...]


def suspects(
    before: Cell, after: Cell, is_slower: bool, distinctions: Sequence[Distinction]
) -> tuple[Suspect, ...]:
    """Return possible causes of a slower or faster cell, the likeliest first.

    ``distinctions`` are the known differences, in the order of `causes.RANKING`.
    """
    parts = _parts(before, after)
    conditions = _conditions(before, after, is_slower)
    by_name = {distinction.name: distinction for distinction in distinctions}
    for place, condition in enumerate(conditions):
        same = by_name.get(condition.name)
        if same:
            conditions[place] = replace(condition, before=same.before, after=same.after)
    shown = {condition.name for condition in conditions}
    known = [distinction for distinction in distinctions if distinction.name not in shown]
    ranked = sorted(
        enumerate(known), key=lambda item: (*_rank(item[1], before, is_slower, parts), item[0])
    )
    others = [_suspect(distinction, before, after, is_slower, parts) for _, distinction in ranked]
    return (*sorted(parts, key=lambda part: -(part.share or 0.0)), *conditions, *others)


def _rank(
    distinction: Distinction, cell: Cell, is_slower: bool, parts: Sequence[Suspect]
) -> tuple[int, bool, bool]:
    return (
        _ORDER.index(_kind(distinction.name)),
        _contradicts(distinction, cell, is_slower),
        not _part_of(distinction.name, parts),
    )


def _suspect(
    distinction: Distinction, before: Cell, after: Cell, is_slower: bool, parts: Sequence[Suspect]
) -> Suspect:
    texts = [_source(distinction.name, before, after)]
    if part := _part_of(distinction.name, parts):
        texts.append(f"acts on {part.name}")
    if _contradicts(distinction, before, is_slower):
        texts.append(f"would rather make it {'faster' if is_slower else 'slower'}")
    return Suspect(
        distinction.name,
        distinction.before,
        distinction.after,
        _kind(distinction.name),
        None,
        "; ".join(filter(None, texts)),
    )


def _kind(name: str) -> str:
    kind = name.partition(".")[0]
    if kind in _CHOICES:
        return CHOICE
    if kind in _FACTS:
        return FACT
    return AROUND


def _source(name: str, before: Cell, after: Cell) -> str:
    """Return the source of a value: the origins of a choice, or the program that reported a fact."""
    origins = [cell.spec.origins.get(name, "") for cell in (before, after)]
    if any(origins):
        return " → ".join(dict.fromkeys(origin or "not set" for origin in origins))
    kind = name.partition(".")[0]
    told_by = {
        "program": "reported by the program",
        "node": "found by preflight",
        "load": "measured during the runs",
    }
    told_by |= {"template": "digest of the folder", "payload": "digest of the program"}
    return told_by.get(kind, "")


def _part_of(name: str, parts: Sequence[Suspect]) -> Suspect | None:
    """Return the part that accounts for half of the change and on which a difference acts."""
    large = [part for part in parts if (part.share or 0.0) >= _HALF]
    for part in large:
        if any(fnmatchcase(name, pattern) for pattern in _ACTS_ON.get(part.name, ())):
            return part
    return None


def _contradicts(distinction: Distinction, cell: Cell, is_slower: bool) -> bool:
    """Return True for a difference that is known to act in the other direction."""
    direction = _direction(distinction, cell)
    return direction > 0 if is_slower else direction < 0


def _direction(distinction: Distinction, cell: Cell) -> int:
    """Return the usual effect of a difference on a run: 1 faster, -1 slower, 0 unknown."""
    if distinction.name == "dtype" and cell.spec.device == "cuda":
        return _sign(_BITS.get(distinction.before, 0) - _BITS.get(distinction.after, 0))
    if (
        distinction.name == "batch_size"
        and distinction.before.isdecimal()
        and distinction.after.isdecimal()
    ):
        return _sign(int(distinction.after) - int(distinction.before))
    if distinction.name == "loader" and "synthetic" in (distinction.before, distinction.after):
        return 1 if distinction.after == "synthetic" else -1
    if distinction.name == "program.networks":
        return _sign(("NET/IB" in distinction.after) - ("NET/IB" in distinction.before))
    return 0


def _sign(value: int) -> int:
    return (value > 0) - (value < 0)


# --- what was measured


def _parts(before: Cell, after: Cell) -> list[Suspect]:
    """Return the parts of a step that account for a tenth or more of its change, if both programs
    report them.

    With another global batch, times of the second cell are scaled to as many samples as a step of
    the first has.
    """
    if not (before.is_speed_of_training and after.is_speed_of_training):
        return []
    scale = before.spec.global_batch / after.spec.global_batch
    sides = [_step(cell.with_number) for cell in (before, after)]
    sides[1] = {name: seconds * scale for name, seconds in sides[1].items()}
    longer = sides[1].get("", 0.0) - sides[0].get("", 0.0)
    parts = []
    for name in sides[0].keys() & sides[1].keys() - {""}:
        change = sides[1][name] - sides[0][name]
        if longer and change / longer >= _LEAST_SHARE:
            words = "grew by" if change > 0 else "shrank by"
            takes = "takes longer" if longer > 0 else "takes less"
            evidence = f"{words} {_ms(abs(change))} of the {_ms(abs(longer))} that a step {takes}"
            parts.append(
                Suspect(
                    name,
                    _ms(sides[0][name]),
                    _ms(sides[1][name]),
                    MEASURED,
                    change / longer,
                    evidence,
                )
            )
    return parts


def _step(runs: Sequence[RunResult]) -> dict[str, float]:
    """Return medians of a step's parts in seconds; the whole step has an empty name."""
    by_name = group_pairs(pair for run in runs for pair in _step_of(run).items())
    return {name: median(values) for name, values in by_name.items() if len(values) == len(runs)}


def _step_of(run: RunResult) -> dict[str, float]:
    if run.throughput is None or run.spec is None:
        return {}
    window = run.spec.steps - run.spec.warmup_steps
    step_s = run.throughput.seconds / window
    parts = {"": step_s}
    if run.step_times:
        parts["steps far above the median"] = max(0.0, run.step_times.mean_s - run.step_times.p50_s)
    reported = parse_step_parts(run.observed, window, run.spec.options.get("bucket_cap_mb"))
    if reported.input_s is not None:
        parts[_INPUT] = reported.input_s
    if reported.solo_mean_s is not None:
        parts[_COMPUTE] = reported.solo_mean_s
        parts[_REST] = max(0.0, step_s - reported.solo_mean_s - (reported.input_s or 0.0))
    return parts


def _conditions(before: Cell, after: Cell, is_slower: bool) -> list[Suspect]:
    """Return the measured conditions of the runs that differ in the direction of the change."""
    conditions = []
    shares: dict[str, Callable[[RunResult], float]] = {
        "load": _load,
        "lowered clocks": _lowered_share,
    }
    for name, of_run in shares.items():
        earlier = median([of_run(run) for run in before.good] or [0.0])
        later = median([of_run(run) for run in after.good] or [0.0])
        more = later - earlier
        if abs(more) >= _LEAST_LOAD and (more > 0) == is_slower:
            before_text, after_text = f"{earlier:.0%}", f"{later:.0%}"
            evidence = f"median of the runs: {before_text} of {_OF[name]}, then {after_text}"
            conditions.append(Suspect(name, before_text, after_text, CONDITION, None, evidence))
    sides_by_name = [_telemetry_medians(cell.good) for cell in (before, after)]
    for name, direction in _SAMPLED.items():
        if not all(name in side for side in sides_by_name):
            continue
        first, second = (side[name] for side in sides_by_name)
        differs = abs(second - first) >= _LEAST_SAMPLED * max(abs(first), abs(second)) > 0
        if differs and (not direction or ((second > first) == (direction > 0)) != is_slower):
            evidence = "telemetry of the measured window, median of the runs"
            conditions.append(
                Suspect(
                    f"telemetry.{name}", f"{first:.4g}", f"{second:.4g}", CONDITION, None, evidence
                )
            )
    return conditions


def _load(run: RunResult) -> float:
    return max(run.loaded.values(), default=0.0)


def _lowered_share(run: RunResult) -> float:
    return max(
        (share.most for by_host in run.slowed.values() for share in by_host.values()), default=0.0
    )


def _telemetry_medians(runs: Sequence[RunResult]) -> dict[str, float]:
    """Return medians of what telemetry says of the measured windows, by name; only what all runs
    have.
    """
    by_run = [_sampled_of(getattr(run, "use", None)) for run in runs]
    medians = {}
    for name in by_run[0] if by_run else ():
        if all(name in of_run for of_run in by_run):
            medians[name] = median([of_run[name] for of_run in by_run])
    return medians


def _sampled_of(use: Any) -> dict[str, float]:
    """Return the numbers of the samples of one run, of the node or GPU that counts; empty without
    samples.

    A run waits for its slowest GPU, and suffers from its busiest node.
    """
    nodes = use.nodes if use else ()
    gpus = [gpu for node in nodes for gpu in node.gpus]
    values: dict[str, list[float | None]] = {
        "gpu_clock_mhz": [gpu.sm_mhz for gpu in gpus],
        "gpu_used_percent": [gpu.used_percent for gpu in gpus],
        "gpu_power_w": [gpu.power_w for gpu in gpus],
        "gpu_celsius": [gpu.celsius for gpu in gpus],
        "foreign_cores": [node.foreign_cores for node in nodes],
        "sent_bytes_per_s": [node.sent_bytes_per_s for node in nodes],
        "link_errors": [float(sum(node.link_errors.values())) for node in nodes],
    }
    least = ("gpu_clock_mhz", "gpu_used_percent", "gpu_power_w", "sent_bytes_per_s")
    numbers = {}
    for name, of_name in values.items():
        known = [value for value in of_name if value is not None]
        if known:
            numbers[name] = min(known) if name in least else max(known)
    return numbers


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
