"""`RunSpec`: one experiment, resolved once from framework defaults, a run file and the command
line.

Precedence is framework defaults < run file < command line, and every value records its origin.
Facts of the cluster are not part of a spec; they are in `orchestrator.inventory`. Environment
variables belong to the hosts, except the ones that an experiment varies: these are part of the spec
and take precedence.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from orchestrator.errors import ConfigError, nearest
from orchestrator.grouping import group_pairs
from orchestrator.inventory.containers import check_choice
from orchestrator.notes import Note
from orchestrator.options import COUNTS
from orchestrator.plan.binding import check_binding
from orchestrator.plan.folders import folders_with
from orchestrator.plan.framework import Framework
from orchestrator.plan.notes import SKIPPED
from orchestrator.plan.option_values import as_written
from orchestrator.plan.scaling import Step, as_reported, check_ranks, step_of, with_global_batch
from orchestrator.plural import plural

_NAMED = 3
"""Skipped configurations that a note names for one reason."""
_DEFAULTED = (
    "nodes", "gpus", "batch_size", "dtype", "loader", "steps", "warmup_steps", "timeout_s",
)  # fmt: skip
"""Fields of a spec that a framework may have defaults for."""
CELL_CHOICES = ("cpu_binding",)
EXTRA_CHOICES = ("container", *CELL_CHOICES)
"""Choices of a run for which no framework has a default: fields of a spec, an empty text or None if
nobody chose, as 0 may be a choice. Cells of a bench may differ in ``CELL_CHOICES``; all share one container.
"""
_OPTIONAL = ("env", "follows", *EXTRA_CHOICES, "hosts")
_MOST = 1 << 40
"""Counts above this are refused; a framework folder and a published table allow no larger ones
either.
"""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """One experiment.

    ``gpus`` is ranks per node, ``batch_size`` samples per device and step: per copy of the model
    and forward pass, if ``step`` says that these differ.

    ``env`` holds the variables that this experiment sets on all nodes; they win over the hosts'.
    ``follows`` names the choice that keeps the global batch constant with strong scaling,
    ``batch_size`` or ``options.<name>``; it is empty with weak scaling. ``container`` replaces the
    hosts' containers: ``ENGINE:IMAGE``, or ``none`` to run on the hosts themselves. ``cpu_binding``
    is one of `BINDINGS`, or empty to use each host's ``vars.cpu_binding``. ``hosts`` names the
    nodes in order of node_rank if the experiment is about them; empty: the first that fit.
    """

    framework: str
    model: str
    nodes: int
    gpus: int
    device: str
    batch_size: int
    dtype: str
    loader: str
    steps: int
    warmup_steps: int
    timeout_s: float
    options: Mapping[str, Any]
    env: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    step: Step = Step()
    follows: str = ""
    container: str = ""
    cpu_binding: str = ""
    hosts: tuple[str, ...] = ()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nodes * self.gpus

    @property
    def global_batch(self) -> int:
        """Samples per step over all ranks."""
        return (
            self.batch_size * self.step.micro_batches * (self.world_size // self.step.model_ranks)
        )

    def is_run_of(self, planned: RunSpec) -> bool:
        """Return whether a run of ``planned`` trained this spec.

        They are equal, but for a batch size that the run found itself.
        """
        return (
            replace(self, batch_size=planned.batch_size) if planned.step.batch_size_up_to else self
        ) == planned

    @property
    def items(self) -> int:
        """Items per sample in a speed: its tokens, or 1."""
        return self.step.tokens or 1

    @property
    def shape(self) -> str:
        """The shape as text, also called case: ``4n8g`` is four nodes with eight ranks each."""
        return f"{self.nodes}n{self.gpus}g"

    def as_dict(self) -> dict[str, Any]:
        """Return the spec for JSON, without origins and without fields that are not set."""
        values = asdict(self)
        unset = [name for name in _OPTIONAL if values[name] in (None, "", {}, ())]
        if self.step == Step():
            unset.append("step")
        for name in ("origins", *unset):
            del values[name]
        return values

    def chosen(self, name: str) -> Any:
        """Return the value of one of `EXTRA_CHOICES`; None if nobody chose."""
        value = getattr(self, name)
        return None if value == "" else value

    @property
    def settings(self) -> dict[str, Any]:
        """Options and variables by name, and the other choices of a cell and the hosts if the
        experiment is about them.
        """
        settings = {**self.options, **self.env}
        choices = {name: self.chosen(name) for name in CELL_CHOICES}
        settings |= {name: value for name, value in choices.items() if value is not None}
        if self.hosts:
            settings["hosts"] = ",".join(self.hosts)
        return settings


@dataclass(frozen=True, slots=True)
class Skipped:
    """A configuration that a bench leaves out because it is impossible, and the reason in one line.

    ``choices`` are its ``nodes`` and ``gpus``, and the values that differ between the requested
    configurations; options are ``options.<name>``, variables ``env.<name>``.
    """

    framework: str
    model: str
    choices: Mapping[str, Any]
    reason: str

    @property
    def shape(self) -> str:
        """The shape as text, as of a spec."""
        return f"{self.choices['nodes']}n{self.choices['gpus']}g"

    def __str__(self) -> str:
        """Return its name among the configurations of its bench."""
        rest = {
            name: value for name, value in self.choices.items() if name not in ("nodes", "gpus")
        }
        written = {
            name: "(not set)" if value is None else as_written(value)
            for name, value in rest.items()
        }
        words = [f"{name.partition('.')[2] or name}={value}" for name, value in written.items()]
        return " ".join([self.framework, self.model, self.shape, *words])


def skipped_words(skipped: Iterable[Skipped]) -> list[Note]:
    """Return one text for each reason, with the configurations that it concerns."""
    return [SKIPPED(names=names, reason=reason) for reason, names in by_reason(skipped).items()]


def by_reason(skipped: Iterable[Skipped]) -> dict[str, str]:
    """Return for each reason the names of the first configurations that it concerns, and how many
    more there are.
    """
    concerned = group_pairs((configuration.reason, str(configuration)) for configuration in skipped)
    return {
        reason: "; ".join(names[:_NAMED])
        + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
        for reason, names in concerned.items()
    }


def impossible(
    framework: str, model: str, choices: Mapping[str, Any], error: ConfigError
) -> Skipped:
    """Return the configuration that ``error`` refuses. Raises the error if it is of another kind: a
    fault in a file.
    """
    if error.kind != "config_invalid":
        raise error
    return Skipped(
        framework,
        model,
        choices,
        f"{error.where}: {error.message}" if error.where else error.message,
    )


def resolve(
    framework: Framework,
    model: str,
    *,
    device: str,
    choices: Mapping[str, Any],
    origins: Mapping[str, str] | None = None,
) -> RunSpec:
    """Return the spec of one configuration.

    ``choices`` hold its values by name, as `run_file.RunFile` does, among them ``nodes`` and
    ``gpus``; one that is None or missing is the framework's. ``origins`` says where each is from,
    by default the command line. Raises ConfigError for what the framework does not support.
    """
    if model not in framework.models:
        raise ConfigError(
            f"{framework.name} has no model {model!r}",
            where="model",
            hint=f"it has {', '.join(framework.models)}{nearest(model, framework.models)}"
            f"{folders_with(model, framework)}",
        )
    given = {
        name: read_value(framework, device, name, value)
        for name, value in choices.items()
        if value is not None
    }
    chosen_by = dict.fromkeys(("model", "framework", *given), "command line") | dict(origins or {})
    sources = {"model": chosen_by["model"], "framework": chosen_by["framework"]}
    values = {}
    for name in (*_DEFAULTED, *(f"options.{option}" for option in framework.options)):
        if name in given:
            values[name], sources[name] = given[name], chosen_by[name]
        else:
            values[name], sources[name] = framework.default(name, device, model)
    options = {option: values.pop(f"options.{option}") for option in framework.options}
    if values["steps"] <= values["warmup_steps"]:
        raise ConfigError(
            f"expected more steps than the {values['warmup_steps']} warm-up steps, got {values['steps']}",
            where="--steps",
            hint="--steps includes the warm-up; the steps after it are measured",
        )
    framework.dtype_flag(values["dtype"], device)
    world_size = values["nodes"] * values["gpus"]
    check_ranks(framework, options, world_size)
    follows = ""
    if "global_batch" in given:
        follows = with_global_batch(
            framework, given["global_batch"], world_size, values, options, sources
        )
    variables = sorted(name for name in given if name.startswith("env."))
    for name in (*EXTRA_CHOICES, *variables):
        if name in given:
            sources[name] = chosen_by[name]
    return RunSpec(
        framework=framework.name,
        model=model,
        device=device,
        options=options,
        env={name.removeprefix("env."): given[name] for name in variables},
        origins=sources,
        step=step_of(framework, options),
        follows=follows,
        **{name: given[name] for name in EXTRA_CHOICES if name in given},
        **values,
    )


def with_batch_size(
    spec: RunSpec, framework: Framework, batch_size: int, options: Mapping[str, Any]
) -> RunSpec:
    """Return a spec with other options, and with another batch size and as many micro-batches as
    keep the global batch, if the spec has a constant one. Raises ConfigError if that is impossible.
    """
    options = dict(options)
    check_ranks(framework, options, spec.world_size)
    kind, _, follower = spec.follows.partition(".")
    if kind == "options":
        copies = spec.world_size // step_of(framework, options).model_ranks
        if spec.global_batch % (divisor := copies * batch_size):
            of_model = f"{plural(copies, 'copy', 'copies')} of the model"
            message = (
                f"expected a divisor of the global batch {spec.global_batch}, got {of_model} with"
            )
            raise ConfigError(
                f"{message} {batch_size} samples each, {divisor}", where="--global-batch"
            )
        options[follower] = spec.global_batch // divisor
    return replace(spec, batch_size=batch_size, options=options, step=step_of(framework, options))


def read_value(framework: Framework, device: str, name: str, value: Any) -> Any:
    """Return a value as a spec has it: parsed for an option, any other as it is.

    ``name`` is a field of `RunSpec`, ``options.<name>`` or ``env.<name>``. Raises ConfigError if no
    configuration of this framework can have the value, whatever its other values and its device.
    """
    kind, _, option = name.partition(".")
    _check_number(name, value)
    _check_takes_value(framework, name, value)
    if kind == "options":
        _check_option(framework, option)
        return framework.options[option].parse(option, value)
    if name == "container":
        check_choice(value, "--container")
    elif name == "cpu_binding":
        check_binding(value, "--cpu-binding")
    elif name == "loader":
        _check_loader(framework, value)
    elif name == "dtype" and not any(value in table for table in framework.dtypes.values()):
        framework.dtype_flag(value, device)
    return value


def _check_takes_value(framework: Framework, key: str, value: Any) -> None:
    if key in framework.measure.fixed and value is not None:
        message = f"{framework.name} measures {framework.measure.noun} and takes no such value, got {value!r}"
        raise ConfigError(message, where=f"--{key.replace('_', '-')}", hint="leave it out")


def _check_number(key: str, value: Any) -> None:
    least = COUNTS.get(key)
    if least is not None and (
        not isinstance(value, int) or isinstance(value, bool) or not least <= value <= _MOST
    ):
        form = f"of at most {_MOST}" if isinstance(value, int) and value > _MOST else f"≥ {least}"
        raise ConfigError(
            f"expected a whole number {form}, got {value!r}", where=f"--{key.replace('_', '-')}"
        )
    if key == "timeout_s" and (
        not isinstance(value, int | float)
        or isinstance(value, bool)
        or not 0 < value < float("inf")
    ):
        raise ConfigError(f"expected seconds above 0, got {value!r}", where="--timeout")


def _check_loader(framework: Framework, loader: str) -> None:
    if loader not in framework.loaders:
        raise ConfigError(
            f"expected one of {', '.join(framework.loaders)} for {framework.name}, got {loader!r}",
            where="--loader",
            hint=nearest(loader, framework.loaders).removeprefix("; "),
        )


def _check_option(framework: Framework, name: str) -> None:
    if name not in framework.options:
        defaults = ", ".join(f"{key}={one.default}" for key, one in framework.options.items())
        raise ConfigError(
            f"{framework.name} has no option {name!r}",
            where=f"--set {name}",
            hint=f"it has {defaults or 'none'}"
            f"{nearest(name, framework.options)}{folders_with(name, framework)}",
        )


def default_step(
    framework: Framework,
    model: str,
    device: str = "cuda",
    reported: Mapping[str, Any] | None = None,
) -> Step:
    """Return the step by the defaults of a folder and the options that a program has ``reported``.

    Raises ConfigError for a reported value that an option does not take.
    """
    reported = reported or {}
    options = {
        name: framework.default(f"options.{name}", device, model)[0] for name in framework.options
    }
    for name in framework.step.options & reported.keys() if framework.step else ():
        options[name] = framework.options[name].parse(name, as_written(reported[name]))
    return as_reported(step_of(framework, options), framework, reported)
