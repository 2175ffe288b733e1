"""The candidates of a tune.

A candidate has an index of a value for each knob, counted from 1; 0 leaves a knob unchanged, so
``(0, 0, …)`` is the default.

>>> knobs = (Knob(("NCCL_ALGO",), "", (("Ring",), ("Tree",))), Knob((), "bucket_cap_mb", ((50,), (100,))))
>>> design(knobs, seed=1, count=3)
((1, 0), (1, 1), (2, 1))
>>> settings(knobs, (2, 1))
Settings(env={'NCCL_ALGO': 'Tree'}, options={'bucket_cap_mb': 50}, batch_size=None)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest
from typing import Any, NamedTuple

from orchestrator.features.search.record import Candidate
from orchestrator.plan import Framework, Knob, RunSpec
from orchestrator.plan.spec import as_written, with_batch_size

__all__ = [
    "Settings",
    "applicable",
    "applied",
    "batch_sizes",
    "children",
    "design",
    "settings",
    "written",
]

DEFAULT = "the default"


class Settings(NamedTuple):
    """What a candidate sets: environment variables, options, and the batch size, None if it is that
    of the default.
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

    ``facts`` are those that the first run reported: what `Knob.when` names, and under ``networks`` those that NCCL chose, as
    `nccl.networks` names them; empty if NCCL was not used. A single node uses none of them. ``env`` holds the variables that
    are equal on all hosts. Knobs that change computed numbers require ``numerics``. The batch size
    is no knob where it follows from the global batch, or each run finds its own.
    """
    networks = facts.get("networks", ())
    between = networks if spec.nodes > 1 else ()
    transports = {name.removeprefix("NET/").split(" ")[0] for name in between} | (
        {"any"} if networks else set()
    )
    held = {**spec.options, **env, **spec.env, "batch_size": spec.batch_size}
    usable = []
    for knob in knobs:
        current = tuple(held.get(name) for name in knob.names)
        possible = tuple(batch_sizes(knob, spec)) if knob.multiplies else knob.values
        values = tuple(value for value in possible if value != current)
        if any(facts.get(name) not in among for name, among in knob.when.items()):
            continue
        if (
            values
            and (not knob.networks or transports & set(knob.networks))
            and (numerics or not knob.numerics)
        ):
            usable.append(replace(knob, values=values))
    return tuple(usable)


def written(knobs: Sequence[Knob], candidate: Candidate) -> str:
    """Return the settings of a candidate as text."""
    chosen = settings(knobs, candidate)
    size = {"batch_size": chosen.batch_size} if chosen.batch_size else {}
    return (
        " ".join(
            f"{name}={as_written(value)}"
            for name, value in {**size, **chosen.env, **chosen.options}.items()
        )
        or DEFAULT
    )


def settings(knobs: Sequence[Knob], candidate: Candidate) -> Settings:
    """Return what a candidate sets."""
    env: dict[str, str] = {}
    options: dict[str, Any] = {}
    sizes: dict[str, int] = {}
    for knob, index in zip(knobs, candidate, strict=True):
        if index:
            of_knob: dict[str, Any] = env if knob.env else options if knob.option else sizes
            of_knob.update(zip(knob.names, knob.values[index - 1], strict=True))
    return Settings(env, options, sizes.get("batch_size"))


def applied(
    spec: RunSpec, framework: Framework, knobs: Sequence[Knob], candidate: Candidate
) -> RunSpec:
    """Return the spec of a candidate: ``spec`` with the candidate's settings, whose origin is
    ``tune``, and with its global batch if that is constant. Raises ConfigError if that is
    impossible."""
    env, options, batch_size = settings(knobs, candidate)
    origins = {f"env.{name}": "tune" for name in env} | {
        f"options.{name}": "tune" for name in options
    }
    origins |= {"batch_size": "tune"} if batch_size else {}
    spec = replace(spec, env={**spec.env, **env}, origins={**spec.origins, **origins})
    return with_batch_size(
        spec, framework, batch_size or spec.batch_size, {**spec.options, **options}
    )


def batch_sizes(knob: Knob, spec: RunSpec) -> Iterator[tuple[int]]:
    """Yield the batch sizes that the factors of a knob give, in order; those that are no whole
    number are left out. There are none where the batch size follows from the global batch, or each
    run finds its own."""
    if spec.follows == "batch_size" or spec.step.batch_size_up_to:
        return
    for (factor,) in knob.values:
        if (size := spec.batch_size * factor) >= 1 and size == int(size):
            yield (int(size),)


def design(knobs: Sequence[Knob], seed: int, count: int) -> tuple[Candidate, ...]:
    """Return the first ``count`` candidates, or all if there are fewer: single knobs, then random
    combinations.

    A quarter of them change one knob, the first value of every knob before any second value, so
    that the most promising values are tried even in little time. The others change each knob with
    probability 1/2, to a random value: a run takes equally long whatever it changes, and tests
    several knobs at once. (In simulations a quarter of single knobs found more than a half, or
    all.)
    """
    alone = list(_alone(knobs))
    return tuple(
        islice(_new(chain(alone[: math.ceil(count / 4)], _mixed(knobs, seed), alone), set()), count)
    )


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


def _alone(knobs: Sequence[Knob]) -> Iterator[Candidate]:
    for value in range(1, max((len(knob.values) for knob in knobs), default=0) + 1):
        for place, knob in enumerate(knobs):
            if value <= len(knob.values):
                yield tuple(value if place == other else 0 for other in range(len(knobs)))


def _mixed(knobs: Sequence[Knob], seed: int) -> Iterator[Candidate]:
    """Yield random candidates that change at least two knobs; they may repeat."""
    for number in range(1000 if len(knobs) > 1 else 0):
        changed = [_drawn(2, seed, number, place) for place in range(len(knobs))]
        if sum(changed) > 1:
            values = [
                1 + _drawn(len(knob.values), seed, number, place, "value")
                for place, knob in enumerate(knobs)
            ]
            yield tuple(value * turn for value, turn in zip(values, changed, strict=True))


def _drawn(below: int, *path: int | str) -> int:
    """Return a pseudorandom integer from 0 to ``below`` - 1, always the same for the same path."""
    return int.from_bytes(hashlib.sha256(repr(path).encode()).digest()[:8], "big") % below


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
