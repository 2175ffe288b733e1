"""The schema of ``framework.yaml``: what a framework folder may say, checked, with every fault of a file reported together."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from orchestrator.errors import ConfigError, Faults
from orchestrator.framework import ConfigFile, Framework, LogGrammar, Option

__all__ = ["parse"]

Device = Literal["cuda", "cpu"]
Scalar = bool | int | float | str
_GROUPS = {"step", "timestamp", "step_time_s", "samples_per_s", "steps_per_s", "elapsed_s", "samples"}


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class _Option(_Strict):
    type: Literal["int", "float", "bool", "str"]
    default: Scalar
    help: str
    choices: list[Scalar] = []
    minimum: float | int | None = None
    device_default: dict[Device, Scalar] = {}


class _File(_Strict):
    template: str
    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")]
    target: Literal["sh", "json", "yaml"] = "sh"
    mode: Annotated[str, Field(pattern=r"^0[0-7]{3}$")] = "0600"


class _Log(_Strict):
    files: list[str]
    patterns: list[str]
    nodes: Literal["first", "every"] = "first"
    scope: Literal["global", "process"] = "global"
    cumulative: bool = False
    rank: str = ""
    rank_files: list[str] = []
    closing: str = ""

    @field_validator("patterns", "rank", "closing")
    @classmethod
    def _compiles(cls, value: Any) -> Any:
        for pattern in value if isinstance(value, list) else [value]:
            try:
                groups = set(re.compile(pattern).groupindex)
            except re.error as error:
                raise ValueError(f"a regular expression: {error}") from None
            if isinstance(value, list) and ("step" not in groups or not groups & _GROUPS - {"step"}):
                raise ValueError(f"a pattern with the group step and one of {', '.join(sorted(_GROUPS - {'step'}))}")
        return value


class _Framework(_Strict):
    title: str
    launch: Literal["every_node", "first_node"] = "every_node"
    batch_size_is: Literal["device", "node", "global"] = "device"
    simulated: bool = False
    models: dict[str, dict[str, Any]]
    dtypes: dict[Device, dict[str, str]]
    loaders: list[str]
    defaults: dict[str, Scalar]
    device_defaults: dict[Device, dict[str, Scalar]] = {}
    options: dict[str, _Option] = {}
    env: dict[str, str] = {}
    files: list[_File]
    payload: list[str] = []
    probe: str
    log: _Log


def parse(value: Any, line_of: Callable[[tuple[str | int, ...]], int], name: str, folder: str, digest: str) -> Framework:
    """Return the framework that a document declares. Raises Faults of ConfigError with file, line and key."""
    try:
        model = _Framework.model_validate(value)
    except ValidationError as error:
        faults = []
        for fault in error.errors():
            path = tuple(part for part in fault["loc"] if part != "[key]")
            key = ".".join(map(str, path)) or "the file"
            got = "nothing" if fault["type"] == "missing" else repr(fault["input"])[:60]
            message = f"{key}: {fault['msg'].lower()}, got {got}"
            faults.append(ConfigError(message, where=f"{folder}/framework.yaml:{line_of(path)}"))
        raise Faults(faults) from None
    return Framework(
        name=name,
        title=model.title,
        folder=folder,
        digest=digest,
        launch=model.launch,
        batch_size_is=model.batch_size_is,
        models=model.models,
        dtypes={str(device): flags for device, flags in model.dtypes.items()},
        loaders=tuple(model.loaders),
        defaults=model.defaults,
        device_defaults={str(device): values for device, values in model.device_defaults.items()},
        options={key: _option(option) for key, option in model.options.items()},
        env=model.env,
        files=tuple(ConfigFile(file.template, file.path, file.target, int(file.mode, 8)) for file in model.files),
        payload=tuple(model.payload),
        probe=model.probe,
        log=LogGrammar(
            files=tuple(model.log.files),
            patterns=tuple(model.log.patterns),
            nodes=model.log.nodes,
            scope=model.log.scope,
            cumulative=model.log.cumulative,
            rank=model.log.rank,
            rank_files=tuple(model.log.rank_files),
            closing=model.log.closing,
        ),
        simulated=model.simulated,
    )


def _option(option: _Option) -> Option:
    return Option(
        type=option.type,
        default=option.default,
        help=option.help,
        choices=tuple(option.choices),
        minimum=option.minimum,
        device_default={str(device): value for device, value in option.device_default.items()},
    )
