"""Leftovers of runs on a node, as the node answers: processes that still run, and processes that
may belong to a run.

The second kind exists only where a run's supervisor was killed and no control group could be made
for the run: a process that has left its parents and cleared its environment then has no mark of its
run. Such a run is never reported as ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.documents import Invalid, Reader
from orchestrator.errors import RunError

_MOST_NAMED = 20
_READER = Reader(null_is_missing=True)


@dataclass(frozen=True, slots=True)
class Leftovers:
    """``left`` has (process id, run id) of processes that still run. ``unverified`` has, by run id,
    what may belong to that run as (process id, name); it is empty for a run whose processes cannot
    be seen from where the node was asked. ``alive`` are runs whose supervisor was ordered to stop
    and has not ended yet. ``containers`` has, by run id, the leftovers of a run's container or may
    be, or why that cannot be told."""

    left: tuple[tuple[int, str], ...] = ()
    unverified: Mapping[str, tuple[tuple[int, str], ...]] = field(default_factory=dict)
    alive: tuple[str, ...] = ()
    containers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: Mapping[str, Any], host: str) -> Leftovers:
        """Read a node's answer to stop, left or status. Raises RunError result_invalid if it is
        malformed.
        """
        try:
            return _READER.read(cls, answer)
        except Invalid as fault:
            message = f"expected the processes that are left, got something malformed: {fault}"
            raise RunError(message, kind="result_invalid", host=host) from fault

    @property
    def processes(self) -> tuple[tuple[int, str], ...]:
        """The processes of all unverified runs; (0, "not visible") for a run whose processes cannot
        be seen, and 0 with a text for what may be left of a container."""
        rows = [row for rows in self.unverified.values() for row in rows or ((0, "not visible"),)]
        return (*rows, *((0, text) for texts in self.containers.values() for text in texts))

    @property
    def words(self) -> str:
        """The leftovers as a part of a sentence; empty without any."""
        parts = []
        if self.left:
            parts.append(
                f"processes {_list_names([str(pid) for pid, _ in self.left])} still run after SIGKILL"
            )
        for rows in self.unverified.values():
            parts.append(f"not verified: {_doubt(rows)}")
        parts += [f"not verified: {_list_names(list(texts))}" for texts in self.containers.values()]
        parts += [f"the supervisor of {run} has not ended yet" for run in self.alive]
        return "; ".join(parts)

    def errors(self, host: str) -> list[RunError]:
        """Return an error for each run that has left something, or may have."""
        errors = [
            RunError(
                f"processes {_list_names([str(pid) for pid, owner in self.left if owner == run])} still run after SIGKILL",
                kind="rank_failed",
                host=host,
                run_id=run,
            )
            for run in dict.fromkeys(run for _, run in self.left)
        ]
        for run, rows in self.unverified.items():
            why = "its supervisor was killed, and no control group could be made for the run"
            message = f"not verified: whether run {run} has ended; {why}; {_doubt(rows)}"
            hint = f"see them on the node (ps -fp {','.join(str(pid) for pid, _ in rows)}) and end those that belong to the run"
            errors.append(
                RunError(
                    message, kind="not_verified", host=host, run_id=run, hint=hint if rows else ""
                )
            )
        for run, texts in self.containers.items():
            message = f"not verified: whether the container of run {run} has ended; {_list_names(list(texts))}"
            hint = "orch cancel looks again, and removes a container of the run's own; see ps -a of the engine on the node"
            errors.append(RunError(message, kind="not_verified", host=host, run_id=run, hint=hint))
        for run in self.alive:
            message = f"the supervisor of run {run} has not ended yet; it may be hashing long logs, or waiting for its disk"
            hint = "orch status shows when it has ended; then orch collect fetches its logs"
            errors.append(RunError(message, kind="not_verified", host=host, run_id=run, hint=hint))
        return errors


def _doubt(rows: tuple[tuple[int, str], ...]) -> str:
    if not rows:
        return "its processes are in another PID namespace and cannot be seen"
    plural = len(rows) > 1
    named = _list_names([f"{pid} ({name})" for pid, name in rows])
    return f"{'processes' if plural else 'process'} {named} may belong to the run"


def _list_names(names: list[str]) -> str:
    rest = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {rest} more" if rest > 0 else "")
