"""The state of a bisect as recorded in its bench: the values of each candidate, and what failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.features.search.bisection.shares import is_side
from orchestrator.features.search.evidence import candidate_of, failure_of, read_search
from orchestrator.features.search.record import (
    BisectRecord,
    Candidate,
    Difference,
    RungRecord,
    bisect_of,
)
from orchestrator.plan import Framework, RunSpec
from orchestrator.plan.spec import as_written, resolve
from orchestrator.record import BenchDir
from orchestrator.results import RunResult

__all__ = ["BisectState", "applied", "bisect_state", "number_of", "setting"]

_FIELDS = ("nodes", "gpus", "batch_size", "dtype", "loader", "steps", "warmup_steps")
_CHOSEN = (*_FIELDS, "options.", "env.")
_MOST_FAILURES = 2
"""Failed runs of a candidate after which it is not run again."""


@dataclass(frozen=True, slots=True)
class BisectState:
    """The progress of a bisect, from its evidence alone. ``speeds`` are the values of the search by
    candidate and block,
    ``verified`` those of the verification, which ``chosen`` names; None before it. ``refused`` maps candidates that cannot be
    run, or failed, to the reason. ``failed_side`` is why A or B has no number, or failed twice;
    else empty."""

    record: BisectRecord
    speeds: Mapping[Candidate, Mapping[int, float]]
    verified: Mapping[Candidate, Mapping[int, float]]
    chosen: Candidate | None
    evidence: tuple[str, ...]
    refused: Mapping[Candidate, str]
    failed_side: str

    @property
    def count(self) -> int:
        """The number of differences."""
        return len(self.record.differences)


def bisect_state(bench: BenchDir, read: Callable[[str], RunResult | None]) -> BisectState:
    """Return the progress of a bisect; ``read`` returns the result of a finished run. Raise
    DataError for an invalid record.
    """
    bisect, runs = read_search(bench, bisect_of, "bisect", read)
    count = len(bisect.differences)
    a, b = (0,) * count, (1,) * count
    speeds: dict[Candidate, dict[int, float]] = {}
    verified: dict[Candidate, dict[int, float]] = {}
    failures: dict[Candidate, list[str]] = {}
    evidence: list[str] = []
    refused = {candidate: why for rung in bisect.rungs for candidate, why in rung.refused}
    for entry, result in runs:
        candidate = candidate_of(bench, "bisect", entry, bisect.rungs, (a, b))
        is_verifying = entry.rung is not None and bisect.rungs[entry.rung].confirms
        if is_verifying:
            evidence.append(result.run_id)
        number = number_of(result, bisect)
        if number is not None:
            (verified if is_verifying else speeds).setdefault(candidate, {})[entry.repeat] = number
        elif not result.is_interrupted:
            why = failure_of(result) or "it has no value of the metric above 0"
            failures.setdefault(candidate, []).append(why)
    given_up = {
        candidate: why
        for candidate, why in failures.items()
        if len(why) >= _MOST_FAILURES or (is_side(candidate) and candidate not in speeds)
    }
    refused |= {candidate: why[-1] for candidate, why in given_up.items() if not is_side(candidate)}
    last = bisect.rungs[-1] if bisect.rungs else None
    return BisectState(
        bisect,
        speeds,
        verified,
        _verified(last, b) if last and last.confirms else None,
        tuple(evidence),
        refused,
        next(
            (
                f"{name}: {given_up[side][0]}"
                for side, name in ((a, "A"), (b, "B"))
                if side in given_up
            ),
            "",
        ),
    )


def number_of(result: RunResult, record: BisectRecord) -> float | None:
    """Return the value of a run that a bisect compares; None without one, or if it is not above 0."""
    values = result.values if result.is_good else ()
    number = next(
        (
            value.number
            for value in values
            if value.metric == record.metric and tuple(value.key) == record.key
        ),
        None,
    )
    return number if number is not None and number > 0 else None


def applied(
    spec: RunSpec,
    framework: Framework,
    differences: Mapping[Difference, int],
    origins: tuple[str, str],
) -> RunSpec:
    """Return the spec of A with some differences as B has them, those with a 1. ``origins`` name
    the two sides.

    Raises ConfigError if that is impossible.
    """
    values = {
        difference.name: difference.after if taken else difference.before
        for difference, taken in differences.items()
    }
    choices: dict[str, Any] = {name: getattr(spec, name) for name in _FIELDS}
    choices |= {"timeout_s": spec.timeout_s, "container": spec.container or None}
    choices |= {f"options.{name}": value for name, value in spec.options.items()}
    choices |= {f"env.{name}": value for name, value in spec.env.items()}
    choices |= {name: value for name, value in values.items() if name.startswith(_CHOSEN)}
    for name, value in choices.items():
        if name.startswith("options.") and value is not None:
            choices[name] = as_written(value)
    if spec.follows:
        choices |= {"global_batch": spec.global_batch, spec.follows: None}
    made = resolve(framework, spec.model, device=spec.device, choices=choices)
    named = {difference.name: origins[taken] for difference, taken in differences.items()}
    hosts = values.get("hosts")
    return replace(
        made,
        hosts=tuple(str(hosts).split(",")) if hosts else spec.hosts,
        origins={**made.origins, **named},
    )


def setting(difference: Difference, *, after: bool = True) -> str:
    """Return one side of a difference as text: ``NCCL_ALGO=Ring``, ``without NCCL_ALGO``."""
    name, value = (
        difference.name.rpartition(".")[2],
        difference.after if after else difference.before,
    )
    return f"without {name}" if value is None else f"{name}={as_written(value)}"


def _verified(rung: RungRecord, b: Candidate) -> Candidate:
    """Return the set that a verification is about. Files of earlier versions do not name it: they
    have B, the set, and parts of it."""
    others = [candidate for candidate in rung.candidates if candidate != b]
    return rung.verifies or (tuple(map(max, zip(*others, strict=True))) if others else b)
