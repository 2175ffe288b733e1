"""The candidates of a tune.

A candidate has an index of a value for each knob, counted from 1; 0 leaves a knob unchanged, so
``(0, 0, …)`` is the default.

>>> knobs = (Knob(("NCCL_ALGO",), "", (("Ring",), ("Tree",))), Knob((), "bucket_cap_mb", ((50,), (100,))))
>>> design(knobs, seed=1, count=3)
((1, 0), (2, 2), (1, 1))
>>> settings(knobs, (2, 1))
Settings(env={'NCCL_ALGO': 'Tree'}, options={'bucket_cap_mb': 50}, batch_size=None)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest
from random import Random
from typing import Any, NamedTuple

from orchestrator.features.search.record import Candidate
from orchestrator.plan import Framework, Knob, RunSpec
from orchestrator.plan.option_values import as_written
from orchestrator.plan.spec import with_batch_size

DEFAULT = "the default"


class Settings(NamedTuple):
    """The settings of a candidate: environment variables, options, and the batch size.

    ``batch_size`` is None if the default's stays.
    """

    env: dict[str, str]
    options: dict[str, Any]
    batch_size: int | None = None


def applicable(
    knobs: Iterable[Knob],
    facts: Mapping[str, Any],
    spec: RunSpec,
    env: Mapping[str, str],
    *,
    numerics: bool,
) -> tuple[Knob, ...]:
    """Return the knobs that apply to a spec, without the values that are already set, and with
    batch sizes for factors of it.

    ``facts`` are those that the first run reported: what `Knob.when` names, and under ``networks``
    those that NCCL chose, as `nccl.networks` names them; empty if NCCL was not used. A single node
    uses none of them. ``env`` holds the variables that are equal on all hosts. Knobs that change
    computed numbers require ``numerics``. The batch size is no knob where it follows from the
    global batch, or each run finds its own.
    """
    networks = facts.get("networks", ())
    transports = {"any"} if networks else set()
    if spec.nodes > 1:
        transports |= {name.removeprefix("NET/").partition(" ")[0] for name in networks}
    held = {**spec.options, **env, **spec.env, "batch_size": spec.batch_size}
    usable = []
    for knob in knobs:
        current = tuple(map(held.get, knob.names))
        values = tuple(value for value in possible_values(knob, spec) if value != current)
        fits = all(facts.get(name) in among for name, among in knob.when.items())
        is_used = not knob.networks or transports & set(knob.networks)
        if values and fits and is_used and (numerics or not knob.numerics):
            usable.append(replace(knob, values=values))
    return tuple(usable)


def format_candidate(knobs: Sequence[Knob], candidate: Candidate) -> str:
    """Return the settings of a candidate as text."""
    chosen = settings(knobs, candidate)
    values: dict[str, Any] = {"batch_size": chosen.batch_size} if chosen.batch_size else {}
    values |= {**chosen.env, **chosen.options}
    words = [f"{name}={as_written(value)}" for name, value in values.items()]
    return " ".join(words) or DEFAULT


def settings(knobs: Sequence[Knob], candidate: Candidate) -> Settings:
    """Return the settings of a candidate."""
    env: dict[str, str] = {}
    options: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for knob, index in zip(knobs, candidate, strict=True):
        if index:
            of_knob: dict[str, Any] = sizes
            if knob.env:
                of_knob = env
            elif knob.option:
                of_knob = options
            of_knob.update(zip(knob.names, knob.values[index - 1], strict=True))
    return Settings(env, options, sizes.get("batch_size"))


def apply_candidate(
    spec: RunSpec, framework: Framework, knobs: Sequence[Knob], candidate: Candidate
) -> RunSpec:
    """Return the spec of a candidate: ``spec`` with the candidate's settings, whose origin is
    ``tune``, and with its global batch if that is constant. Raises ConfigError if that is
    impossible."""
    env, options, batch_size = settings(knobs, candidate)
    names = [f"env.{name}" for name in env] + [f"options.{name}" for name in options]
    names += ["batch_size"] if batch_size else []
    origins = dict.fromkeys(names, "tune")
    spec = replace(spec, env={**spec.env, **env}, origins={**spec.origins, **origins})
    return with_batch_size(
        spec, framework, batch_size or spec.batch_size, {**spec.options, **options}
    )


def possible_values(knob: Knob, spec: RunSpec) -> tuple[tuple[Any, ...], ...]:
    """Return the values of a knob; of one with factors the batch sizes that they give, as far as
    they are whole numbers. There are none where the batch size follows from the global batch, or
    each run finds its own."""
    if not knob.multiplies:
        return knob.values
    if spec.follows == "batch_size" or spec.step.batch_size_up_to:
        return ()
    sizes = [spec.batch_size * factor for (factor,) in knob.values]
    return tuple((int(size),) for size in sizes if size >= 1 and size == int(size))


def design(knobs: Sequence[Knob], seed: int, count: int) -> tuple[Candidate, ...]:
    """Return the first ``count`` candidates, or all if there are fewer: single knobs, then random
    combinations.

    A quarter of them change one knob, the first value of every knob before any second value, so
    that the most promising values are tried even in little time. The others change each knob with
    probability 1/2, to a random value: a run takes equally long whatever it changes, and tests
    several knobs at once. (In simulations a quarter of single knobs found more than a half, or
    all.)
    """
    default = (0,) * len(knobs)
    alone = list(_new(_neighbours(knobs, default), {default}))
    candidates = chain(alone[: math.ceil(count / 4)], _mix(knobs, seed), alone)
    return tuple(islice(_new(candidates, set()), count))


def children(
    knobs: Sequence[Knob], best: Sequence[Candidate], tried: Iterable[Candidate]
) -> Iterator[Candidate]:
    """Yield new candidates derived from ``best``, which is in order, fastest first.

    Alternately: the best one, with changes of other good ones for knobs that it leaves unchanged;
    the best one, with one knob set to another value or unchanged.
    """
    seen = {(0,) * len(knobs), *tried}
    merges = []
    for place, other in enumerate(best[1:], start=2):
        merges += [_over([best[0], other]), _over(best[:place])]
    sources = (
        _new(source, seen) for source in (merges, _neighbours(knobs, best[0]) if best else ())
    )
    for alternatives in zip_longest(*sources):
        yield from (candidate for candidate in alternatives if candidate is not None)


def _mix(knobs: Sequence[Knob], seed: int) -> Iterator[Candidate]:
    """Yield random candidates that change at least two knobs; they may repeat."""
    generator = Random(seed)
    for _ in range(1000):
        candidate = [
            generator.randint(0, 1) * generator.randint(1, len(knob.values)) for knob in knobs
        ]
        if sum(map(bool, candidate)) > 1:
            yield tuple(candidate)


def _neighbours(knobs: Sequence[Knob], candidate: Candidate) -> Iterator[Candidate]:
    """Yield the candidates that differ in one knob, in order of the index of its value."""
    for value in range(max((len(knob.values) for knob in knobs), default=0) + 1):
        for place, knob in enumerate(knobs):
            if value <= len(knob.values):
                yield (*candidate[:place], value, *candidate[place + 1 :])


def _over(candidates: Sequence[Candidate]) -> Candidate:
    """Return the union of the candidates' changes; for a knob that several change, the first one
    wins.
    """
    return tuple(next(filter(None, values), 0) for values in zip(*candidates, strict=True))


def _new(candidates: Iterable[Candidate], seen: set[Candidate]) -> Iterator[Candidate]:
    """Yield the candidates that are not in ``seen``, and add them to it."""
    for candidate in candidates:
        if candidate not in seen:
            seen.add(candidate)
            yield candidate
