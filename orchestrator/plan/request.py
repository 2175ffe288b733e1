"""From the options of a command to a `Bench`: `request_of` parses the options, `planned` plans the runs.

Precedence is that of a spec, framework defaults < run file < command line, and also holds for the number of repeats. Nothing
here reads files, the clock, random numbers or earlier benches: the run file is passed as a document, id and seed of the bench
as values. A bench is planned with every baseline it needs; `without` removes those for which an earlier bench has usable runs.

>>> request = request_of("resnet50", nodes="1,2", dtype="fp32,fp16", sets=["seed=5"], repeats=3)
>>> request.nodes, request.axes, request.sets, request.repeats
((1, 2), {'dtype': ('fp32', 'fp16')}, {'seed': '5'}, 3)
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError
from orchestrator.inventory import Host, fold
from orchestrator.plan.bench import PORTS, Bench, plan_run
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.framework import Framework, Knob
from orchestrator.plan.placement import ladder as ladder_shapes
from orchestrator.plan.run_file import choices_of
from orchestrator.plan.schedule import LEAST, MOST, ORDERS, Schedule
from orchestrator.plan.spec import RunSpec, cells, resolve
from orchestrator.plan.words import assignments, numbers, seconds, share, words
from orchestrator.plan.words import shapes as shapes_of

if TYPE_CHECKING:
    from orchestrator.yamlfile import Document

__all__ = [
    "Request",
    "allows_numerics",
    "baseline_of",
    "borrowable",
    "check_measures",
    "checked_specs",
    "free_knobs",
    "missing_baselines",
    "planned",
    "request_of",
    "tune_request",
    "without",
]

_BASELINE = "baseline"
"""The origin of the shape of a cell that was added as the baseline of a speedup."""


@dataclass(frozen=True, slots=True)
class Request:
    """The request on a command line. Empty axes and ``repeats`` fall back to the run file, then to the framework.

    ``axes`` hold several values of a choice, ``single`` one value or None. ``order``, ``until_ci`` and ``budget`` are unparsed
    text: which values are valid depends on the repeats, which may come from the framework.
    """

    model: str
    nodes: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    shapes: tuple[tuple[int, int], ...] = ()
    ladder: bool = False
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    single: Mapping[str, Any] = field(default_factory=dict)
    sets: Mapping[str, str] = field(default_factory=dict)
    run_file: Mapping[str, Any] = field(default_factory=dict)
    frameworks: tuple[str, ...] = ()
    repeats: int | None = None
    order: str = "balanced"
    until_ci: str = ""
    max_repeats: int | None = None
    budget: str = ""
    baseline: bool = True


def request_of(
    model: str,
    *,
    framework: str = "",
    nodes: str = "",
    gpus: str = "",
    shape: str = "",
    ladder: bool = False,
    dtype: str = "",
    batch_size: str = "",
    loader: str = "",
    single: Mapping[str, Any] | None = None,
    sets: Sequence[str] = (),
    run_file: Document | None = None,
    repeats: int | None = None,
    order: str = "balanced",
    until_ci: str = "",
    max_repeats: int | None = None,
    budget: str = "",
    baseline: bool = True,
) -> Request:
    """Return the request made by the options of ``orch bench``. Lists are comma-separated text, ``single`` is as in `Request`.

    Raises ConfigError naming the option, or file and line of the run file.
    """
    if shape and (nodes or gpus or ladder) or ladder and "," in gpus:
        where = "--shape" if shape else "--ladder"
        raise ConfigError("expected --shape alone, or --ladder, or --nodes and --gpus", where=where)
    if framework and not words(framework):
        raise ConfigError("expected at least one framework, got none", where="--framework")
    axes = {"batch_size": numbers(batch_size, "--batch-size"), "dtype": words(dtype), "loader": words(loader)}
    return Request(
        model=model,
        frameworks=tuple(dict.fromkeys(words(framework))),
        nodes=numbers(nodes, "--nodes"),
        gpus=numbers(gpus, "--gpus"),
        shapes=shapes_of(shape),
        ladder=ladder,
        axes={name: values for name, values in axes.items() if values},
        single=single or {},
        sets=assignments(sets),
        run_file=choices_of(run_file) if run_file else {},
        repeats=repeats,
        order=order,
        until_ci=until_ci,
        max_repeats=max_repeats,
        budget=budget,
        baseline=baseline,
    )


def tune_request(model: str, *, shape: str, sets: Sequence[str], budget: str, single: Mapping[str, Any]) -> Request:
    """Return the request made by the options of ``orch tune``: one cell, run once, without a baseline. Raises ConfigError."""
    shapes = shapes_of(shape)
    if len(shapes) > 1:
        hint = "settings of one shape may not suit another"
        raise ConfigError(f"expected one shape, got {shape}", where="--shape", hint=hint)
    return Request(model, shapes=shapes, single=single, sets=assignments(sets), repeats=1, budget=budget, baseline=False)


def allows_numerics(allow: str) -> bool:
    """Return True if ``--allow`` lets a tune change the computed numbers. Raises ConfigError unless it is empty or numerics."""
    if allow not in ("", "numerics"):
        raise ConfigError(f"expected numerics, got {allow!r}", where="--allow")
    return bool(allow)


def free_knobs(framework: Framework, sets: Mapping[str, str]) -> list[Knob]:
    """Return the framework's parameters that ``--set`` does not fix. Raises ConfigError if the framework has none."""
    if not framework.tunes:
        hint = "list them under tunes: in its framework.yaml"
        raise ConfigError(f"{framework.name} has no parameters to tune", where="--framework", hint=hint)
    return [knob for knob in framework.tunes if knob.option not in sets]


