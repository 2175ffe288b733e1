"""The parts of ``bench.json`` and their readers: planned runs, hosts and frameworks they were
planned with.

Readers raise ValueError, or what plan raises for an invalid value.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.documents import read
from orchestrator.feature import providers
from orchestrator.inventory import Host, public_vars
from orchestrator.inventory.secrets import SHOWN, hidden
from orchestrator.plan import RunSpec, Skipped
from orchestrator.plan.bench import ExtraRuns
from orchestrator.plan.expectations import Expectation, expectation_of
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.record.recorded_spec import spec_of


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
    frameworks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for host in self.hosts.values():
            read(dict[str, Any], host.get("env", {}))

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
            # A bench may go on in another job that has the same hosts, and in other pods.
            passing = ("slurm_job", "pod", "pod_node")
            lasting = {name: value for name, value in host.vars.items() if name not in passing}
            address = "" if "pod" in host.vars else host.address
            return {**fields, "address": address, "vars": lasting}

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
            kept = {}
            if isinstance(host.get("vars"), Mapping):
                kept = {"vars": public_vars(host["vars"])}
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


def expectations(value: Any) -> tuple[Expectation, ...]:
    """Read the expectations of a bench."""
    return tuple(map(expectation_of, read(tuple[str, ...], value)))


def extra_runs(value: Any) -> ExtraRuns | None:
    """Return the extra runs of a bench; None if no feature knows them."""
    text = read(str, value)
    for module in providers("extra_runs"):
        found: ExtraRuns = module.read_extra_runs(text)
        return found
    return None


def paths(value: Any) -> tuple[Path, ...]:
    """Return folders: a list, or what an early version wrote: the only one as text, or null."""
    if value is None or isinstance(value, str):
        return tuple(map(Path, filter(None, [value])))
    return read(tuple[Path, ...], value)


def created(value: Any) -> str:
    """Read the creation time of a bench: a date, or an early version's seconds or null."""
    if value is None:
        return ""
    if type(value) in (int, float):
        return str(value)
    return read(str, value)


def cells(value: Any) -> tuple[RunSpec, ...]:
    """Return the cells of a bench."""
    return tuple(spec_of(cell.spec, cell.origins) for cell in read(tuple[_Cell, ...], value))


def skipped(value: Any) -> tuple[Skipped, ...]:
    """Return the configurations that a bench skips."""
    configurations = read(tuple[Skipped, ...], value)
    for configuration in configurations:
        read(dict[str, str | float | bool | None], configuration.choices)
        read(_Shape, configuration.choices)
    return configurations


@dataclass(frozen=True, slots=True)
class _Shape:
    nodes: int
    gpus: int


@dataclass(frozen=True, slots=True)
class _Cell:
    spec: Mapping[str, Any]
    origins: Mapping[str, str] = field(default_factory=dict)
