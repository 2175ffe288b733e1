"""The configurations of a bench as specs, each rendered as a check: the possible ones, and the
others with their reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import ConfigError, Faults
from orchestrator.inventory import Host, fold
from orchestrator.plan.bench import PORTS, plan_run
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.spec import RunSpec, Skipped, check_value, impossible, resolve

__all__ = [
    "Configurations",
    "check_values",
    "configurations",
    "device_of",
    "placed",
    "ranks_by_default",
    "spec_of",
]

_NAMES = {"--timeout": "timeout_s", "--set": "options", "--env": "env"}
"""The names of choices whose option has another one."""


@dataclass(frozen=True, slots=True)
class Configurations:
    """The requested configurations: ``specs`` of those that are possible, each once, and
    ``skipped`` with an error for each.
    """

    specs: tuple[RunSpec, ...]
    skipped: tuple[tuple[Skipped, ConfigError], ...]

    def check(self, *, strict: bool) -> None:
        """Raise the errors of the skipped configurations, each once, if none is possible, or with
        ``strict`` if any is not.
        """
        distinct = list({str(error): error for _, error in self.skipped}.values())
        if distinct and (strict or not self.specs):
            raise distinct[0] if len(distinct) == 1 else Faults(distinct)


def configurations(
    model: str,
    choices: Iterable[Mapping[str, Any]],
    folders: Sequence[FrameworkFolder],
    hosts: Sequence[Host],
    origins_of: Mapping[str, str],
    places: Mapping[tuple[str, Any], str],
) -> Configurations:
    """Return the configurations that ``choices`` make of ``folders``; the first folder is used
    where none is named.

    ``choices`` hold values by name, as `run_file.RunFile` does; ``origins_of`` has the origin of each that is not from the
    run file, ``places`` where in the run file the others are. Without ``nodes`` and ``gpus``, all
    hosts are used, with one rank for each GPU.
    """
    device, choices = device_of(hosts), list(choices)
    widest = hosts[
        : max((choice.get("nodes", len(hosts)) for choice in choices), default=len(hosts))
    ]
    by_name = {folder.framework.name: folder for folder in folders}
    swept = _swept(choices)
    specs: dict[str, RunSpec] = {}
    skipped: dict[str, tuple[Skipped, ConfigError]] = {}
    for choice in choices:
        folder = by_name[choice.get("framework", folders[0].framework.name)]
        whole = {"nodes": len(hosts), **choice}
        origins = {name: origins_of.get(name, "run file") for name in choice}
        origins.setdefault("nodes", "all selected hosts")
        origins.setdefault("framework", "the first that has the model")
        if "gpus" not in choice:
            whole["gpus"], origins["gpus"] = ranks_by_default(folder, widest)
        try:
            spec = spec_of(folder, model, device, whole, origins)
            plan_run(folder, spec, hosts, run_id="plan", repeat=1, port=PORTS.start)
        except ConfigError as fault:
            error = placed(
                fault,
                {name: value for name, value in choice.items() if name not in origins_of},
                places,
            )
            named = {
                name: value
                for name, value in whole.items()
                if name in ("nodes", "gpus") or name in swept
            }
            left_out = impossible(folder.framework.name, model, named, error)
            skipped.setdefault(repr(left_out), (left_out, error))
        else:
            specs.setdefault(repr(spec.as_dict()), spec)
    return Configurations(tuple(specs.values()), tuple(skipped.values()))


def check_values(
    values: Iterable[tuple[str, Any]],
    folders: Sequence[FrameworkFolder],
    device: str,
    places: Mapping[tuple[str, Any], str],
) -> None:
    """Raise ConfigError, or Faults with several, for values that no configuration of any of these
    frameworks can have.

    ``places`` says where in a run file a value is; others come from the command line.
    """
    faults: dict[str, ConfigError] = {}
    for name, value in values:
        errors = [error for folder in folders if (error := _fault(folder, device, name, value))]
        if value is not None and len(errors) == len(folders):
            place = places.get((name, value))
            fault = (
                ConfigError(errors[0].message, where=place, hint=errors[0].hint)
                if place
                else errors[0]
            )
            faults.setdefault(str(fault), fault)
    if faults:
        raise next(iter(faults.values())) if len(faults) == 1 else Faults(list(faults.values()))


def device_of(hosts: Iterable[Host]) -> str:
    """Return the device of these hosts. Raises ConfigError if some have GPUs and some have none."""
    by_device: dict[str, list[str]] = {}
    for host in hosts:
        by_device.setdefault(host.device, []).append(host.name)
    if len(by_device) > 1:
        cpu, cuda = fold(by_device["cpu"]), fold(by_device["cuda"])
        raise ConfigError(
            f"expected hosts of one kind, got {cuda} with GPUs and {cpu} without",
            where="--hosts",
            hint=f"exclude one kind: -x {cpu}",
        )
    return next(iter(by_device), "cpu")


def ranks_by_default(folder: FrameworkFolder, hosts: Sequence[Host]) -> tuple[int, str]:
    """Return the number of ranks per node without a choice, and its origin. Raises ConfigError if
    it is unknown.
    """
    usual = folder.framework.measure.gpus
    if usual is not None:
        return usual, f"{folder.framework.name} default"
    unknown = [host.name for host in hosts if host.capacity is None]
    if unknown:
        raise ConfigError(
            f"the inventory does not give the number of GPUs of {fold(unknown)}",
            where="--gpus",
            hint="give --gpus N, or set gpus: in the inventory",
        )
    return min((host.capacity or 0 for host in hosts), default=1), "inventory"


def spec_of(
    folder: FrameworkFolder,
    model: str,
    device: str,
    whole: Mapping[str, Any],
    origins: Mapping[str, str],
) -> RunSpec:
    """Return the spec with these values by name; those with the origin ``run file`` may be
    overridden by no other. Raises ConfigError."""
    sources: dict[bool, dict[str, dict[str, Any]]] = {
        is_file: {"": {}, "options": {}, "env": {}} for is_file in (True, False)
    }
    for name, value in whole.items():
        kind, dot, rest = name.partition(".")
        if value is not None:
            sources[origins[name] == "run file"][kind if dot else ""][rest or name] = value
    file, command = sources[True], sources[False]
    return resolve(
        folder.framework,
        model,
        device=device,
        choices={**command[""], **{f"{name}_origin": origin for name, origin in origins.items()}},
        run_file={**file[""], "options": file["options"], "env": file["env"]},
        sets=command["options"],
        env=command["env"],
    )


def placed(
    error: ConfigError, choice: Mapping[str, Any], places: Mapping[tuple[str, Any], str]
) -> ConfigError:
    """Return an error that names an option with the place in the run file of the choice that stands
    for it, if there is one.
    """
    option, _, own_name = error.where.partition(" ")
    name = _NAMES.get(option, option.removeprefix("--").replace("-", "_")) + (
        f".{own_name}" if own_name else ""
    )
    place = places.get((name, choice.get(name))) if option.startswith("--") else None
    return (
        ConfigError(error.message, kind=error.kind, where=place, hint=error.hint)
        if place
        else error
    )


def _swept(choices: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the names whose values differ between these configurations, except that of the
    framework.
    """
    names = {name for choice in choices for name in choice} - {"framework"}
    return {name for name in names if len({choice.get(name) for choice in choices}) > 1}


def _fault(folder: FrameworkFolder, device: str, name: str, value: Any) -> ConfigError | None:
    try:
        check_value(folder.framework, device, name, value)
    except ConfigError as error:
        return error
    return None
