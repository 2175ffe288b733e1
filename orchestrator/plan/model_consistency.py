"""Consistency of models and options of a ``framework.yaml``: defaults, and the sizes and steps of
language models.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from orchestrator.errors import ConfigError, nearest
from orchestrator.inventory.values import KeyPath
from orchestrator.plan.measures import LANGUAGE_MODEL
from orchestrator.plan.option_values import as_written
from orchestrator.plan.schema import FrameworkFile, OptionEntry, TransformerEntry
from orchestrator.plan.transformer import RECOMPUTATIONS

Fault = tuple[KeyPath, str, str]


def model_inconsistencies(file: FrameworkFile, broken: Collection[KeyPath]) -> Iterator[Fault]:
    """Yield every fault. ``broken`` are the keys that were left out of ``file`` because they are at
    fault themselves.
    """
    at_fault = {path[0] for path in broken}
    if not at_fault & {"models", "options"}:
        yield from _model_defaults(file)
    if at_fault & {"measures", "models", "options", "per_step"}:
        return
    if file.measures != LANGUAGE_MODEL:
        if file.per_step:
            yield (
                ("per_step",),
                f"expected no per_step: in a folder that measures {file.measures}",
                f"write measures: {LANGUAGE_MODEL}",
            )
        return
    for name, model in file.models.items():
        if model.transformer is not None:
            yield from _sizes(("models", name, "transformer"), model.transformer)
    if file.per_step is None:
        hint = "write per_step: {tokens: seq_len}"
        yield (
            ("per_step",),
            "expected a description of what a step of a language model computes, got nothing",
            hint,
        )
    else:
        yield from _step(file)


def _model_defaults(file: FrameworkFile) -> Iterator[Fault]:
    for model, entry in file.models.items():
        for name, value in entry.defaults.options.items():
            place: KeyPath = ("models", model, "defaults", "options", name)
            if name not in file.options:
                yield (
                    place,
                    f"expected the name of an option, got {name!r}",
                    _options_hint(name, file.options),
                )
                continue
            try:
                file.options[name].as_option().parse(name, as_written(value))
            except ConfigError as error:
                yield place, error.message, ""


def _sizes(place: KeyPath, sizes: TransformerEntry) -> Iterator[Fault]:
    if sizes.head_width is None and sizes.width % sizes.heads:
        hint = "write head_width: if a head is not width / heads wide"
        yield (
            (*place, "heads"),
            f"expected a divisor of the width {sizes.width}, got {sizes.heads}",
            hint,
        )
    if sizes.kv_heads is not None and sizes.heads % sizes.kv_heads:
        yield (
            (*place, "kv_heads"),
            f"expected a divisor of the {sizes.heads} heads, got {sizes.kv_heads}",
            "",
        )
    if sizes.active_experts > sizes.experts:
        got = f"got {sizes.active_experts}"
        yield (
            (*place, "active_experts"),
            f"expected at most the {sizes.experts} of experts, {got}",
            "",
        )


def _step(file: FrameworkFile) -> Iterator[Fault]:
    step = file.per_step
    assert step
    counts: list[tuple[KeyPath, str]] = [(("per_step", "tokens"), step.tokens)]
    searched = (("per_step", "batch_size_up_to"), step.batch_size_up_to)
    counts += [(("per_step", "micro_batches"), step.micro_batches)] if step.micro_batches else []
    counts += [
        (("per_step", "shared_by", index), name) for index, name in enumerate(step.shared_by)
    ]
    for place, name in [*counts, *([searched] if step.batch_size_up_to else [])]:
        least = 0 if place == searched[0] else 1
        option = file.options.get(name)
        if option is None:
            yield (
                place,
                f"expected the name of an option, got {name!r}",
                _options_hint(name, file.options),
            )
        elif option.type != "int" or option.minimum is None or option.minimum < least:
            yield place, f"expected an option of type int with minimum: {least}, got {name}", ""
    if not step.recomputation:
        return
    option = file.options.get(step.recomputation)
    if option is None:
        yield (
            ("per_step", "recomputation"),
            f"expected the name of an option, got {step.recomputation!r}",
            _options_hint(step.recomputation, file.options),
        )
    elif not option.choices or not set(option.choices) <= set(RECOMPUTATIONS):
        words = ", ".join(RECOMPUTATIONS)
        yield (
            ("per_step", "recomputation"),
            f"expected an option whose choices are among {words}, got {step.recomputation}",
            "",
        )


def _options_hint(name: str, options: dict[str, OptionEntry]) -> str:
    return f"the options are {', '.join(options) or 'none'}{nearest(name, options)}"
