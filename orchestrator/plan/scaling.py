"""The distribution of a step's work over ranks: copies of the model, micro-batches, and the choice
that keeps the global batch constant.

With weak scaling, each rank computes as much in every shape. With strong scaling, the global batch
is the same in every shape, and the batch size of a rank or the number of micro-batches follows from
it.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from orchestrator.errors import ConfigError
from orchestrator.plan.framework import Framework, Option
from orchestrator.plural import plural

_SHARED_BEFORE = ("tensor_parallel", "pipeline_parallel")
"""Options that pytorch_lm once had."""
_RANKS = Option("int", 1, minimum=1)


@dataclass(frozen=True, slots=True)
class Step:
    """The computation of a language model's step, from its options.

    A sample is a sequence of ``tokens``, 0 for a program whose samples are not made of tokens. Each
    copy of the model is computed by ``model_ranks`` ranks together, in ``micro_batches`` forward
    passes per step. ``recomputation`` is one of `transformer.RECOMPUTATIONS`. ``batch_size_up_to``:
    a run finds its batch size itself, up to this one, and reports it; 0: it trains with the planned
    one.
    """

    tokens: int = 0
    micro_batches: int = 1
    model_ranks: int = 1
    recomputation: str = "none"
    batch_size_up_to: int = 0


def step_of(framework: Framework, options: Mapping[str, Any]) -> Step:
    """Return the step that these options describe."""
    names = framework.step
    if names is None:
        return Step()
    given = {name: options[option] for name, option in names.by_field.items() if option}
    return Step(model_ranks=prod(options[name] for name in names.shared_by), **given)


def as_reported(step: Step, framework: Framework, reported: Mapping[str, Any]) -> Step:
    """Return a step with the ranks of each copy of the model as an earlier version's log reports
    them.

    The folder no longer has that version's options. Raises ConfigError for an invalid number.
    """
    names = [
        name
        for name in _SHARED_BEFORE
        if framework.step and name in reported and name not in framework.options
    ]
    ranks = prod(_RANKS.parse(name, str(reported[name])) for name in names)
    return replace(step, model_ranks=step.model_ranks * ranks)


def check_ranks(framework: Framework, options: Mapping[str, Any], world_size: int) -> None:
    """Raise ConfigError if copies of the model cannot be spread over the ranks."""
    shared_by = framework.step.shared_by if framework.step else ()
    model_ranks = prod(options[name] for name in shared_by)
    if world_size % model_ranks:
        sharing = {name: options[name] for name in shared_by if options[name] > 1}
        shared = " × ".join(f"{name}={ranks}" for name, ranks in sharing.items())
        message = f"expected a multiple of {model_ranks} ranks for {shared}, got {world_size}"
        raise ConfigError(
            message,
            where=f"--set {next(iter(sharing))}",
            hint="change this option, or the number of nodes or ranks per node",
        )


def follower_of(framework: Framework) -> str:
    """Return the name of the choice that follows from a constant global batch: the option of
    micro-batches if a folder has one, so that forward passes stay as large as they are; else the
    batch size."""
    micro_batches = framework.step.micro_batches if framework.step else ""
    if not micro_batches:
        return "batch_size"
    return f"options.{micro_batches}"


def with_global_batch(
    framework: Framework,
    global_batch: int,
    world_size: int,
    values: MutableMapping[str, Any],
    options: MutableMapping[str, Any],
    origins: MutableMapping[str, str],
) -> str:
    """Set the choice that follows from a global batch, and return its name.

    Raises ConfigError if the global batch cannot be divided, or somebody chose that value too.
    """
    name = follower_of(framework)
    if "default" not in origins[name]:
        kind, _, option = name.partition(".")
        also = f"--set {option}" if kind == "options" else "--batch-size"
        raise ConfigError(
            f"expected no {also}, which follows from the global batch",
            where="--global-batch",
            hint="leave one of them out",
        )
    step = step_of(framework, options)
    if step.batch_size_up_to:
        searched = framework.step.batch_size_up_to if framework.step else ""
        message = f"expected no --set {searched}: a batch size that a run searches for may not divide the global batch"
        raise ConfigError(message, where="--global-batch", hint="leave one of them out")
    ranks = world_size // step.model_ranks
    divisor = ranks if name == "batch_size" else ranks * values["batch_size"]
    if global_batch < divisor or global_batch % divisor:
        of = "" if name == "batch_size" else f" of {values['batch_size']} samples each"
        message = (
            f"expected a multiple of {divisor}, for {plural(ranks, 'copy', 'copies')} of the "
            f"model{of}, got {global_batch}"
        )
        raise ConfigError(message, where="--global-batch")
    if name == "batch_size":
        values[name] = global_batch // divisor
    else:
        options[name.partition(".")[2]] = global_batch // divisor
    origins[name] = "from --global-batch"
    return name