def check_measures(request: Request, frameworks: Iterable[Framework]) -> None:
    """Raise ConfigError if the request stops by the interval of a speed and a framework measures no speed."""
    speedless = [framework for framework in frameworks if not framework.measure.has_speed]
    if request.until_ci and speedless:
        message = f"{speedless[0].name} measures {speedless[0].measure.noun}, which has no speed and so no interval"
        raise ConfigError(message, where="--until-ci", hint="set the number of runs with --repeats")


def planned(request: Request, folders: Sequence[FrameworkFolder], hosts: Sequence[Host], *, bench_id: str, seed: int) -> Bench:
    """Return the requested bench. Missing baselines come before its cells. ``seed`` is that of a random order.

    Raises ConfigError if a run is not possible on these hosts.
    """
    by_name = {folder.framework.name: folder for folder in folders}
    specs = checked_specs(request, folders, hosts)
    schedule = _schedule(request, [folder.framework for folder in folders], specs[0].device, seed)
    baselines: tuple[RunSpec, ...] = ()
    if request.baseline:
        baselines = missing_baselines([spec for spec in specs if by_name[spec.framework].framework.measure.has_speed])
    return Bench(bench_id, (*baselines, *specs), by_name, schedule)


def checked_specs(request: Request, folders: Sequence[FrameworkFolder], hosts: Sequence[Host]) -> tuple[RunSpec, ...]:
    """Return every requested cell once, in the requested order. Each is rendered as a check.

    So ConfigError is raised before any host is contacted if the hosts are too small or a template refuses a cell.
    """
    specs = _specs(request, folders, hosts)
    folder_of = {folder.framework.name: folder for folder in folders}
    for spec in specs:
        plan_run(folder_of[spec.framework], spec, hosts, run_id="plan", repeat=1, port=PORTS.start)
    return specs


def _specs(request: Request, folders: Sequence[FrameworkFolder], hosts: Sequence[Host]) -> tuple[RunSpec, ...]:
    device = _device(hosts)
    first = folders[0].framework
    shapes = _shapes(request, hosts, first.measure.gpus)
    origins = _shape_origins(request, first)
    distinct: dict[str, RunSpec] = {}
    for folder in folders:
        for cell in cells(request.axes, shapes):
            choices = {**request.single, **cell, **origins}
            spec = resolve(
                folder.framework, request.model, device=device, choices=choices, run_file=request.run_file, sets=request.sets
            )
            distinct.setdefault(repr(spec.as_dict()), spec)
    return tuple(distinct.values())


