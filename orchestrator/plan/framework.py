"""A folder under ``templates/``, understood: what a benchmark program takes, how it starts, what its log means.

`Framework` is plain data read from ``framework.yaml`` by `orchestrator.plan.folders`; nothing here knows a framework by name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.inventory import nearest
from orchestrator.logs import LogGrammar
from orchestrator.plan.measures import MEASURES, TRAINING, Measure

__all__ = ["ConfigFile", "Framework", "Knob", "Option", "payload_digest", "payload_path"]


@dataclass(frozen=True, slots=True)
class Option:
    """A knob of one framework, set with ``--set name=value``. ``type`` is int, float, bool or str."""

    type: str
    default: Any
    help: str = ""
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    device_default: Mapping[str, Any] = field(default_factory=dict)

    def parse(self, name: str, text: str) -> Any:
        """Return the value that ``text`` stands for. Raises ConfigError naming the option and what it takes."""
        words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
        unfit = ConfigError(f"expected {self._expectation()}, got {text!r}", where=f"--set {name}")
        try:
            value = words[text.lower()] if self.type == "bool" else {"int": int, "float": float, "str": str}[self.type](text)
        except (KeyError, ValueError):
            raise unfit from None
        if self.type == "float" and not math.isfinite(value):
            raise unfit
        if self.type == "str" and ("\0" in text or "\r" in text):  # no script, config file or log has room for these
            raise unfit
        if (self.choices and value not in self.choices) or (self.minimum is not None and value < self.minimum):
            raise unfit
        return value

    def _expectation(self) -> str:
        if self.choices:
            return "one of " + ", ".join(map(str, self.choices))
        kind = {
            "int": "a whole number",
            "float": "a number",
            "bool": "true or false",
            "str": "a text without NUL and carriage return",
        }[self.type]
        return kind if self.minimum is None else f"{kind} ≥ {self.minimum:g}"


@dataclass(frozen=True, slots=True)
class Knob:
    """What `orch tune` may turn: some variables of the environment together, or one option of the framework.

    ``values`` are to be tried besides what holds without one (``default``, in words), the most promising first; each has a text
    for every variable of ``env``, or one value of ``option``. ``networks`` are those of NCCL under which it makes sense,
    ``Socket`` or ``IB``, or ``any`` where NCCL speaks at all; empty: always. ``numerics``: it changes what is computed.
    """

    env: tuple[str, ...]
    option: str
    values: tuple[tuple[Any, ...], ...]
    networks: tuple[str, ...] = ()
    numerics: bool = False
    default: str = ""

    @property
    def name(self) -> str:
        """Its variables, or its option."""
        return self.option or "+".join(self.env)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One file rendered for every node. ``target`` chooses how printed values are quoted: sh, json or yaml."""

    template: str
    path: str
    target: str = "sh"
    mode: int = 0o600


@dataclass(frozen=True, slots=True)
class Framework:
    """What one folder declares. ``digest`` is the SHA-256 over the folder's files.

    ``launch`` is ``every_node``, or ``first_node`` where a launcher on the first node starts the processes of all of them;
    ``launch_by`` is the same for single values of options. ``requires`` maps host variables, folders of programs that are
    not ours, to a path that each must hold. ``ports`` says how many ports, from master_port on, must be free on the
    ``first_node`` and on ``every_node``; the word ``gpus`` stands for one per device. ``published`` names the rule by which
    the published numbers of this system were computed. ``probe`` is Python that prints versions as a JSON object;
    ``distributions`` are names of which one, as installed, tells without starting it whether the framework is there.
    ``dtype_reasons`` says for a device why its table of types is short,
    ``caveats`` what qualifies every number that the program prints on it. ``measures`` is a name of `measures.MEASURES`.
    ``tunes`` is what `orch tune` may turn, what is likely to matter most first. ``payload`` names the files, and folders such
    as ``models/``, that are sent to nodes as one set.
    """

    name: str
    title: str
    folder: str
    digest: str
    launch: str
    batch_size_is: str
    models: Mapping[str, Mapping[str, Any]]
    dtypes: Mapping[str, Mapping[str, str]]
    loaders: tuple[str, ...]
    defaults: Mapping[str, Any]
    device_defaults: Mapping[str, Mapping[str, Any]]
    options: Mapping[str, Option]
    env: Mapping[str, str]
    files: tuple[ConfigFile, ...]
    payload: tuple[str, ...]
    probe: str
    log: LogGrammar
    distributions: tuple[str, ...] = ()
    simulated: bool = False
    dtype_reasons: Mapping[str, str] = field(default_factory=dict)
    caveats: Mapping[str, str] = field(default_factory=dict)
    launch_by: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    requires: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int | str] = field(default_factory=lambda: {"first_node": 1})
    published: Mapping[str, Any] = field(default_factory=dict)
    measures: str = TRAINING
    tunes: tuple[Knob, ...] = ()

    @property
    def measure(self) -> Measure:
        """What its runs are, and what follows from that."""
        return MEASURES[self.measures]

    def launch_style(self, options: Mapping[str, Any]) -> str:
        """Return how a run with these options starts: ``every_node`` or ``first_node``."""
        return next((table[options[name]] for name, table in self.launch_by.items() if options[name] in table), self.launch)

    def ports_of(self, node_rank: int, nproc: int, first: int) -> tuple[int, ...]:
        """Return the ports, from ``first`` on, that a node must have free."""
        counts = [self.ports.get("every_node", 0), self.ports.get("first_node", 0) if node_rank == 0 else 0]
        number = max(nproc if count == "gpus" else int(count) for count in counts)
        return tuple(range(first, first + number))

    def default(self, key: str, device: str) -> tuple[Any, str]:
        """Return the default of a choice on ``device``, and its origin in words."""
        special = self.device_defaults.get(device, {})
        if key in special:
            return special[key], f"{self.name} default on {device}"
        return self.defaults[key], f"{self.name} default"

    def dtype_flag(self, dtype: str, device: str) -> str:
        """Return the program's own word for ``dtype``. Raises ConfigError listing the types this device offers."""
        table = self.dtypes.get(device, {})
        if dtype not in table:
            raise ConfigError(
                f"expected one of {', '.join(table) or 'none'} for {self.name} on {device}, got {dtype!r}",
                where="--dtype",
                hint=self.dtype_reasons.get(device) or nearest(dtype, table).lstrip("; "),
            )
        return table[dtype]


def payload_digest(files: Mapping[str, str]) -> str:
    """Return the digest that names a set of payload files, from the SHA-256 of each by its name in the set.

    It is the SHA-256 of what ``sha256sum`` prints of the files in order of their names, so that a node's shell can check a set.

    >>> payload_digest({"train.py": "ab" * 32, "models/vgg.py": "cd" * 32})[:12]
    'cfe0a19ec0ae'
    """
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def payload_path(name: str, digest: str) -> str:
    """Return where a file of a set lies in a node's work directory: all of them in one folder, so that they import each other.

    The set's ``digest`` names the folder: what a node has is never sent again and never stale.
    """
    return f"payload/{digest}/{name}"
