"""The parts of a ``bench.json``, each with what reads it: planned runs, what they were planned with, the rungs of a tune.

Readers raise KeyError for what is missing, and TypeError or ValueError for what is not as it has to be.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from orchestrator.inventory import Host
from orchestrator.inventory.secrets import SHOWN
from orchestrator.plan import Knob, RunSpec
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.record.recorded_spec import spec_of

__all__ = [
    "PlanEntry",
    "PlannedWith",
    "RungRecord",
    "TuneRecord",
    "cells",
    "created",
    "entries",
    "names",
    "plain",
    "planned_with",
    "text",
    "texts",
    "tune",
]


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One planned run: the index of its cell, its repeat, the index of its rung where it is a candidate's, its attempt."""

    cell: int
    repeat: int
    rung: int | None = None
    attempt: int = 1

    def as_dict(self) -> dict[str, int]:
        """The entry, ready for JSON: without a rung where it has none, and without an attempt where it is the first."""
        rung = {} if self.rung is None else {"rung": self.rung}
        return {"cell": self.cell, "repeat": self.repeat, **rung, **({"attempt": self.attempt} if self.attempt > 1 else {})}


@dataclass(frozen=True, slots=True)
class PlannedWith:
    """All that a rendered plan depends on besides its specs, ready for JSON: the fields of each host, values of secret
    variables left out, and the digests of each framework's files and payload."""

    hosts: Mapping[str, Mapping[str, Any]]
    frameworks: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, hosts: Sequence[Host], secrets: Sequence[str], folders: Mapping[str, FrameworkFolder]) -> PlannedWith:
        """Return what stands for these hosts and frameworks as they are now."""

        def public(host: Host) -> dict[str, Any]:
            # What is expected of a host is judged before a run; no file of a plan rests on it.
            return {name: value for name, value in asdict(host).items() if name != "expect"}

        plain = {host.name: json.loads(json.dumps(public(host), default=str)) for host in hosts}
        frameworks = {
            name: {"files": folder.framework.digest, "payload": dict(folder.payload_digests)}
            for name, folder in folders.items()
        }
        return cls(plain, frameworks).without(secrets)

    def without(self, secrets: Sequence[str]) -> PlannedWith:
        """Return it without the values of these variables: what was no secret when it was written may be one now."""

        def shown(host: Mapping[str, Any]) -> Mapping[str, Any]:
            env = host.get("env", {})
            return {**host, "env": {name: SHOWN if name in secrets else value for name, value in env.items()}} if env else host

        return PlannedWith({name: shown(host) for name, host in self.hosts.items()}, self.frameworks)


@dataclass(frozen=True, slots=True)
class RungRecord:
    """A rung of a tune as it was begun: the value of each knob in each candidate, and the cells of the default and of them."""

    candidates: tuple[tuple[int, ...], ...]
    repeats: int
    steps: int
    confirms: bool
    cells: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TuneRecord:
    """A tune: its knobs, what hosts hold fixed, where its result is written (empty: beside the bench), its rungs so far, and
    why it ended, empty while it goes on."""

    knobs: tuple[Knob, ...]
    seed: int
    numerics: bool
    output: str
    held: Mapping[str, str]
    rungs: tuple[RungRecord, ...] = ()
    ended: str = ""


def text(value: Any) -> str:
    """Return a text."""
    if not isinstance(value, str):
        raise TypeError(f"got {type(value).__name__}")
    return value


def texts(value: Any) -> tuple[str, ...]:
    """Return a list of texts."""
    if not isinstance(value, list):
        raise TypeError(f"got {type(value).__name__}")
    return tuple(map(text, value))


def created(value: Any) -> str:
    """Return when a bench was made: a date, or seconds as an early version wrote them."""
    return str(value) if type(value) in (int, float) else text(value)


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TypeError(f"got {type(value).__name__}")
    return value


def names(value: Any) -> dict[str, str]:
    """Return an object of texts."""
    return {name: text(other) for name, other in _object(value).items()}


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"got {value!r} for a whole number")
    return value


def cells(value: Any) -> tuple[RunSpec, ...]:
    """Return the cells of a bench."""
    return tuple(spec_of(_object(cell)["spec"], cell.get("origins", {})) for cell in value)


def entries(value: Any) -> dict[str, PlanEntry]:
    """Return the planned runs of a bench by id."""
    written = {run_id: _object(entry) for run_id, entry in _object(value).items()}
    return {
        run_id: PlanEntry(
            _whole(entry["cell"]),
            _whole(entry["repeat"]),
            _whole(entry["rung"]) if "rung" in entry else None,
            _whole(entry.get("attempt", 1)),
        )
        for run_id, entry in written.items()
    }


def planned_with(value: Any) -> PlannedWith:
    """Return what the runs of a bench were planned with."""
    hosts = {name: _object(host) for name, host in _object(value["hosts"]).items()}
    for host in hosts.values():
        _object(host.get("env", {}))
    return PlannedWith(hosts, _object(value.get("frameworks", {})))


def plain(kind: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return what makes a value of numbers, words and nothing of its fields as they were written."""

    def read(value: Any) -> Any:
        if odd := [name for name, part in _object(value).items() if not isinstance(part, (int, float, str, type(None)))]:
            raise TypeError(f"got no plain value for {', '.join(odd)}")
        return kind(**value)

    return read


def tune(value: Any) -> TuneRecord:
    """Return the record of a tune."""
    knobs = tuple(_knob(_object(knob)) for knob in value["knobs"])
    rungs = tuple(_rung(_object(rung)) for rung in value["rungs"])
    if type(value["numerics"]) is not bool:
        raise TypeError("got no claim for numerics")
    return TuneRecord(
        knobs,
        _whole(value["seed"]),
        value["numerics"],
        text(value["output"]),
        names(value["held"]),
        rungs,
        text(value["ended"]),
    )


def _knob(kept: Mapping[str, Any]) -> Knob:
    values = tuple(map(tuple, kept["values"]))
    return Knob(tuple(kept["env"]), kept["option"], values, tuple(kept["networks"]), kept["numerics"], kept["default"])


def _rung(kept: Mapping[str, Any]) -> RungRecord:
    candidates = tuple(tuple(map(_whole, candidate)) for candidate in kept["candidates"])
    cells = tuple(map(_whole, kept["cells"]))
    if len(cells) != len(candidates) + 1 or type(kept["confirms"]) is not bool:
        raise ValueError("got a rung without a cell for each candidate and the default")
    return RungRecord(candidates, _whole(kept["repeats"]), _whole(kept["steps"]), kept["confirms"], cells)