def _shape_origins(request: Request, framework: Framework) -> dict[str, str]:
    """Return the origins of the numbers of nodes and ranks that the user did not give."""
    gpus = "inventory" if framework.measure.gpus is None else f"{framework.name} default"
    if not (request.nodes or request.gpus or request.shapes or request.ladder):
        return {"nodes_origin": "all selected hosts", "gpus_origin": gpus}
    if not (request.gpus or request.shapes or request.ladder):
        return {"gpus_origin": gpus}
    return {}


def _schedule(request: Request, frameworks: Sequence[Framework], device: str, seed: int) -> Schedule:
    """Return the schedule of the bench. With ``--until-ci`` a framework's own repeats would be too few to start with."""
    until_ci, max_repeats = request.until_ci, request.max_repeats
    repeats = request.repeats or request.run_file.get("repeats")
    if repeats is None:
        least = min(LEAST, max_repeats or LEAST)
        repeats = least if until_ci else max(framework.default("repeats", device)[0] for framework in frameworks)
    if request.order not in ORDERS:
        raise ConfigError(f"expected {', '.join(ORDERS[:-1])} or {ORDERS[-1]}, got {request.order!r}", where="--order")
    if max_repeats is not None and not until_ci:
        raise ConfigError("expected together with --until-ci", where="--max-repeats", hint="without it, give --repeats")
    most = max_repeats or max(MOST, repeats)
    if until_ci and not 2 <= repeats <= most:
        raise ConfigError(f"expected 2 to {most} initial repeats, got {repeats}", where="--repeats")
    aim = share(until_ci, "--until-ci") if until_ci else None
    budget_s = seconds(request.budget, "--budget") if request.budget else None
    return Schedule(request.order, seed, repeats, aim, most, budget_s)


def baseline_of(spec: RunSpec) -> RunSpec:
    """Return the one-rank spec that is the baseline for the speedup of ``spec``."""
    origins = {**spec.origins, "nodes": _BASELINE, "gpus": _BASELINE}
    return replace(spec, nodes=1, gpus=1, origins=origins)


def missing_baselines(specs: Sequence[RunSpec]) -> tuple[RunSpec, ...]:
    """Return the baselines of ``specs`` that are not among them, each once."""
    present = {repr(spec.as_dict()) for spec in specs}
    missing = {repr(base.as_dict()): base for base in map(baseline_of, specs)}
    return tuple(base for key, base in missing.items() if key not in present)


def borrowable(bench: Bench) -> tuple[RunSpec, ...]:
    """Return the baselines that were only added to a bench, and may be replaced by runs of an earlier bench.

    Empty if repeats may be added, because a baseline needs the added repeats too.
    """
    if bench.schedule.until_ci is not None:
        return ()
    return tuple(spec for spec in bench.cells if spec.origins.get("nodes") == _BASELINE)


def without(bench: Bench, borrowed: Collection[RunSpec]) -> Bench:
    """Return the bench without the cells whose runs come from an earlier bench."""
    return replace(bench, cells=tuple(spec for spec in bench.cells if spec not in borrowed))


def _device(hosts: Iterable[Host]) -> str:
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


def _shapes(request: Request, hosts: Sequence[Host], usual: int | None) -> tuple[tuple[int, int], ...]:
    """Return (nodes, gpus) of the cells; ``usual`` is the default number of ranks per node, None for one per GPU."""
    if request.shapes:
        return request.shapes
    gpus = request.gpus or (usual or _capacity(hosts[: max(request.nodes, default=len(hosts))]),)
    if request.ladder:
        return ladder_shapes(max(request.nodes, default=len(hosts)), max(gpus))
    return tuple((nodes, count) for nodes in request.nodes or (len(hosts),) for count in gpus)


def _capacity(hosts: Sequence[Host]) -> int:
    unknown = [host.name for host in hosts if host.capacity is None]
    if unknown:
        raise ConfigError(
            f"the inventory does not give the number of GPUs of {fold(unknown)}",
            where="--gpus",
            hint="give --gpus N, or set gpus: in the inventory",
        )
    return min((host.capacity or 0 for host in hosts), default=1)
