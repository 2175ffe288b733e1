"""The parts of every rank's steps in one run, as each rank printed them at its end.

The lines come from nodes: a value that is not what the plan and the other ranks say is named in a
note, and the run then has no parts. remote/rank_parts.py says what a line has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.documents import short
from orchestrator.errors import DataError
from orchestrator.logs.parse import Parsed
from orchestrator.logs.steps import ABSURD
from orchestrator.notes import Note
from orchestrator.plan.placement import Slot
from orchestrator.plan.spec import RunSpec
from orchestrator.plural import plural
from orchestrator.results.notes import RANK_PARTS_UNUSED
from orchestrator.strictjson import strict_json

_MOST_BLOCKS = 256
_PARTS = ("step_s", "input_s", "compute_s", "compute_cpu_s")


@dataclass(frozen=True, slots=True)
class RankParts:
    """The steps of a rank in the window: medians of consecutive blocks of steps, in seconds.

    ``compute_s`` is the time from when a step's input is there until the rank first communicates,
    ``compute_cpu_s`` the processor time that it takes meanwhile; each is empty if it is not known.
    ``gpu_waits`` is the share of the window's steps in which its GPU waits for its program
    meanwhile, 0 to 1; None if that is not known.
    """

    rank: int
    host: str
    step_s: tuple[float, ...]
    input_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    compute_cpu_s: tuple[float, ...] = ()
    gpu_waits: float | None = None


def parts_of_ranks(
    logs: Mapping[str, Mapping[str, Parsed]], slots: Sequence[Slot], spec: RunSpec
) -> tuple[tuple[RankParts, ...], list[Note]]:
    """Return the parts of all ranks in order of rank, and a note if they cannot be used; ``logs``
    by host and name.
    """
    try:
        parts = sorted(
            (
                _parts(text, slot, spec)
                for slot in slots
                for log in logs[slot.host].values()
                for text in log.rank_parts
            ),
            key=lambda part: part.rank,
        )
        if parts and [part.rank for part in parts] != list(range(spec.world_size)):
            raise _unusable(
                f"expected one line of each of {plural(spec.world_size, 'rank')}, got {plural(len(parts), 'line')}"
            )
        if len({len(part.step_s) for part in parts}) > 1:
            raise _unusable("expected as many blocks of steps from every rank")
    except DataError as error:
        where = f" of {error.host}" if error.host else ""
        return (), [RANK_PARTS_UNUSED(where=where, fault=error.message)]
    return tuple(parts), []


def _parts(text: str, slot: Slot, spec: RunSpec) -> RankParts:
    """Return the parts in a line. Raises DataError for what no rank of this node prints in this
    run.
    """
    try:
        facts = strict_json(text, "")
        if not isinstance(facts, dict):
            raise _unusable(f"expected a JSON object, got {short(facts)}")
        rank = facts.get("rank")
        if type(rank) is not int or rank not in slot.ranks:
            raise _unusable(f"expected a rank of this node, got {short(rank)}")
        window = facts.get("first_step"), facts.get("last_step")
        if window != (spec.warmup_steps + 1, spec.steps):
            got = " to ".join(map(short, window))
            raise _unusable(
                f"expected steps {spec.warmup_steps + 1} to {spec.steps} of rank {rank}, got {got}"
            )
        # Programs that print no processor time, as the trainers before it was recorded, have none.
        step, waited, *computed = (
            _seconds({"compute_cpu_s": [], **facts}, name) for name in _PARTS
        )
        if (
            not 0 < len(step) == len(waited)
            or {len(values) for values in computed} - {0, len(step)}
            or min(step) <= 0
        ):
            raise _unusable(
                f"expected as many values of each part of rank {rank}, above 0 for steps"
            )
        compute, working = (values if min(values, default=0.0) > 0 else () for values in computed)
        return RankParts(
            rank, slot.host, step, waited, compute, working, _share(facts, "gpu_waits")
        )
    except DataError as error:
        error.host = slot.host
        raise


def _seconds(facts: Mapping[str, Any], name: str) -> tuple[float, ...]:
    values = facts.get(name)
    if not isinstance(values, list) or len(values) > _MOST_BLOCKS:
        raise _unusable(
            f"expected a list of at most {_MOST_BLOCKS} numbers as {name}, got {short(values)}"
        )
    if not all(type(value) in (int, float) and 0 <= value < ABSURD for value in values):
        raise _unusable(f"expected seconds as {name}, got {short(values)}")
    return tuple(map(float, values))


def _share(facts: Mapping[str, Any], name: str) -> float | None:
    value = facts.get(name)
    if value is None:  # a program that does not tell, as the trainers before it was recorded
        return None
    if type(value) not in (int, float) or not 0 <= value <= 1:
        raise _unusable(f"expected a share from 0 to 1 as {name}, got {short(value)}")
    return float(value)


def _unusable(message: str) -> DataError:
    return DataError(message, kind="result_invalid")
