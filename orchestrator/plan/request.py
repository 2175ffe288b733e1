"""The request of a command: its options, parsed, beside its run file.

Planning goes on from here in one direction: `configurations` makes specs of a request,
`planning.plan_bench` a bench of the specs.

>>> request = request_of("resnet50", nodes="1,2", dtype="fp32,fp16", options=["seed=5,6"], repeats=3)
>>> request.nodes, request.axes, request.repeats
((1, 2), {'dtype': ('fp32', 'fp16'), 'options.seed': ('5', '6')}, 3)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError
from orchestrator.options import OPTIONS, check_names, long_form, single_choices
from orchestrator.plan.expectations import Expectation, expectation_of
from orchestrator.plan.option_values import assignments, numbers, words
from orchestrator.plan.option_values import label as label_of
from orchestrator.plan.option_values import shapes as shapes_of
from orchestrator.plan.run_file import RunFile, run_file_of
from orchestrator.plan.variables import check_variable

if TYPE_CHECKING:
    from orchestrator.yamlfile import Document

_REQUESTED = [name for name, row in OPTIONS.items() if row.plans]
_SHAPING = ("nodes", "gpus", "shape", "framework", "options", "env")


@dataclass(frozen=True, slots=True)
class Request:
    """A request on a command line.

    Empty axes and ``repeats`` fall back to the run file, then to the framework.

    ``axes`` hold the values of a choice by name; options and variables are called
    ``options.<name>`` and ``env.<name>``. ``single`` holds one value for a name. ``order``,
    ``until_ci`` and ``budget`` are unparsed text: the valid values depend on the repeats, which may
    come from the framework. ``strict`` refuses the bench if a configuration is impossible.
    ``origins`` names the files of the choices in ``run_file`` that are defaults of the project or
    the user.
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
        names = self.frameworks or file.values_of("framework") or (default(),)
        included = [entry["framework"] for entry in file.include if "framework" in entry]
        return tuple(dict.fromkeys([*names, *included]))

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that it sets on nodes, and where each is first set: the run
        file or an option.
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
    if shape and (nodes or gpus or ladder):
        message = "expected --shape alone, or --ladder, or --nodes and --gpus"
        raise ConfigError(message, where="--shape")
    for option, most in (("--nodes", nodes), ("--gpus", gpus)):
        if ladder and "," in most:
            message = f"expected {option} N with --ladder, its most, got {most}"
            raise ConfigError(message, where=option, hint="leave out --ladder for a list")
    single = single_choices(given)
    axes = _listed_choices(given)
    file = run_file_of(run_file) if run_file else RunFile()
    repeats, baseline = given.get("repeats"), given.get("baseline", True)
    chosen = {*single, *axes}
    chosen |= {"repeats"} if repeats else set()
    chosen |= {"nodes"} if nodes or shape or ladder else set()
    left = {}
    for name, default in (defaults or {}).items():
        if name not in chosen and not file.chooses(name):
            left[name] = default
    file = file.complete({name: (value, place) for name, (value, _, place) in left.items()})
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
                axes[name] = parse(given.get(name) or "", long_form(name))
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
