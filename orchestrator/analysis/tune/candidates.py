"""The choices that a tune may try.

A candidate says for each knob which of its values it takes; 0 is none, so ``(0, 0, …)`` is the default, what holds without a
tune.

>>> knobs = (Knob(("NCCL_ALGO",), "", (("Ring",), ("Tree",))), Knob((), "bucket_cap_mb", ((50,), (100,))))
>>> design(knobs, seed=1, count=3)
((1, 0), (1, 1), (2, 1))
>>> settings(knobs, (2, 1))
({'NCCL_ALGO': 'Tree'}, {'bucket_cap_mb': 50})
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice, zip_longest
from typing import Any

from orchestrator.plan import Knob, RunSpec
from orchestrator.plan.spec import as_written

__all__ = ["Candidate", "applicable", "applied", "children", "design", "settings", "written"]


Candidate = tuple[int, ...]


def applicable(
    knobs: Iterable[Knob], networks: Sequence[str], spec: RunSpec, env: Mapping[str, str], *, numerics: bool
) -> tuple[Knob, ...]:
    """Return the knobs that make sense for a spec, with the values that are none of what holds already.

    ``networks`` are those that NCCL chose, as `nccl.networks` names them; none: it did not speak. One node uses none of them.
    ``env`` holds the variables that are alike on all hosts. Knobs that change what is computed come where that is allowed only.
    """
    between = networks if spec.nodes > 1 else ()
    spoken = {name.removeprefix("NET/").split(" ")[0] for name in between} | ({"any"} if networks else set())
    held = {**spec.options, **env, **spec.env}
    found = []
    for knob in knobs:
        now = tuple(held.get(name) for name in knob.env or (knob.option,))
        values = tuple(value for value in knob.values if value != now)
        if values and (not knob.networks or spoken & set(knob.networks)) and (numerics or not knob.numerics):
            found.append(replace(knob, values=values))
    return tuple(found)


def written(knobs: Sequence[Knob], candidate: Candidate) -> str:
    """Return what a candidate sets, in words."""
    env, options = settings(knobs, candidate)
    return " ".join(f"{name}={as_written(value)}" for name, value in {**env, **options}.items()) or "the default"


def settings(knobs: Sequence[Knob], candidate: Candidate) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the variables and the options that a candidate sets."""
    env: dict[str, str] = {}
    options: dict[str, Any] = {}
    for knob, taken in zip(knobs, candidate, strict=True):
        if taken:
            (env if knob.env else options).update(zip(knob.env or (knob.option,), knob.values[taken - 1], strict=True))
    return env, options


def applied(spec: RunSpec, knobs: Sequence[Knob], candidate: Candidate) -> RunSpec:
    """Return the spec of a candidate: ``spec`` with what the candidate sets, which it calls its origin."""
    env, options = settings(knobs, candidate)
    origins = {f"env.{name}": "tune" for name in env} | {f"options.{name}": "tune" for name in options}
    return replace(spec, env={**spec.env, **env}, options={**spec.options, **options}, origins={**spec.origins, **origins})


def design(knobs: Sequence[Knob], seed: int, count: int) -> tuple[Candidate, ...]:
    """Return the first ``count`` candidates, fewer where there are no more: each knob alone, then several at once by chance.

    A quarter of them turn one knob, the first value of each knob before the second of any, so what is likely to matter is tried
    in however little time. The others turn each knob with the chance of a coin, to any of its values: a run costs as much
    whatever it turns, and tells of several knobs at once. (By simulation a quarter finds more than a half, or all.)
    """
    alone = list(_alone(knobs))
    return tuple(islice(_new(chain(alone[: math.ceil(count / 4)], _mixed(knobs, seed), alone), set()), count))


def children(knobs: Sequence[Knob], best: Sequence[Candidate], tried: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield new candidates made of the best ones, which come in order.

    In turns: the very best, with what others of the best turn and it leaves alone; the very best, with one knob turned
    otherwise, or not at all.
    """
    seen = {(0,) * len(knobs), *tried}
    merges = []
    for place, other in enumerate(best[1:], start=2):
        merges += [_over([best[0], other]), _over(best[:place])]
    sources = (_new(source, seen) for source in (merges, _neighbours(knobs, best[0]) if best else ()))
    for turn in zip_longest(*sources):
        yield from (candidate for candidate in turn if candidate is not None)


def _alone(knobs: Sequence[Knob]) -> Iterator[Candidate]:
    for taken in range(1, max((len(knob.values) for knob in knobs), default=0) + 1):
        for place, knob in enumerate(knobs):
            if taken <= len(knob.values):
                yield tuple(taken if place == other else 0 for other in range(len(knobs)))


def _mixed(knobs: Sequence[Knob], seed: int) -> Iterator[Candidate]:
    """Yield candidates by chance, but none with fewer than two knobs turned; the same one may come again."""
    for number in range(1000 if len(knobs) > 1 else 0):
        turned = [_drawn(2, seed, number, place) for place in range(len(knobs))]
        if sum(turned) > 1:
            values = [1 + _drawn(len(knob.values), seed, number, place, "value") for place, knob in enumerate(knobs)]
            yield tuple(value * turn for value, turn in zip(values, turned, strict=True))


def _drawn(below: int, *path: int | str) -> int:
    """Return a whole number below another by chance: always the same one at the same path."""
    return int.from_bytes(hashlib.sha256(repr(path).encode()).digest()[:8], "big") % below


def _neighbours(knobs: Sequence[Knob], candidate: Candidate) -> Iterator[Candidate]:
    """Yield the candidates that differ in one knob, by the value that it takes there."""
    for taken in range(max((len(knob.values) for knob in knobs), default=0) + 1):
        for place, knob in enumerate(knobs):
            if taken <= len(knob.values):
                yield (*candidate[:place], taken, *candidate[place + 1 :])


def _over(candidates: Sequence[Candidate]) -> Candidate:
    """Return what these turn together; of two that turn one knob, the first says how."""
    return tuple(next(filter(None, values), 0) for values in zip(*candidates, strict=True))


def _new(candidates: Iterable[Candidate], seen: set[Candidate]) -> Iterator[Candidate]:
    """Yield those that nobody has seen, and note that they have been."""
    for candidate in candidates:
        if candidate not in seen:
            seen.add(candidate)
            yield candidate
