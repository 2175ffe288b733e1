"""A framework as declared in a folder under ``templates/``: the options of a program, how it
starts, what its log means.

`Framework` is plain data that `orchestrator.plan.folders` reads from ``framework.yaml``; no code
here names a framework.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.errors import ConfigError, nearest
from orchestrator.logs import LogGrammar
from orchestrator.plan.measures import MEASURES, TRAINING, Measure
from orchestrator.plan.transformer import Transformer, transformer_of

_OTHER_DTYPES = {
    "float32": "fp32", "float": "fp32", "single": "fp32", "float16": "fp16", "half": "fp16", "bfloat16": "bf16",
    "tensorfloat32": "tf32", "float8": "fp8", "float64": "fp64", "double": "fp64",
}  # fmt: skip
"""Names that other programs have for orch's types."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option of one framework, set with ``--set name=value``. ``type`` is int, float, bool or
    str.
    """

    type: str
    default: Any
    help: str = ""
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    device_default: Mapping[str, Any] = field(default_factory=dict)

    def parse(self, name: str, text: str) -> Any:
        """Return the value written as ``text``. Raises ConfigError naming the option and the values
        it takes.
        """
        words = {
            "true": True,
            "yes": True,
            "on": True,
            "1": True,
            "false": False,
            "no": False,
            "off": False,
            "0": False,
        }
        invalid = ConfigError(
            f"expected {self._expectation()}, got {text!r}", where=f"--set {name}"
        )
        try:
            value = (
                words[text.lower()]
                if self.type == "bool"
                else {"int": int, "float": float, "str": str}[self.type](text)
            )
        except (KeyError, ValueError):
            raise invalid from None
        if self.type == "float" and not math.isfinite(value):
            raise invalid
        if self.type == "int" and value.bit_length() > 63:  # programs cannot hold it
            raise ConfigError(
                f"expected a whole number of at most 64 bits, got {text!r}", where=f"--set {name}"
            )
        if self.type == "str" and (
            "\0" in text or "\r" in text
        ):  # these cannot be written into scripts, config files and logs
            raise invalid
        is_low = self.minimum is not None and value < self.minimum
        is_high = self.maximum is not None and value > self.maximum
        if is_low or is_high or (self.choices and value not in self.choices):
            raise invalid
        return value

    def _expectation(self) -> str:
        if self.choices:
            return "one of " + ", ".join(map(str, self.choices))
        kind = {
            "int": "a whole number",
            "float": "a number",
            "bool": "true or false",
            "str": "text without NUL and carriage return",
        }[self.type]
        limits = [
            f"{sign} {limit:.10g}"
            for sign, limit in (("≥", self.minimum), ("≤", self.maximum))
            if limit is not None
        ]
        return f"{kind} {' and '.join(limits)}" if limits else kind


@dataclass(frozen=True, slots=True)
class Knob:
    """A parameter that `orch tune` may change: a group of environment variables, one option, or the
    batch size.

    ``values`` are tried in addition to the default (``default`` describes it in words), the most
    promising first; each has one text per variable of ``env``, or one value of ``option``. If the
    knob ``multiplies`` the batch size, they are factors, and become batch sizes once the spec is
    known. ``networks`` limits it to NCCL's transports ``Socket`` and ``IB``, or to ``any`` if NCCL
    communicates at all; empty: always. ``when`` limits it to tunes whose first run reports one of
    these values under each name. ``numerics``: the parameter changes the computed numbers.
    """

    env: tuple[str, ...]
    option: str
    values: tuple[tuple[Any, ...], ...]
    networks: tuple[str, ...] = ()
    numerics: bool = False
    default: str = ""
    multiplies: str = ""
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Its variables, its option, or ``batch_size``."""
        return self.env or (self.option or self.multiplies,)

    @property
    def name(self) -> str:
        """Its names in one word."""
        return "+".join(self.names)


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """One file rendered for every node. ``target`` (sh, json or yaml) sets how printed values are
    quoted.
    """

    template: str
    path: str
    target: str = "sh"
    mode: int = 0o600


@dataclass(frozen=True, slots=True)
class StepOptions:
    """The names of the options that say what a step of a language model computes, as the keys of
    ``per_step:`` in a folder.
    """

    tokens: str
    micro_batches: str = ""
    shared_by: tuple[str, ...] = ()
    recomputation: str = ""
    batch_size_up_to: str = ""

    @property
    def by_field(self) -> dict[str, str]:
        """The option of each field of `Step` that is one option's value; empty without one."""
        return {name: value for name, value in asdict(self).items() if name != "shared_by"}

    @property
    def options(self) -> set[str]:
        """The names of all these options."""
        return {*self.by_field.values(), *self.shared_by} - {""}


