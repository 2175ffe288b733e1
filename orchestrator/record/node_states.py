"""The project's memory of its nodes: good, suspect or out, with reason, evidence and date.

`orch accept` makes a node suspect that fails, and good again when it passes. A person takes a node
out and back.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from orchestrator.documents import Invalid, read
from orchestrator.errors import DataError
from orchestrator.files import PROJECT_HINT, failures, make_folder
from orchestrator.record.state_file import read_state, state_error, write_state

GOOD: Final = "good"
SUSPECT: Final = "suspect"
OUT: Final = "out"
_FORGET = "remove it to forget all states; orch accept determines them again"
_MOST_PAST = 200
"""States of a host that are kept besides its current one."""

States = Mapping[str, "NodeState"]
"""The state of each host that a project remembers."""


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of one host at an address; ``evidence`` names what judged it, or is empty if
    a person said it.
    """

    state: Literal["good", "suspect", "out"]
    address: str
    reason: str
    evidence: str
    since: str

    def is_of(self, host: str, address: str) -> bool:
        """Return whether the state is about this machine.

        It matches the machine's address, or its name alone if the inventory had no address.
        """
        return self.address in (address, host)


def node_states(path: Path) -> dict[str, NodeState]:
    """Return the state of each host that a project remembers. Raises DataError (state_damaged)."""
    if not path.exists():
        return {}
    try:
        return read(dict[str, NodeState], read_state(path).get("nodes"))
    except DataError as error:
        error.hint = "; ".join(filter(None, (error.hint, _FORGET)))
        raise
    except Invalid as error:
        raise state_error(
            path, f"nodes: expected a state of each host, {error}", _FORGET
        ) from error


def past_states(path: Path) -> dict[str, tuple[NodeState, ...]]:
    """Return the states that each host had, the oldest first and its current one last. Raises
    DataError (state_damaged).
    """
    current = node_states(path)
    if not current:
        return {}
    try:
        past = read(dict[str, tuple[NodeState, ...]], read_state(path).get("past", {}))
    except Invalid as error:
        hint = "orch nodes shows the current ones"
        raise state_error(
            path, f"past: expected the earlier states of each host, {error}", hint
        ) from error
    return {host: (*past.get(host, ()), state) for host, state in current.items()}


def change(path: Path, change: Callable[[States], States]) -> tuple[States, States]:
    """Write the states that ``change`` makes of the known ones; return the old and the new ones.

    Changed states are kept as past ones. Commands that change the states at the same time take
    turns, so none undoes another's change.
    """
    make_folder(path.parent, PROJECT_HINT)
    with failures(path.parent, hint=PROJECT_HINT):
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(folder, fcntl.LOCK_EX)
        before = node_states(path)
        after = change(before)
        if after != before:
            _write(path, before, after)
        return before, after
    finally:
        os.close(folder)


def _write(path: Path, before: States, after: States) -> None:
    known: dict[str, tuple[NodeState, ...]] = {host: (state,) for host, state in before.items()}
    with suppress(DataError):  # the current state is worth more than past ones
        known = past_states(path)
    past = {
        host: states if after.get(host) != states[-1] else states[:-1]
        for host, states in known.items()
    }
    write_state(
        path,
        {
            "nodes": {host: asdict(state) for host, state in after.items()},
            "past": {
                host: list(map(asdict, states[-_MOST_PAST:]))
                for host, states in past.items()
                if states
            },
        },
    )


def apply_verdicts(
    states: Mapping[str, NodeState],
    verdicts: Mapping[str, tuple[str, str, str]],
    evidence: str,
    since: str,
) -> dict[str, NodeState]:
    """Return the states after hosts were judged: ``verdicts`` have verdict, address and reason by
    host.

    What failed is suspect, what passed is good; an open verdict changes nothing, nor does any
    verdict a node that is out.
    """
    after = dict(states)
    for host, (verdict, address, reason) in verdicts.items():
        before = states.get(host)
        if before and before.state == OUT and before.is_of(host, address):
            continue
        if verdict == "fail":
            kept = since
            if before and before.state == SUSPECT and before.address == address:
                kept = before.since
            after[host] = NodeState(SUSPECT, address, reason, evidence, kept)
        elif verdict == "pass" and not (
            before and before.state == GOOD and before.address == address
        ):
            after[host] = NodeState(GOOD, address, "passed", evidence, since)
    return after


def now() -> str:
    """Return the time as states have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
