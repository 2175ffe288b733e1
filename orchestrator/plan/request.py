"""From the options of a command to a `Bench`: `request_of` parses the options, `planned` plans the
runs.

Precedence is that of a spec, framework defaults < run file < command line, and also holds for the
number of repeats. Nothing here reads files, the clock, random numbers or earlier benches: the run
file is passed as a document, id and seed of the bench as values. A bench is planned with every
baseline it needs; `baselines.without` removes those that an earlier bench lends.

>>> request = request_of("resnet50", nodes="1,2", dtype="fp32,fp16", options=["seed=5,6"], repeats=3)
>>> request.nodes, request.axes, request.repeats
((1, 2), {'dtype': ('fp32', 'fp16'), 'options.seed': ('5', '6')}, 3)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError, Faults
from orchestrator.inventory import Host
from orchestrator.plan.baselines import check_shape, marked, missing_baselines, possible
from orchestrator.plan.bench import Bench
from orchestrator.plan.configurations import (
    Configurations,
    check_values,
    configurations,
    device_of,
    placed,
    ranks_by_default,
)
from orchestrator.plan.expectations import Expectation, expectation_of
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.framework import Framework
from orchestrator.plan.matrix import Axis, axis, combined, names_of
from orchestrator.plan.options import OPTIONS, check_names, single_choices
from orchestrator.plan.placement import ladder as ladder_shapes
from orchestrator.plan.run_file import RunFile, run_file_of
from orchestrator.plan.schedule import LEAST, MOST, ORDERS, Schedule
from orchestrator.plan.spec import RunSpec
from orchestrator.plan.trial import refused_everywhere
from orchestrator.plan.variables import check_variable
from orchestrator.plan.words import assignments, numbers, seconds, share, words
from orchestrator.plan.words import label as label_of
from orchestrator.plan.words import shapes as shapes_of

if TYPE_CHECKING:
    from orchestrator.yamlfile import Document

__all__ = [
    "Request",
    "check_choices",
    "check_measures",
    "checked_specs",
    "planned",
    "request_of",
]

_REQUESTED = [name for name, row in OPTIONS.items() if row.plans]
_SHAPING = ("nodes", "gpus", "shape", "framework", "options", "env")


@dataclass(frozen=True, slots=True)
class Request:
    """The request on a command line. Empty axes and ``repeats`` fall back to the run file, then to
    the framework.

    ``axes`` hold the values of a choice by name, those of options and variables as ``options.<name>`` and ``env.<name>``;
    ``single`` hold one value or None. ``order``, ``until_ci`` and ``budget`` are unparsed text: which values are valid depends
    on the repeats, which may come from the framework. ``strict`` refuses the bench if a
    configuration is impossible.
    ``origins`` name the files of those choices in ``run_file`` that are defaults of the project or the user.
    """

    model: str
    nodes: tuple[int, ...] = ()
    gpus: tuple[int, ...] = ()
    shapes: tuple[tuple[int, int], ...] = ()
    ladder: bool = False
    axes: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    single: Mapping[str, Any] = field(default_factory=dict)
    run_file: RunFile = field(default_factory=RunFile)
    frameworks: tuple[str, ...] = ()
    repeats: int | None = None
    order: str = "balanced"
    until_ci: str = ""
    max_repeats: int | None = None
    budget: str = ""
    baseline: bool = True
    baseline_shape: tuple[int, int] | None = None
    strict: bool = False
    label: str = ""
    expect: tuple[Expectation, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)

    def framework_names(self, default: Callable[[], str]) -> tuple[str, ...]:
        """Return the frameworks of its configurations; first the one of those that name none, which
        may be the default.
        """
        file = self.run_file
        listed = [
            choice["framework"]
            for alternatives in file.lists
            for choice in alternatives
            if "framework" in choice
        ]
        alone = [file.single["framework"]] if "framework" in file.single else []
        included = [entry["framework"] for entry in file.include if "framework" in entry]
        return tuple(
            dict.fromkeys([*(self.frameworks or alone or listed or [default()]), *included])
        )

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that it sets on nodes, and where each is first set: in the run
        file, or by which option.
        """
        file = self.run_file
        entries = [
            file.single,
            *(choices for alternatives in file.lists for choices in alternatives),
            *file.include,
        ]
        places: dict[str, str] = {}
        for name, value in (item for choices in entries for item in choices.items()):
            places.setdefault(name, file.places.get((name, value), ""))
        places |= {name: f"--env {name.removeprefix('env.')}" for name in self.axes}
        return {
            name.removeprefix("env."): place
            for name, place in places.items()
            if name.startswith("env.")
        }


