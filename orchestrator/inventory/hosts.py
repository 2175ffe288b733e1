"""The machines of a cluster as values: `Host` and `Inventory`.

Facts of the cluster live here (addresses, GPUs, interface, interpreter, environment); choices of an experiment live in
`orchestrator.plan.spec` and never overlap with them. This module knows no file format and opens nothing: reading is
`orchestrator.plan.folders`, our YAML schema is `orchestrator.inventory.schema`, formats of other tools are
`orchestrator.inventory.formats`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.inventory.hostset import expand, fold, nearest

__all__ = ["Host", "Inventory", "SshSettings", "secret_values"]

# Tokens and tokenizers in plain sight are those of language models: MAX_TOKENS, TOKENIZERS_PARALLELISM.
_SECRET = re.compile(r"TOKEN(?!S|IZ)|SECRET|PASSWORD|PASSWD|API_KEY|ACCESS_KEY|CREDENTIAL|PRIVATE_KEY", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SshSettings:
    """How a host is reached. ``None`` means: as the user's ssh configuration says, then OpenSSH's own default."""

    user: str | None = None
    port: int | None = None
    key: str | None = None
    jump: str | None = None
    config: str | None = None
    known_hosts: str | None = None
    host_keys: str = "strict"
    connect_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Host:
    """One machine.

    ``gpus`` is the number of GPUs that runs may use, 0 for a machine measured on its CPU, None where the source of the
    inventory does not say. ``slots`` is the number of processes a machine without GPUs carries. ``env`` goes into the
    environment of every run on it. ``vars`` are further facts that launch templates read: ``python`` (interpreter of the
    framework), ``interface`` (network device of the training traffic), ``data_dir``, ``workdir``, paths of programs. ``expect``
    is what preflight must find there, by the keys of ``expect:``.
    """

    name: str
    address: str
    gpus: int | None = None
    slots: int = 1
    ssh: SshSettings = SshSettings()
    env: Mapping[str, str] = field(default_factory=dict)
    vars: Mapping[str, Any] = field(default_factory=dict)
    expect: Mapping[str, Any] = field(default_factory=dict)

    @property
    def device(self) -> str:
        """What runs measure on this host: ``cuda`` or ``cpu``."""
        return "cpu" if self.gpus == 0 else "cuda"

    @property
    def capacity(self) -> int | None:
        """How many ranks fit: its GPUs, or its slots where it has none; None where the inventory does not say."""
        return self.slots if self.gpus == 0 else self.gpus


@dataclass(frozen=True, slots=True)
class Inventory:
    """Hosts in their written order, and named groups of them. ``source`` is the file or expression they came from.

    ``hidden`` are names of variables of ``env``, or patterns of them, whose values are never shown.
    """

    source: str
    hosts: tuple[Host, ...]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()

    @property
    def secrets(self) -> tuple[str, ...]:
        """The variables of ``env`` whose values are never shown: those that are hidden, and those named like a secret."""
        names = dict.fromkeys(name for host in self.hosts for name in host.env)
        return tuple(name for name in names if _SECRET.search(name) or any(fnmatchcase(name, each) for each in self.hidden))

    def select(self, expression: str = "", exclude: str = "") -> tuple[Host, ...]:
        """Return the hosts that ``expression`` names, in inventory order, without those of ``exclude``.

        ``gpu[1-4]``, ``10.11.0.[2-5]``, ``10.11.0.2-5``, ``@group``, ``@all``, ``a,b``; names and addresses alike.
        Empty: every host.
        Raises ConfigError naming the unknown host or group and the nearest known one.
        """
        wanted = self._names(expression) if expression else {host.name for host in self.hosts}
        unwanted = self._names(exclude) if exclude else set()
        return tuple(host for host in self.hosts if host.name in wanted - unwanted)

    def _names(self, expression: str) -> set[str]:
        known: dict[str, set[str]] = {}
        for host in self.hosts:
            known.setdefault(host.address, set()).add(host.name)
        known |= {host.name: {host.name} for host in self.hosts}
        names = set()
        for word in expand(expression, {"all": tuple(host.name for host in self.hosts)} | dict(self.groups)):
            if word not in known:
                raise ConfigError(
                    f"no host {word!r} in {self.source}",
                    where=f"hosts {expression!r}",
                    hint=f"known hosts: {fold(host.name for host in self.hosts)}{nearest(word, known)}",
                )
            names |= known[word]
        return names

    def of(self, names: Sequence[str]) -> tuple[Host, ...]:
        """Return the hosts with these names, in this order. Raises ConfigError for one that is not there any more."""
        by_name = {host.name: host for host in self.hosts}
        gone = [name for name in names if name not in by_name]
        if gone:
            raise ConfigError(f"expected the hosts {fold(gone)}, there are none of this name", where=self.source)
        return tuple(by_name[name] for name in names)


def secret_values(hosts: Sequence[Host], names: Sequence[str]) -> set[str]:
    """Return the values that hosts give to these variables, which are never shown; empty ones are no secrets."""
    return {host.env[name] for host in hosts for name in names if host.env.get(name)}
