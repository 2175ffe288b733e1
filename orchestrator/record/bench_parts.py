"""The parts of ``bench.json`` and their readers: planned runs, hosts and frameworks they were
planned with.

Readers raise KeyError for a missing value, and TypeError or ValueError for an invalid one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.inventory import Host, public_vars
from orchestrator.inventory.secrets import SHOWN, hidden
from orchestrator.plan import RunSpec, Skipped
from orchestrator.plan.expectations import Expectation, expectation_of
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.profile import Profile, profile_of
from orchestrator.record.recorded_spec import spec_of

__all__ = [
    "PlanEntry",
    "PlannedWith",
    "cells",
    "created",
    "entries",
    "expectations",
    "json_object",
    "names",
    "plain",
    "planned_with",
    "profile",
    "skipped",
    "text",
    "texts",
    "whole",
]


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """One planned run: index of its cell, repeat, index of its round (rung) if it belongs to a
    candidate, attempt.
    """

    cell: int
    repeat: int
    rung: int | None = None
    attempt: int = 1

    def as_dict(self) -> dict[str, int]:
        """Return the entry for JSON. A rung of None and a first attempt are left out."""
        rung = {} if self.rung is None else {"rung": self.rung}
        return {
            "cell": self.cell,
            "repeat": self.repeat,
            **rung,
            **({"attempt": self.attempt} if self.attempt > 1 else {}),
        }


@dataclass(frozen=True, slots=True)
class PlannedWith:
    """Everything except specs that a rendered plan depends on, for JSON: the fields of each host
    without values of secret variables, and the digests of each framework's files, of its payload,
    and of what in the files decides what runs (``launch``)."""

    hosts: Mapping[str, Mapping[str, Any]]
    frameworks: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(
        cls, hosts: Sequence[Host], secrets: Sequence[str], folders: Mapping[str, FrameworkFolder]
    ) -> PlannedWith:
        """Return the record of these hosts and frameworks as they are now."""

        def public(host: Host) -> dict[str, Any]:
            # Expectations of a host are checked before a run; no file of a plan depends on them or
            # on the transport.
            silent = {"expect", "transport", *(() if host.container else ("container",))}
            fields = {name: value for name, value in asdict(host).items() if name not in silent}
            # A bench may go on in another job of Slurm that has the same hosts.
            return {
                **fields,
                "vars": {name: value for name, value in host.vars.items() if name != "slurm_job"},
            }

        plain = {host.name: json.loads(json.dumps(public(host), default=str)) for host in hosts}
        frameworks = {
            name: {
                "files": folder.framework.digest,
                "payload": dict(folder.payload_digests),
                "launch": _launch_digest(folder),
            }
            for name, folder in folders.items()
        }
        return cls(plain, frameworks).without(secrets)

    def without(self, secrets: Sequence[str]) -> PlannedWith:
        """Return a copy without the values of these variables, and without ``vars`` that may be
        secret: earlier versions kept them, and a variable may have been declared secret after the
        record was written."""

        def shown(host: Mapping[str, Any]) -> Mapping[str, Any]:
            env = host.get("env", {})
            public = {
                name: hidden(name, value)
                if name in secrets and not value.startswith(SHOWN)
                else value
                for name, value in env.items()
            }
            kept = (
                {"vars": public_vars(host["vars"])} if isinstance(host.get("vars"), Mapping) else {}
            )
            return {**host, **kept, **({"env": public} if env else {})}

        return PlannedWith(
            {name: shown(host) for name, host in self.hosts.items()}, self.frameworks
        )

    def changed_secrets(self, hosts: Sequence[Host]) -> list[str]:
        """Return the variables, each as ``NAME of HOST``, that were secret and do not have the same
        value any more.
        """
        return [
            f"{name} of {host.name}"
            for host in hosts
            for name, value in self.hosts.get(host.name, {}).get("env", {}).items()
            if value.startswith(f"{SHOWN} ") and value != hidden(name, host.env.get(name, ""))
        ]

    def as_launched(self, before: PlannedWith) -> PlannedWith:
        """Return these values with those files of ``before`` that differ in nothing that decides
        what runs.
        """

        def files(name: str, now: Mapping[str, Any]) -> Mapping[str, Any]:
            then = before.frameworks.get(name, {})
            plain = {key: value for key, value in now.items() if key != "launch"}
            same = then.get("launch") == now["launch"]
            # Another version may compute another digest of what runs; files that are the same need
            # none.
            kept = ("files", "launch") if same else ("launch",)
            return {**plain, **{key: then[key] for key in kept if key in then}}

        return PlannedWith(
            self.hosts, {name: files(name, now) for name, now in self.frameworks.items()}
        )


def _launch_digest(folder: FrameworkFolder) -> str:
    """Return a digest of a framework folder without its log grammar and its published rules, which
    decide how logs are read and not what runs."""
    unused = ("digest", "folder", "log", "published")
    parsed = {name: value for name, value in asdict(folder.framework).items() if name not in unused}
    text = json.dumps([parsed, dict(folder.sources)], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def text(value: Any) -> str:
    """Return a value that must be text."""
    if not isinstance(value, str):
        raise TypeError(f"got {type(value).__name__}")
    return value


def expectations(value: Any) -> tuple[Expectation, ...]:
    """Return what a bench is expected to measure."""
    try:
        return tuple(map(expectation_of, texts(value)))
    except ConfigError as error:
        raise ValueError(error.message) from error


def profile(value: Any) -> Profile:
    """Return what is traced of the extra runs of a bench."""
    try:
        return profile_of(text(value))
    except ConfigError as error:
        raise ValueError(error.message) from error


def texts(value: Any) -> tuple[str, ...]:
    """Return a value that must be a list of texts."""
    if not isinstance(value, list):
        raise TypeError(f"got {type(value).__name__}")
    return tuple(map(text, value))


def paths(value: Any) -> tuple[Path, ...]:
    """Return folders: a list, or the only one, which an early version wrote as text."""
    return tuple(map(Path, texts([value] if isinstance(value, str) else value)))


def created(value: Any) -> str:
    """Return when a bench was created: a date, or the seconds that an early version wrote."""
    return str(value) if type(value) in (int, float) else text(value)


def json_object(value: Any) -> dict[str, Any]:
    """Return a value that must be an object."""
    if not isinstance(value, dict):
        raise TypeError(f"got {type(value).__name__}")
    return value


def names(value: Any) -> dict[str, str]:
    """Return a value that must be an object with texts as values."""
    return {name: text(other) for name, other in json_object(value).items()}


def whole(value: Any) -> int:
    """Return a value that must be a whole number."""
    if type(value) is not int:
        raise TypeError(f"got {value!r} for a whole number")
    return value


def cells(value: Any) -> tuple[RunSpec, ...]:
    """Return the cells of a bench."""
    return tuple(spec_of(json_object(cell)["spec"], cell.get("origins", {})) for cell in value)


def skipped(value: Any) -> tuple[Skipped, ...]:
    """Return the configurations that a bench skips."""
    return tuple(_skipped(json_object(entry)) for entry in value)


def _skipped(written: Mapping[str, Any]) -> Skipped:
    choices = json_object(written["choices"])
    whole(choices["nodes"]), whole(choices["gpus"])
    if odd := [
        name
        for name, part in choices.items()
        if not isinstance(part, (int, float, str, type(None)))
    ]:
        raise TypeError(f"got no number or text for {', '.join(odd)}")
    return Skipped(
        text(written["framework"]), text(written["model"]), choices, text(written["reason"])
    )


def entries(value: Any) -> dict[str, PlanEntry]:
    """Return the planned runs of a bench by run id."""
    written = {run_id: json_object(entry) for run_id, entry in json_object(value).items()}
    return {
        run_id: PlanEntry(
            whole(entry["cell"]),
            whole(entry["repeat"]),
            whole(entry["rung"]) if "rung" in entry else None,
            whole(entry.get("attempt", 1)),
        )
        for run_id, entry in written.items()
    }


def planned_with(value: Any) -> PlannedWith:
    """Return the hosts and frameworks that the runs of a bench were planned with."""
    hosts = {name: json_object(host) for name, host in json_object(value["hosts"]).items()}
    for host in hosts.values():
        json_object(host.get("env", {}))
    return PlannedWith(hosts, json_object(value.get("frameworks", {})))


def plain(kind: Callable[..., Any]) -> Callable[[Any], Any]:
    """Return a reader that builds a ``kind`` from an object whose values are numbers, texts or
    null.
    """

    def read(value: Any) -> Any:
        if odd := [
            name
            for name, part in json_object(value).items()
            if not isinstance(part, (int, float, str, type(None)))
        ]:
            raise TypeError(f"got no number or text for {', '.join(odd)}")
        try:
            return kind(**value)
        except ConfigError as error:
            raise ValueError(str(error)) from error

    return read