def request_of(
    model: str,
    *,
    run_file: Document | None = None,
    defaults: Mapping[str, tuple[Any, str, str]] | None = None,
    **given: Any,
) -> Request:
    """Return the request made by the options of ``orch bench``, ``given`` by the names of their
    rows in `OPTIONS`.

    Lists are comma-separated text, ``options`` and ``env`` are lists of ``name=value,value``.
    ``defaults`` have value, file and place of ``nodes``, ``repeats`` and ``timeout_s``, for what
    neither the options nor the run file choose. Raises ConfigError naming the option, or file and
    line of the run file, TypeError for a name that no row has.
    """
    check_names(given, _REQUESTED, "request_of")
    nodes, gpus, shape, ladder = (
        given.get(name) or "" for name in ("nodes", "gpus", "shape", "ladder")
    )
    if shape and (nodes or gpus or ladder) or ladder and "," in gpus:
        where = "--shape" if shape else "--ladder"
        raise ConfigError("expected --shape alone, or --ladder, or --nodes and --gpus", where=where)
    single = single_choices(given)
    axes = _listed_choices(given)
    file = run_file_of(run_file) if run_file else RunFile()
    repeats, baseline = given.get("repeats"), given.get("baseline", True)
    chosen = {name for name, value in single.items() if value is not None}
    chosen |= {"repeats"} if repeats else set()
    chosen |= {"nodes"} if nodes or shape or ladder else set()
    left = {}
    for name, default in (defaults or {}).items():
        if name not in chosen and not file.chooses(name):
            left[name] = default
    file = file.completed({name: (value, place) for name, (value, _, place) in left.items()})
    return Request(
        model=model,
        frameworks=tuple(dict.fromkeys(words(given.get("framework") or "", "--framework"))),
        nodes=numbers(nodes, "--nodes"),
        gpus=numbers(gpus, "--gpus"),
        shapes=shapes_of(shape),
        ladder=bool(ladder),
        axes=axes,
        single=single,
        run_file=file,
        repeats=repeats,
        order=given.get("order") or "balanced",
        until_ci=given.get("until_ci") or "",
        max_repeats=given.get("max_repeats"),
        budget=given.get("budget") or "",
        baseline=baseline,
        baseline_shape=_baseline_shape(given.get("baseline_shape") or "", baseline),
        strict=bool(given.get("strict")),
        label=label_of(given.get("label") or "", "--label") or file.label,
        expect=(
            *file.expect,
            *(expectation_of(text, "--expect") for text in given.get("expect") or ()),
        ),
        origins={name: origin for name, (_, origin, _) in left.items()},
    )


