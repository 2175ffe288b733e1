"""The schema of ``framework.yaml``: validates a framework folder and reports all faults of the file together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from orchestrator.errors import ConfigError, Faults
from orchestrator.inventory.values import PLACED, RESERVED
from orchestrator.logs import LogGrammar
from orchestrator.logs.steps import SPEEDS
from orchestrator.plan.framework import ConfigFile, Framework, Knob, Option
from orchestrator.plan.measures import MEASURES, TRAINING

__all__ = ["parse"]

Device = Literal["cuda", "cpu"]
Scalar = bool | int | float | str
Launch = Literal["every_node", "first_node"]
Scope = Literal["global", "node", "process"]
Unit = Literal["ns", "us", "ms", "s", "min", "h"]
Count = Annotated[int, Field(ge=0, le=64)] | Literal["gpus"]
# No part begins with a dot, so no path can leave the folder.
_PAYLOAD_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*/?\Z")


def _payload_name(name: str) -> str:
    if not _PAYLOAD_NAME.match(name):
        raise ValueError("expected a file such as train.py, or a folder such as models/, relative to the framework's folder")
    if name == "rank_wrapper.py":
        raise ValueError("expected another name, orch's rank wrapper has this one")
    return name


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
    patterns: list[str] = []
    nodes: Literal["first", "every"] = "first"
    scope: Scope = "global"
    scope_by: dict[str, dict[str, Scope]] = {}
    cumulative: bool = False
    counts_from: Literal[0, 1] = 1
    after_warmup: bool = False
    rank: str = ""
    rank_files: list[str] = []
    closing: str = ""
    nccl_files: list[str] = []
    readings: str = ""
    units: dict[Literal["timestamp", "elapsed_s", "step_time_s", "samples_per_s", "steps_per_s"], Unit] = {}
    summed_over: dict[Literal["samples", "samples_per_s", "steps_per_s"], Literal["nodes", "ranks"]] = {}

    @field_validator("patterns", "rank", "closing", "readings")
    @classmethod
    def _compiles(cls, value: Any) -> Any:
        groups = []
        for pattern in value if isinstance(value, list) else [value]:
            try:
                groups.append(set(re.compile(pattern).groupindex))
            except re.error as error:
                raise ValueError(f"a regular expression: {error}") from None
        # A step and its value may be on two lines, each with its own pattern.
        names = set[str]().union(*groups)
        if isinstance(value, list) and not (all(groups) and "step" in names and names & set(SPEEDS)):
            raise ValueError(f"patterns with the group step and one of {', '.join(sorted(SPEEDS))}")
        return value


class _Published(_Strict):
    rule: str
    runs: Annotated[int, Field(ge=1)]
    statistic: Literal["median", "mean"]


class _Knob(_Strict):
    env: list[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]] = []
    option: str = ""
    values: Annotated[list[Scalar | list[Scalar]], Field(min_length=1)]
    networks: list[Literal["Socket", "IB", "any"]] = []
    numerics: bool = False
    default: str = ""


class _Framework(_Strict):
    title: str
    measures: Literal["training", "collectives", "pairs", "readings"] = "training"
    launch: Launch = "every_node"
    launch_by: dict[str, dict[str, Launch]] = {}
    batch_size_is: Literal["device", "node", "global"] = "device"
    simulated: bool = False
    models: dict[str, dict[str, Any]]
    dtypes: dict[Device, dict[str, str]]
    dtype_reasons: dict[Device, str] = {}
    caveats: dict[Device, str] = {}
    loaders: list[str] = []
    defaults: dict[str, Scalar]
    device_defaults: dict[Device, dict[str, Scalar]] = {}
    options: dict[str, _Option] = {}
    env: dict[str, str] = {}
    setup: list[str] = []
    files: list[_File]
    payload: list[Annotated[str, AfterValidator(_payload_name)]] = []
    requires: dict[str, str] = {}
    ports: dict[Literal["first_node", "every_node"], Count] = {"first_node": 1}
    probe: str
    distributions: list[str] = []
    log: _Log
    published: _Published | None = None
    tunes: list[_Knob] = []

    @model_validator(mode="after")
    def _whole(self) -> _Framework:
        training = {"loaders": bool(self.loaders), "log.patterns": bool(self.log.patterns)}
        needed = training if self.measures == TRAINING else {"log.readings": bool(self.log.readings)}
        missing = [key for key, is_set in needed.items() if not is_set]
        if missing:
            raise ValueError(f"{' and '.join(missing)} in a folder that measures {self.measures}")
        return self


def parse(value: Any, line_of: Callable[[tuple[str | int, ...]], int], name: str, folder: str, digest: str) -> Framework:
    """Return the framework that a document declares. Raises Faults of ConfigError with file, line and key."""
    model = _validated(value, line_of, folder)
    fixed = MEASURES[model.measures].fixed
    options = {key: _option(option) for key, option in model.options.items()}
    knobs = [_knob(knob) for knob in model.tunes]
    wrong = [
        ConfigError(text, where=f"{folder}/framework.yaml:{line_of(('tunes', at))}")
        for at, text in _invalid_knobs(knobs, options)
    ]
    wrong += [
        ConfigError(
            f"env: expected a variable that does not begin with {RESERVED}, got {variable}",
            where=f"{folder}/framework.yaml:{line_of(('env', variable))}",
            hint="orch finds the processes of a run by such variables and sets them itself; use another name",
        )
        for variable in model.env
        if variable.startswith(RESERVED)
    ]
    if wrong:
        raise Faults(wrong)
    return Framework(
        name=name,
        title=model.title,
        folder=folder,
        digest=digest,
        launch=model.launch,
        batch_size_is=model.batch_size_is,
        models=model.models,
        dtypes={str(device): flags for device, flags in model.dtypes.items()},
        loaders=(fixed["loader"],) if "loader" in fixed else tuple(model.loaders),
        defaults={**model.defaults, **fixed},
        device_defaults={str(device): values for device, values in model.device_defaults.items()},
        options=options,
        env=model.env,
        files=tuple(ConfigFile(file.template, file.path, file.target, int(file.mode, 8)) for file in model.files),
        payload=tuple(model.payload),
        probe=model.probe,
        log=_log_grammar(model.log),
        distributions=tuple(model.distributions),
        simulated=model.simulated,
        dtype_reasons={str(device): reason for device, reason in model.dtype_reasons.items()},
        caveats={str(device): caveat for device, caveat in model.caveats.items()},
        launch_by={option: {str(value): style for value, style in table.items()} for option, table in model.launch_by.items()},
        requires=model.requires,
        ports={str(where): count for where, count in model.ports.items()},
        published=model.published.model_dump() if model.published else {},
        measures=model.measures,
        tunes=tuple(knobs),
        setup=tuple(model.setup),
    )


def _validated(value: Any, line_of: Callable[[tuple[str | int, ...]], int], folder: str) -> _Framework:
    """Return the validated document. Raises Faults with a ConfigError for every fault."""
    try:
        return _Framework.model_validate(value)
    except ValidationError as error:
        faults = []
        for fault in error.errors():
            path = tuple(part for part in fault["loc"] if part != "[key]")
            key = ".".join(map(str, path)) or "the file"
            got = "nothing" if fault["type"] == "missing" else repr(fault["input"])[:60]
            message = f"{key}: {fault['msg'].lower()}, got {got}"
            faults.append(ConfigError(message, where=f"{folder}/framework.yaml:{line_of(path)}"))
        raise Faults(faults) from None


def _log_grammar(log: _Log) -> LogGrammar:
    return LogGrammar(
        files=tuple(log.files),
        patterns=tuple(log.patterns),
        nodes=log.nodes,
        scope=log.scope,
        scope_by=log.scope_by,
        cumulative=log.cumulative,
        counts_from=log.counts_from,
        after_warmup=log.after_warmup,
        rank=log.rank,
        rank_files=tuple(log.rank_files),
        closing=log.closing,
        nccl_files=tuple(log.nccl_files),
        readings=log.readings,
        units={str(name): unit for name, unit in log.units.items()},
        summed_over={str(name): group for name, group in log.summed_over.items()},
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


def _knob(knob: _Knob) -> Knob:
    """Return the parameter, with values of variables converted to text."""
    rows = [tuple(value) if isinstance(value, list) else (value,) for value in knob.values]
    values = tuple(rows if knob.option else [tuple(map(_as_text, row)) for row in rows])
    return Knob(tuple(knob.env), knob.option, values, tuple(knob.networks), knob.numerics, knob.default)


def _as_text(value: Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _invalid_knobs(knobs: list[Knob], options: dict[str, Option]) -> Iterator[tuple[int, str]]:
    """Yield the index of each invalid parameter, and what is wrong with it."""
    seen: set[str] = set()
    for place, knob in enumerate(knobs):
        names = knob.env or (knob.option,)
        if bool(knob.env) == bool(knob.option):
            yield place, "expected either env: or option:"
        elif twice := seen & set(names) or {name for name in names if names.count(name) > 1}:
            yield place, f"expected each name once, got {', '.join(sorted(twice))} again"
        elif placed := {name for name in names if name in PLACED or (knob.env and name.startswith(RESERVED))}:
            yield place, f"expected variables that a host may set, got {', '.join(sorted(placed))}"
        elif knob.option and knob.option not in options:
            yield place, f"expected an option of this framework, got {knob.option!r}"
        elif short := [value for value in knob.values if len(value) != len(names)]:
            yield place, f"expected values of {' and '.join(names)}, got {short[0]!r}"
        elif knob.option:
            for (value,) in knob.values:
                try:
                    options[knob.option].parse(knob.option, _as_text(value))
                except ConfigError as error:
                    yield place, f"{knob.option}: {error.message}"
        seen |= set(names)
