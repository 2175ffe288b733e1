"""The settings of a host as pydantic models: keys, types, limits, and a message for each wrong
value.

`check_values` validates one mapping and collects its faults; it returns the valid keys even if
others are not, so that later checks still see them. Values of ``env`` may be secrets: a message
about one states its type and never the value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from orchestrator.errors import ConfigError, nearest
from orchestrator.inventory.container_values import ContainerValues
from orchestrator.inventory.devices import are_devices
from orchestrator.inventory.fields import (
    WHOLE,
    Limit,
    PathText,
    Strict,
    Text,
    Truth,
    Word,
    is_text,
    is_whole,
    matches,
    takes,
    takes_variable,
    whole,
)
from orchestrator.inventory.hosts import TRANSPORTS
from orchestrator.inventory.versions import is_requirement

KeyPath = tuple[str | int, ...]
Where = Callable[[KeyPath], str]

INTERFACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:@-]{0,14}")
_USER = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9_.@\\+-]*\$?")
_STATES = ("ACTIVE", "DOWN", "INIT", "ARMED")
_JUMP = re.compile(
    r"(?:([^@]+)@)?(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_][A-Za-z0-9._+-]*)(?::([0-9]{1,5}))?"
)


def _is_jump(value: Any) -> bool:
    hops = [_JUMP.fullmatch(hop) for hop in value.split(",")] if isinstance(value, str) else [None]
    return all(
        hop and _USER.fullmatch(hop[1] or "me") and 0 < int(hop[3] or 22) < 65536 for hop in hops
    )


def _is_lines(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(is_text, value))
    return is_text(value)


def _is_value(value: Any) -> bool:
    """Return True if templates can use a value: it is not None, and no text in it contains NUL."""
    if isinstance(value, list | dict):
        return all(map(_is_value, [*value, *(value.values() if isinstance(value, dict) else ())]))
    return value is not None and (not isinstance(value, str) or "\0" not in value)


_EnvName = Annotated[str, takes_variable("the inventory")]
_Transport = Annotated[
    str, takes(f"one of {', '.join(TRANSPORTS)}", lambda value: value in TRANSPORTS)
]


class _Ssh(Strict):
    user: Annotated[
        str,
        takes("a user name", matches(_USER)),
    ] = Field(default="", description="the user to log in as")
    port: Annotated[int, whole(1, 65535)] = Field(
        default=22, description="the port of the ssh server"
    )
    key: PathText = Field(default="", description="the file of a private key")
    jump: Annotated[
        str, takes("a jump host", _is_jump, "for example gate, me@gate:2222 or gate1,gate2")
    ] = Field(default="", description="jump hosts, separated by commas")
    config: PathText = Field(default="", description="another ssh configuration file")
    known_hosts: PathText = Field(default="", description="the file of known host keys")
    host_keys: Annotated[
        str,
        takes(
            "strict or accept-new",
            lambda value: value in ("strict", "accept-new"),
            "checking cannot be turned off",
        ),
    ] = Field(
        default="strict",
        description="strict, or accept-new to accept a key that is seen for the first time",
    )
    connect_timeout_s: Annotated[
        float | int,
        takes(
            "seconds above 0, at most 3600",
            lambda value: type(value) in (int, float) and 0 < value <= 3600,
        ),
    ] = Field(default=10, description="seconds to wait for a connection")


class _Vars(Strict):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[Word, Annotated[Any, takes("a value without NUL", _is_value)]] = Field(
        init=False
    )

    interface: Annotated[
        str,
        takes(
            "the name of a network interface",
            matches(INTERFACE),
        ),
    ] = Field(default="", description="the network device of training traffic")
    python: PathText = Field(default="", description="the interpreter that has the framework")
    data_dir: Annotated[str, takes("an absolute path", is_whole, WHOLE)] = Field(
        default="", description="the data set: absolute, or from ~/ on"
    )
    workdir: PathText = Field(
        default="", description="where payload and runs are stored on the node"
    )
    cuda_visible_devices: Annotated[
        Any,
        takes("devices, each once", are_devices, 'for example "0,1" or "GPU-8c1f…", in quotes'),
    ] = Field(default="", description="the devices that runs may use, in order")
    setup: Annotated[
        Any,
        takes("a line of bash, or a list of lines", _is_lines, "for example [module load cuda]"),
    ] = Field(
        default="",
        description="lines of bash that run first in the shell of a run, such as module load",
    )


_Least = Annotated[
    float | int,
    takes("a number above 0", lambda value: type(value) in (int, float) and 0 < value < 1e9),
]
_Count = Annotated[int, whole(0, 1 << 40)]
_Requirement = Annotated[
    str,
    takes(
        "a pattern or conditions on a version, as text",
        lambda value: isinstance(value, str) and is_requirement(value),
        'for example "580*", ">=2.20" or ">=12.4, <13", in quotes',
    ),
]


class _Ports(Strict):
    ports: Annotated[int, whole(1, 1024)] = 1
    rate_gbit: _Least = 1
    state: Annotated[
        str, takes("a port's state", lambda value: value in _STATES, f"one of {', '.join(_STATES)}")
    ] = "ACTIVE"
    link_layer: Annotated[
        str,
        takes(
            "InfiniBand or Ethernet",
            lambda value: value in ("InfiniBand", "Ethernet"),
            "Ethernet is RoCE",
        ),
    ] = ""


class _Pcie(Strict):
    generation: Annotated[int, whole(1, 9)] = 1
    width: Annotated[int, whole(1, 32)] = 1


class _Expect(Strict):
    """What preflight must find on hosts of this class; `orchestrator.checks.expected` compares it."""

    gpu: _Requirement = ""
    gpus: _Count = 0
    memory_gib: _Least = 1
    driver: _Requirement = ""
    nvlink: _Requirement = ""
    ecc: Truth = False
    mig: Truth = False
    persistence: Truth = False
    compute_mode: _Requirement = ""
    power_limit_w: _Least = 1
    pcie: _Pcie = _Pcie()
    cuda: _Requirement = ""
    nccl: _Requirement = ""
    versions: dict[Word, _Requirement] = {}
    infiniband: _Ports = _Ports()
    mtu: _Count = 0
    speed_gbit: _Least = 1
    memlock: Limit = 1
    nofile: Limit = 1
    nproc: Limit = 1
    shm_gib: _Least = 1
    ram_gib: _Least = 1
    cores: _Count = 0
    cpu: _Requirement = ""
    kernel: _Requirement = ""


class GroupValues(Strict):
    """The keys of a group that is a mapping; its ``hosts`` are checked together with all other groups."""

    hosts: Any = ()
    transport: _Transport = Field(default=TRANSPORTS[0], description="how its hosts are reached")
    container: ContainerValues = ContainerValues()
    expect: _Expect = _Expect()


class MachineValues(Strict):
    """The keys of ``defaults:``."""

    gpus: Annotated[int, whole(0, 1024)] = Field(
        default=0,
        description="GPUs that runs may use; 0: measure on the CPU; left out: a bench needs --gpus",
    )
    slots: Annotated[int, whole(1, 1024)] = Field(
        default=1, description="ranks that fit on a machine without GPUs"
    )
    transport: _Transport = Field(default=TRANSPORTS[0], description="how it is reached")
    ssh: _Ssh = Field(default=_Ssh(), description="how to connect to it")
    env: dict[_EnvName, Text] = Field(
        default={}, description="environment variables of every run on it"
    )
    vars: _Vars = Field(
        default=_Vars(),
        description="facts that launch templates read: interface, python, data_dir, and any others",
    )
    container: ContainerValues = Field(
        default=ContainerValues(), description="the container in which a run's launch script starts"
    )
    expect: _Expect = Field(default=_Expect(), description="what preflight must find on it")


class HostValues(MachineValues):
    """The keys of one host."""

    address: Annotated[
        str,
        takes("an address as text", lambda value: isinstance(value, str), "put quotes around it"),
    ] = Field(default="", description="name or address to connect to; by default the host's name")


def check_values(
    model: type[BaseModel], value: Any, where: Where, faults: list[ConfigError]
) -> dict[str, Any]:
    """Return the keys of ``value`` that are set and valid; append a fault for each of the others."""
    try:
        return model.model_validate(value).model_dump(exclude_unset=True)
    except ValidationError as error:
        faults.extend(_fault(detail, model, where) for detail in error.errors(include_url=False))
        invalid = {detail["loc"][0] for detail in error.errors() if detail["loc"]}
        if not invalid:
            return {}
        return check_values(
            model, {key: value[key] for key in value if key not in invalid}, where, faults
        )


def show_value(value: Any, secret: bool = False) -> str:
    """Return a description of an unexpected value for a message: type and value, or only the type
    of a secret.
    """
    words = {type(None): "nothing", dict: "a mapping", list: "a list"}
    if type(value) in words:
        return words[type(value)]
    kind = {bool: "boolean", int: "number", float: "number"}.get(type(value), "text")
    if secret:
        return f"a {kind}"
    text = repr(value) if isinstance(value, str) else str(value).lower()
    return f"the {kind} {text if len(text) <= 60 else text[:60] + '…'}"


def show_key(key: str | int) -> str:
    """Return a key for a message: printable, at most 60 characters, and without what comes after
    '=', which may be a secret.

    >>> show_key("HF_TOKEN=abc"), show_key(""), show_key("a\\nb")
    ('HF_TOKEN=…', "''", 'a\\\\nb')
    """
    name, equals, _ = str(key).partition("=")
    text = (name if name.isprintable() else repr(name)[1:-1]) + (
        f"{equals}…" if equals else ""
    ) or "''"
    return text if len(text) <= 60 else text[:60] + "…"


def unknown_key(key: str, known: Iterable[str], where: str, hint: str = "") -> ConfigError:
    """Return the fault for a key outside ``known``; an empty hint lists the known keys and the
    closest one.
    """
    hint = hint or f"known keys: {', '.join(known)}{nearest(key, known)}"
    return ConfigError(f"expected a known key, got '{show_key(key)}'", where=where, hint=hint)


def _fault(error: ErrorDetails, model: type[BaseModel], where: Where) -> ConfigError:
    path = tuple(part for part in error["loc"] if part != "[key]")
    if error["type"] == "extra_forbidden":
        return _misplaced_key(str(path[-1]), _holder(model, path[:-1]), where(path))
    context = {"expected": "a mapping", "hint": ""} | error.get("ctx", {})
    # A value that stands where a mapping belongs may be a secret as well: env: HF_TOKEN=abc
    secret = path[:1] == ("env",) or context["expected"] == "a mapping"
    has_nul = isinstance(error["input"], str) and "\0" in error["input"]
    got = "text that contains NUL" if secret and has_nul else show_value(error["input"], secret)
    numeral = (
        isinstance(error["input"], str)
        and error["input"].isdecimal()
        and context["expected"].startswith("a whole number")
    )
    hint = "write it without quotes and leading zeros" if numeral else context["hint"]
    return ConfigError(f"expected {context['expected']}, got {got}", where=where(path), hint=hint)


def _holder(model: type[BaseModel], path: KeyPath) -> type[BaseModel]:
    """Return the model of the mapping at a path."""
    for part in path:
        inner = model.model_fields[str(part)].annotation if part in model.model_fields else None
        model = inner if isinstance(inner, type) and issubclass(inner, BaseModel) else model
    return model


def _misplaced_key(key: str, model: type[BaseModel], where: str) -> ConfigError:
    homes = {
        "ssh": key in _Ssh.model_fields,
        "vars": key in _Vars.model_fields,
        "env": key.isupper(),
    }
    home = next((f"it belongs under {home}:" for home, fits in homes.items() if fits), "")
    return unknown_key(
        key, model.model_fields, where, home if issubclass(model, MachineValues) else ""
    )
