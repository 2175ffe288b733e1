"""The configurations of a request as specs, each rendered as a check: the possible ones, and the
others with their reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.errors import ConfigError, raise_all
from orchestrator.grouping import group_pairs
from orchestrator.inventory import Host, fold
from orchestrator.options import OPTIONS, long_form
from orchestrator.plan.bench import plan_run
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.matrix import Axis, axis, combine, names_of
from orchestrator.plan.placement import ladder
from orchestrator.plan.request import Request
from orchestrator.plan.spec import RunSpec, Skipped, impossible, read_value, resolve
from orchestrator.plan.trial import find_refusal

_CHOICES = {
    long_form(name): row.run_file.key or name for name, row in OPTIONS.items() if row.run_file
}
"""The names of choices in a run file by their options."""
_SHAPE = {"nodes", "gpus"}


@dataclass(frozen=True, slots=True)
class Configurations:
    """The requested configurations: ``specs`` of those that are possible, each once, and
    ``skipped`` with an error for each.
    """

    specs: tuple[RunSpec, ...]
    skipped: tuple[tuple[Skipped, ConfigError], ...]


def configure(
    request: Request, folders: Sequence[FrameworkFolder], hosts: Sequence[Host]
) -> Configurations:
    """Return the configurations of a request on these hosts, in the requested order.

    The first folder is used where none is named; without ``nodes`` and ``gpus``, all hosts are
    used, with one rank for each GPU. Raises ConfigError, or Faults of several, for a value that
    none can have, if none is possible, and for a strict request if any is not.
    """
    given, lists = _axes(request, folders[0], hosts)
    device = _device_of(hosts)
    choices = _choices(request, folders, given, lists, device)
    commanded = names_of(given) | request.single.keys()
    origins_of = {**request.origins, **dict.fromkeys(commanded, "command line")}
    widest = hosts[: max(choice.get("nodes", len(hosts)) for choice in choices)]
    by_name = {folder.framework.name: folder for folder in folders}
    swept = _swept(choices)
    specs: dict[str, RunSpec] = {}
    skipped: dict[str, tuple[Skipped, ConfigError]] = {}
    for choice in choices:
        folder = by_name[choice.get("framework", folders[0].framework.name)]
        whole = {"nodes": len(hosts), **choice}
        origins = {"nodes": "all selected hosts", "framework": "the first that has the model"}
        origins |= {name: origins_of.get(name, "run file") for name in choice}
        if "gpus" not in choice:
            whole["gpus"], origins["gpus"] = _ranks_by_default(folder, widest)
        try:
            spec = resolve(
                folder.framework, request.model, device=device, choices=whole, origins=origins
            )
            plan_run(folder, spec, hosts)
        except ConfigError as fault:
            of_file = {name: value for name, value in choice.items() if name not in origins_of}
            error = _with_place(fault, of_file, request)
            named = {name: whole[name] for name in whole if name in swept}
            left_out = impossible(folder.framework.name, request.model, named, error)
            skipped.setdefault(repr(left_out), (left_out, error))
        else:
            specs.setdefault(repr(spec.as_dict()), spec)
    if skipped and (request.strict or not specs):
        _raise_each_once(error for _, error in skipped.values())
    return Configurations(tuple(specs.values()), tuple(skipped.values()))


def check_choices(
    request: Request, folders: Sequence[FrameworkFolder], device: str, shape: tuple[int, int]
) -> None:
    """Raise ConfigError, or Faults with several, for choices that are possible on no hosts.

    `find_refusal` explains ``shape``.
    """
    by_name = {folder.framework.name: folder for folder in folders}
    given = [axis("framework", request.frameworks)] if request.frameworks else []
    errors = []
    for choice in _choices(request, folders, given, request.run_file.lists, device):
        folder = by_name[choice.get("framework", folders[0].framework.name)]
        error = find_refusal(folder, request.model, device, choice, shape)
        if error:
            errors.append(_with_place(error, choice, request))
    _raise_each_once(errors)


def _raise_each_once(errors: Iterable[ConfigError]) -> None:
    """Raise errors that differ, if there are some: one by itself, several as Faults."""
    raise_all(list({str(error): error for error in errors}.values()))


def _choices(
    request: Request,
    folders: Sequence[FrameworkFolder],
    given: Sequence[Axis],
    lists: Sequence[Axis],
    device: str,
) -> list[dict[str, Any]]:
    """Return the choices of each configuration. Raises ConfigError, or Faults, if there is none,
    and for values that none can have."""
    file = request.run_file
    entries = [choices for alternatives in (*given, *lists) for choices in alternatives]
    errors = []
    for choices in (*entries, *file.include, file.single, request.single):
        for name, value in choices.items():
            error = _find_refusal(folders, device, name, value)
            if error:
                errors.append(_with_place(error, {name: value}, request))
    _raise_each_once(errors)
    combinations = combine(lists, given, file.include, file.exclude)
    if not combinations:
        raise ConfigError(
            "expected at least one configuration after exclude: and the options of the command line, got none",
            where="--file",
        )
    return [{**file.single, **combination, **request.single} for combination in combinations]


def _find_refusal(
    folders: Sequence[FrameworkFolder], device: str, name: str, value: Any
) -> ConfigError | None:
    """Return why no configuration of these frameworks can have a value; None if some can."""
    first = None
    for folder in folders if value is not None else ():
        try:
            read_value(folder.framework, device, name, value)
        except ConfigError as error:
            first = first or error
        else:
            return None
    return first


def _axes(
    request: Request, folder: FrameworkFolder, hosts: Sequence[Host]
) -> tuple[list[Axis], list[Axis]]:
    """Return the axes of the command line and of the run file; a ladder is an axis of either."""
    file = request.run_file
    given = [axis("framework", request.frameworks)] if request.frameworks else []
    given += [axis(name, values) for name, values in request.axes.items()]
    lists = list(file.lists)
    shapes = request.shapes
    if not shapes and (request.ladder or file.ladder):
        most = max(request.nodes or file.values_of("nodes"), default=len(hosts))
        ranks = request.gpus or file.values_of("gpus")
        shapes = ladder(most, max(ranks) if ranks else _ranks_by_default(folder, hosts[:most])[0])
    of_shapes = tuple({"nodes": nodes, "gpus": gpus} for nodes, gpus in dict.fromkeys(shapes))
    if request.shapes or request.ladder:
        given.append(of_shapes)
    elif file.ladder:
        lists = [alternatives for alternatives in lists if not names_of([alternatives]) & _SHAPE]
        lists.append(of_shapes)
    else:
        sizes = {"nodes": request.nodes, "gpus": request.gpus}
        given += [axis(name, values) for name, values in sizes.items() if values]
    return given, lists


def _device_of(hosts: Iterable[Host]) -> str:
    """Return the device of these hosts. Raises ConfigError if some have GPUs and some have none."""
    by_device = group_pairs((host.device, host.name) for host in hosts)
    if len(by_device) > 1:
        cpu, cuda = fold(by_device["cpu"]), fold(by_device["cuda"])
        raise ConfigError(
            f"expected hosts of one kind, got {cuda} with GPUs and {cpu} without",
            where="--hosts",
            hint=f"exclude one kind: -x {cpu}",
        )
    return next(iter(by_device), "cpu")


def _ranks_by_default(folder: FrameworkFolder, hosts: Sequence[Host]) -> tuple[int, str]:
    """Return the number of ranks per node without a choice, and its origin. Raises ConfigError if
    it is unknown.
    """
    usual = folder.framework.measure.gpus
    if usual is not None:
        return usual, f"{folder.framework.name} default"
    unknown = [host.name for host in hosts if host.capacity is None]
    if unknown:
        message = f"the inventory does not give the number of GPUs of {fold(unknown)}"
        hint = "give --gpus N, or set gpus: in the inventory, to 0 for nodes without GPUs"
        if all(host.transport == "srun" for host in hosts):
            message = f"Slurm decides how many GPUs of the job each of {fold(unknown)} has"
            hint = "ask for the GPUs of a node, gpus-per-node=N, or give --gpus N"
        raise ConfigError(message, where="--gpus", hint=hint)
    return min((host.capacity or 0 for host in hosts), default=1), "inventory"


def _with_place(error: ConfigError, choice: Mapping[str, Any], request: Request) -> ConfigError:
    """Return an error that names an option with the place in the run file of the choice that stands
    for it, if there is one, or with the option that was given for it.
    """
    option, _, own_name = error.where.partition(" ")
    name = _CHOICES.get(option, "")
    if own_name:
        name = f"{name}.{own_name}"
    place, hint = request.run_file.places.get((name, choice.get(name))), error.hint
    if not place and name in _SHAPE and request.shapes:
        place, hint = "--shape", hint.replace(option, "--shape")
    if not place:
        return error
    return ConfigError(error.message, kind=error.kind, where=place, hint=hint)


def _swept(choices: Sequence[Mapping[str, Any]]) -> set[str]:
    """Return the names that tell configurations apart: the shape, and all names whose values
    differ.

    The framework is left out.
    """
    names = {name for choice in choices for name in choice} - {"framework"}
    differing = {name for name in names if len({choice.get(name) for choice in choices}) > 1}
    return _SHAPE | differing