def _listed_choices(given: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
    """Return the values of options that make configurations, but for frameworks and shapes; those
    of numbers vary slowest.
    """
    axes: dict[str, tuple[Any, ...]] = {}
    for kind, parse in ((int, numbers), (str, words)):
        for name, row in OPTIONS.items():
            if (
                name not in _SHAPING
                and row.run_file
                and row.is_list
                and row.run_file.types == (kind,)
            ):
                axes[name] = parse(given.get(name) or "", f"--{name.replace('_', '-')}")
    axes |= {
        f"options.{name}": values
        for name, values in assignments(given.get("options") or (), "--set").items()
    }
    variables = assignments(given.get("env") or (), "--env")
    for name in variables:
        check_variable(name, f"--env {name}")
    axes |= {f"env.{name}": values for name, values in variables.items()}
    return {name: values for name, values in axes.items() if values}


def _baseline_shape(text: str, baseline: bool) -> tuple[int, int] | None:
    if not text:
        return None
    shapes = shapes_of(text, "--baseline-shape")
    if len(shapes) != 1:
        raise ConfigError(
            f"expected one shape such as 1n8g, got {text!r}", where="--baseline-shape"
        )
    if not baseline:
        raise ConfigError(
            "expected either --baseline-shape or --no-baseline, got both", where="--baseline-shape"
        )
    if 0 in shapes[0]:
        raise ConfigError(
            f"expected 1 node or more and 1 rank or more on each, got {text!r}",
            where="--baseline-shape",
        )
    return shapes[0]


def check_measures(request: Request, frameworks: Iterable[Framework]) -> None:
    """Raise ConfigError if the request stops by an interval and the result of a framework is a
    diagnosis without one.
    """
    diagnoses = [framework for framework in frameworks if framework.measure.is_diagnosis]
    if request.until_ci and diagnoses:
        message = f"{diagnoses[0].name} measures {diagnoses[0].measure.noun}, which has no metric and so no interval"
        raise ConfigError(message, where="--until-ci", hint="set the number of runs with --repeats")


def planned(
    request: Request,
    folders: Sequence[FrameworkFolder],
    hosts: Sequence[Host],
    *,
    bench_id: str,
    seed: int,
) -> Bench:
    """Return the requested bench. Missing baselines come before its cells. ``seed`` is that of a
    random order.

    Raises ConfigError if a run is not possible on these hosts.
    """
    by_name = {folder.framework.name: folder for folder in folders}
    asked = _configurations(request, folders, hosts)
    schedule = _schedule(
        request, [folder.framework for folder in folders], asked.specs[0].device, seed
    )
    baselines: tuple[RunSpec, ...] = ()
    skipped = [left_out for left_out, _ in asked.skipped]
    if request.baseline:
        with_speedup = [
            spec for spec in asked.specs if by_name[spec.framework].framework.has_speedup
        ]
        baselines, impossible = possible(
            missing_baselines(with_speedup, request.baseline_shape), by_name, hosts
        )
        skipped += impossible
        check_shape(request.baseline_shape, (*asked.specs, *baselines), impossible)
    specs = marked(asked.specs, request.baseline_shape)
    return Bench(
        bench_id,
        (*baselines, *specs),
        by_name,
        schedule,
        tuple(skipped),
        request.label,
        request.expect,
    )


def checked_specs(
    request: Request, folders: Sequence[FrameworkFolder], hosts: Sequence[Host]
) -> tuple[RunSpec, ...]:
    """Return every possible configuration of the request once, in the requested order. Each is
    rendered as a check.

    So ConfigError is raised before any host is contacted if none is possible, because the hosts are
    too small or a template refuses it, and for a value that none can have.
    """
    return _configurations(request, folders, hosts).specs


def check_choices(
    request: Request, folders: Sequence[FrameworkFolder], device: str, shape: tuple[int, int]
) -> None:
    """Raise ConfigError, or Faults with several, for what is possible on no hosts.
    `refused_everywhere` says what ``shape`` is for."""
    by_name = {folder.framework.name: folder for folder in folders}
    given = [axis("framework", request.frameworks)] if request.frameworks else []
    faults: dict[str, ConfigError] = {}
    for choice in _choices(request, folders, given, request.run_file.lists, device):
        folder = by_name[choice.get("framework", folders[0].framework.name)]
        if error := refused_everywhere(folder, request.model, device, choice, shape):
            fault = placed(error, choice, request.run_file.places)
            faults.setdefault(str(fault), fault)
    if faults:
        raise next(iter(faults.values())) if len(faults) == 1 else Faults(list(faults.values()))


def _configurations(
    request: Request, folders: Sequence[FrameworkFolder], hosts: Sequence[Host]
) -> Configurations:
    given, lists = _axes(request, folders[0], hosts)
    choices = _choices(request, folders, given, lists, device_of(hosts))
    origins = {
        **request.origins,
        **dict.fromkeys((*names_of(given), *_commanded(request)), "command line"),
    }
    asked = configurations(request.model, choices, folders, hosts, origins, request.run_file.places)
    asked.check(strict=request.strict)
    return asked


def _commanded(request: Request) -> dict[str, Any]:
    return {name: value for name, value in request.single.items() if value is not None}


def _choices(
    request: Request,
    folders: Sequence[FrameworkFolder],
    given: Sequence[Axis],
    lists: Sequence[Axis],
    device: str,
) -> list[dict[str, Any]]:
    """Return the choices of each configuration. Raises ConfigError, or Faults, if there is none,
    and for values that none can have."""
    file, commanded = request.run_file, _commanded(request)
    entries = [choices for alternatives in (*given, *lists) for choices in alternatives]
    values = [
        item
        for choices in (*entries, *file.include, file.single, commanded)
        for item in choices.items()
    ]
    check_values(values, folders, device, file.places)
    combinations = combined(lists, given, file.include, file.exclude)
    if not combinations:
        raise ConfigError(
            "expected at least one configuration after exclude: and the options of the command line, got none",
            where="--file",
        )
    return [{**file.single, **combination, **commanded} for combination in combinations]


def _axes(
    request: Request, folder: FrameworkFolder, hosts: Sequence[Host]
) -> tuple[list[Axis], list[Axis]]:
    """Return the axes of the command line and those of the run file; a ladder is an axis of either."""
    given = [axis("framework", request.frameworks)] if request.frameworks else []
    given += [axis(name, values) for name, values in request.axes.items()]
    file = request.run_file
    in_file = {"nodes": _values_of("nodes", file), "gpus": _values_of("gpus", file)}
    if request.shapes or request.ladder:
        shapes = request.shapes or _ladder(
            request.nodes or in_file["nodes"], request.gpus or in_file["gpus"], folder, hosts
        )
        given.append(tuple({"nodes": nodes, "gpus": gpus} for nodes, gpus in dict.fromkeys(shapes)))
    else:
        given += [
            axis(name, values)
            for name, values in (("nodes", request.nodes), ("gpus", request.gpus))
            if values
        ]
    lists = list(file.lists)
    if file.ladder and not (request.shapes or request.ladder):
        lists = [
            alternatives
            for alternatives in lists
            if not names_of([alternatives]) & {"nodes", "gpus"}
        ]
        given = [
            alternatives
            for alternatives in given
            if not names_of([alternatives]) & {"nodes", "gpus"}
        ]
        shapes = _ladder(
            request.nodes or in_file["nodes"], request.gpus or in_file["gpus"], folder, hosts
        )
        lists.append(tuple({"nodes": nodes, "gpus": gpus} for nodes, gpus in shapes))
    return given, lists


def _values_of(name: str, file: RunFile) -> tuple[int, ...]:
    listed = [
        choice[name] for alternatives in file.lists for choice in alternatives if name in choice
    ]
    return tuple(listed or ([file.single[name]] if name in file.single else []))


def _ladder(
    nodes: Sequence[int], gpus: Sequence[int], folder: FrameworkFolder, hosts: Sequence[Host]
) -> tuple[tuple[int, int], ...]:
    most = max(nodes, default=len(hosts))
    return ladder_shapes(most, max(gpus) if gpus else ranks_by_default(folder, hosts[:most])[0])


def _schedule(
    request: Request, frameworks: Sequence[Framework], device: str, seed: int
) -> Schedule:
    """Return the schedule of the bench. With ``--until-ci`` a framework's own repeats would be too
    few to start with.
    """
    until_ci, max_repeats = request.until_ci, request.max_repeats
    repeats = request.repeats or request.run_file.repeats
    if repeats is None:
        least = min(LEAST, max_repeats or LEAST)
        repeats = (
            least
            if until_ci
            else max(framework.default("repeats", device)[0] for framework in frameworks)
        )
    if request.order not in ORDERS:
        raise ConfigError(
            f"expected {', '.join(ORDERS[:-1])} or {ORDERS[-1]}, got {request.order!r}",
            where="--order",
        )
    if max_repeats is not None and not until_ci:
        raise ConfigError(
            "expected --until-ci as well, got none",
            where="--max-repeats",
            hint="use --repeats instead",
        )
    most = max_repeats or max(MOST, repeats)
    if until_ci and not 2 <= repeats <= most:
        raise ConfigError(f"expected 2 to {most} initial repeats, got {repeats}", where="--repeats")
    aim = share(until_ci, "--until-ci") if until_ci else None
    budget_s = seconds(request.budget, "--budget") if request.budget else None
    return Schedule(request.order, seed, repeats, aim, most, budget_s)