@dataclass(frozen=True, slots=True)
class Framework:
    """The declaration of one framework folder. ``digest`` is the SHA-256 over the folder's files.

    ``launch`` is ``every_node``, or ``first_node`` if a launcher on the first node starts the
    processes of all nodes; ``launch_by`` overrides it for single values of options. ``requires``
    maps host variables, which are folders of third-party programs, to a path that each folder must
    contain. ``ports`` is the number of ports, from master_port on, that must be free on the
    ``first_node`` and on ``every_node``; the word ``gpus`` means one per device. ``published``
    names the rule by which the published numbers of this system were computed. ``probe`` is Python
    that prints versions as a JSON object. ``distributions`` are package names; if one of them is
    installed, the framework is present, without starting it. ``dtype_reasons`` explains for each
    device why its table of types is short, ``caveats`` what qualifies every number that the program
    prints on it. ``measures`` is a name of `measures.MEASURES`. ``tunes`` lists the parameters of
    `orch tune`, the most influential first. ``payload`` names the files, and folders such as
    ``models/``, that are sent to nodes as one set. ``setup`` are lines of bash that run on every
    node before anything else of a run, in the same shell. ``step`` names the options that say what
    a step of a language model computes.
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
    setup: tuple[str, ...] = ()
    step: StepOptions | None = None

    @property
    def measure(self) -> Measure:
        """The kind of measurement that its runs are."""
        return MEASURES[self.measures]

    @property
    def has_speedup(self) -> bool:
        """Return whether its runs are compared with runs on a single device."""
        return self.measure.has_samples or any(metric.speedup for metric in self.log.metrics)

    def transformer(self, model: str) -> Transformer | None:
        """Return the sizes of a language model; None for any other model."""
        sizes = self.models[model].get("transformer")
        return transformer_of(sizes) if sizes else None

    def launch_style(self, options: Mapping[str, Any]) -> str:
        """Return how a run with these options starts: ``every_node`` or ``first_node``."""
        return next(
            (
                table[options[name]]
                for name, table in self.launch_by.items()
                if options[name] in table
            ),
            self.launch,
        )

    def ports_of(self, node_rank: int, nproc: int, first: int) -> tuple[int, ...]:
        """Return the ports, counted from ``first``, that must be free on a node."""
        counts = [
            self.ports.get("every_node", 0),
            self.ports.get("first_node", 0) if node_rank == 0 else 0,
        ]
        number = max(nproc if count == "gpus" else int(count) for count in counts)
        return tuple(range(first, first + number))

    def default(self, key: str, device: str, model: str = "") -> tuple[Any, str]:
        """Return the default value of a field of `RunSpec`, or of ``options.<name>``, on ``device``
        for ``model``, and its origin in words. A default of a device, which is for rehearsals,
        comes before one of a model."""
        of_device, default = self.device_defaults.get(device, {}), self.defaults
        of_model = self.models.get(model, {}).get("defaults", {})
        _, dot, name = key.rpartition(".")
        if dot:
            option = self.options[name]
            default, of_model = {name: option.default}, of_model.get("options", {})
            own = option.device_default
            of_device = {name: own[device]} if device in own else {}
        if name in of_device:
            return of_device[name], f"{self.name} default on {device}"
        if name in of_model:
            return of_model[name], f"{self.name} default for {model}"
        return default[name], f"{self.name} default"

    def dtype_flag(self, dtype: str, device: str) -> str:
        """Return the program's own name for ``dtype``. Raises ConfigError listing the types
        available on this device.
        """
        if device not in self.dtypes:
            message = f"expected hosts for {' or '.join(self.dtypes)}, {self.name} does not run on {device}"
            raise ConfigError(message, where="--hosts", hint=self.dtype_reasons.get(device, ""))
        table = self.dtypes[device]
        if dtype not in table:
            raise ConfigError(
                f"expected one of {', '.join(table)} for {self.name} on {device}, got {dtype!r}",
                where="--dtype",
                hint=f"{self.dtype_reasons.get(device, '')}{nearest_dtype(dtype, table)}".removeprefix(
                    "; "
                ),
            )
        return table[dtype]


def nearest_dtype(dtype: str, choices: Iterable[str]) -> str:
    """Return `nearest` of a type, which may have the name that another program gives it.

    >>> nearest_dtype("HALF", ["fp32", "fp16"]), nearest_dtype("half", ["fp32", "bf16"])
    ("; did you mean 'fp16'?", '')
    """
    known = _OTHER_DTYPES.get(dtype.lower(), dtype)
    if known != dtype and known in choices:
        return f"; did you mean {known!r}?"
    return nearest(dtype, choices)


def payload_digest(files: Mapping[str, str]) -> str:
    """Return the digest that names a set of payload files. ``files`` maps names in the set to
    SHA-256 digests.

    It is the SHA-256 of the output of ``sha256sum`` for the files in order of name, so a node's
    shell can check a set.

    >>> payload_digest({"train.py": "ab" * 32, "models/vgg.py": "cd" * 32})[:12]
    'cfe0a19ec0ae'
    """
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def payload_path(name: str, digest: str) -> str:
    """Return the path of a payload file in a node's work directory. A set has one folder, so its
    files can import each other.

    The set's ``digest`` names the folder, so a set on a node is never stale and never sent again.
    """
    return f"payload/{digest}/{name}"


def run_path(host: str, run_id: str) -> str:
    """Return the path of a run's directory on a node, in its work directory.

    Nodes may share a work directory, as in a home on NFS. Everything except the payload is
    therefore in a folder of the node's own, named as the inventory names the node: that name
    differs between the nodes of a run and survives a reboot.
    """
    return f"nodes/{host}/runs/{run_id}"
