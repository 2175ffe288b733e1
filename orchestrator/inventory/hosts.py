"""The machines of a cluster as values: `Host` and `Inventory`.

They hold facts of the cluster (addresses, GPUs, interface, interpreter, environment). The choices
of an experiment are in `orchestrator.plan.spec`; the two never overlap. This module knows no file
format and opens no file: `orchestrator.inventory.read` reads inventories,
`orchestrator.inventory.schema` checks orch's own YAML, and `orchestrator.inventory.formats` parses
the formats of other tools.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from orchestrator.errors import ConfigError, nearest
from orchestrator.grouping import group_pairs
from orchestrator.inventory.hostset import expand, fold
from orchestrator.inventory.secrets import Redaction, keeps_secret, names_secret, redaction

REFERENCE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)\})")
"""A reference to a variable of the node in the value of a variable such as PATH."""
TRANSPORTS = ("ssh", "openssh", "srun", "kubectl")
"""The ways to reach a host, the first by default; `orchestrator.transport.connections` has a
connector for each.
"""


def takes_references(name: str) -> bool:
    """Return whether ``$NAME`` in this variable's value refers to a variable of the node.

    True for PATH, LD_LIBRARY_PATH, PYTHONPATH … Other values are taken literally, because a ``$``
    may be part of a password.
    """
    return name.endswith("PATH")


@dataclass(frozen=True, slots=True)
class SshSettings:
    """The ssh settings of a host.

    None means the value in the user's ssh configuration, or else OpenSSH's default.
    """

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

    ``gpus`` is the number of GPUs that runs may use, 0 for a machine that is measured on its CPU,
    None if the inventory does not state it. ``slots`` is the number of ranks for a machine without
    GPUs. ``env`` is added to the environment of every run on the host. ``vars`` are further facts
    that launch templates read: ``python`` (interpreter of the framework), ``interface`` (network
    device of the training traffic), ``data_dir``, ``workdir``, paths of programs. ``expect`` is
    what preflight must find on the host, by the keys of ``expect:``. ``transport`` is how the host
    is reached, one of `TRANSPORTS`. ``container`` is in what launch scripts start there, by the
    keys of ``container:``; empty for the host itself.
    """

    name: str
    address: str
    gpus: int | None = None
    slots: int = 1
    ssh: SshSettings = SshSettings()
    env: Mapping[str, str] = field(default_factory=dict)
    vars: Mapping[str, Any] = field(default_factory=dict)
    expect: Mapping[str, Any] = field(default_factory=dict)
    transport: str = TRANSPORTS[0]
    container: Mapping[str, Any] = field(default_factory=dict)

    @property
    def python(self) -> tuple[str, ...]:
        """The command that starts the framework's interpreter: ``vars.python`` as the words of a
        shell, ``python3`` by default.

        Raises ConfigError for a quote without its counterpart.
        """
        return self._command("python")

    @property
    def runner_python(self) -> tuple[str, ...]:
        """The command that starts the interpreter of the node runner, in the same way:
        ``vars.runner_python``.
        """
        return self._command("runner_python")

    def _command(self, name: str) -> tuple[str, ...]:
        try:
            return tuple(shlex.split(str(self.vars.get(name) or "python3"))) or ("python3",)
        except ValueError as error:
            hint = f"write a path with a space in quotes: {name}: \"'/opt/my env/bin/python'\""
            message = f"expected an interpreter or a command, got {str(error).lower()}"
            raise ConfigError(
                message, where=f"vars.{name} of host {self.name}", hint=hint
            ) from None

    @property
    def device(self) -> str:
        """Device that runs on this host measure: ``cuda`` or ``cpu``."""
        return "cpu" if self.gpus == 0 else "cuda"

    @property
    def capacity(self) -> int | None:
        """Number of ranks that fit: its GPUs, or its slots if it has no GPU; None if the inventory
        does not state it.
        """
        return self.slots if self.gpus == 0 else self.gpus


@dataclass(frozen=True, slots=True)
class Inventory:
    """Hosts in written order, and named groups of them. ``source`` is the file or expression that
    declares them.

    ``hidden`` are names, or patterns of names, of ``env`` variables whose values are never shown.
    ``notes`` say what the source holds and was not read.
    """

    source: str
    hosts: tuple[Host, ...]
    groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    hidden: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def secrets(self) -> tuple[str, ...]:
        """The ``env`` variables whose values are never shown: also those with a key or a URL with a
        password.
        """
        values = group_pairs(pair for host in self.hosts for pair in host.env.items())
        return tuple(
            name
            for name, of_hosts in values.items()
            if self.is_secret(name) or keeps_secret(name, of_hosts)
        )

    def is_secret(self, name: str) -> bool:
        """Return whether a variable's values are never shown: ``hidden`` or its name says so."""
        return names_secret(name) or any(fnmatchcase(name, pattern) for pattern in self.hidden)

    def redaction(self) -> Redaction:
        """Return the redaction of the values of all secret variables of all hosts.

        What surrounds a reference such as ``$HOME`` is hidden by itself too: the node puts its own
        text in the middle.
        """
        names = self.secrets
        values = {host.env[name] for host in self.hosts for name in names if name in host.env}
        return redaction(
            [
                *values,
                *(piece for value in values for piece in REFERENCE.sub("\0", value).split("\0")),
            ]
        )

    def select(
        self, expression: str = "", exclude: str = "", *, option: str = ""
    ) -> tuple[Host, ...]:
        """Return the hosts that ``expression`` names, in inventory order, without those that
        ``exclude`` names.

        ``gpu[1-4]``, ``10.11.0.[2-5]``, ``10.11.0.2-5``, ``@group``, ``@all``, ``a,b``; both names
        and addresses. An empty expression selects every host. Raises ConfigError with the unknown
        host or group and the closest known one; ``option`` is the one that has the expression.
        """
        selected = {host.name for host in self.hosts}
        if expression:
            selected = self._names_of(option, expression) if option else self._names(expression)
        chosen = selected - self._names_of("--exclude", exclude) if exclude else selected
        return tuple(host for host in self.hosts if host.name in chosen)

    def _names_of(self, option: str, expression: str) -> set[str]:
        try:
            return self._names(expression)
        except ConfigError as error:
            where = f"{option} {expression}"
            raise ConfigError(error.message, where=where, hint=error.hint) from None

    def _names(self, expression: str) -> set[str]:
        names_of: dict[str, set[str]] = {}
        for host in self.hosts:
            names_of.setdefault(host.address, set()).add(host.name)
        names_of |= {host.name: {host.name} for host in self.hosts}
        names = set()
        for word in expand(
            expression, {"all": tuple(host.name for host in self.hosts)} | dict(self.groups)
        ):
            if word not in names_of:
                raise ConfigError(
                    f"no host {word!r} in {self.source}",
                    where=f"hosts {expression!r}",
                    hint=f"known hosts: {fold(host.name for host in self.hosts)}{nearest(word, names_of)}",
                )
            names |= names_of[word]
        return names

    def of(self, names: Sequence[str]) -> tuple[Host, ...]:
        """Return the hosts with these names, in this order. Raises ConfigError for names that the
        inventory does not have.
        """
        by_name = {host.name: host for host in self.hosts}
        missing = [name for name in names if name not in by_name]
        if missing:
            raise ConfigError(
                f"expected the hosts {fold(missing)}, got an inventory without them",
                where=self.source,
            )
        return tuple(by_name[name] for name in names)
