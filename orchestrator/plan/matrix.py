"""Combine lists of values into configurations, as the matrix of a build server does.

Every combination of the lists is one configuration, except those that an entry of ``exclude``
matches. An entry of ``include`` adds its other values to every combination whose values it does not
contradict; if there is none, it is a configuration of its own. The rules follow GitHub
Actions, ``jobs.<job_id>.strategy.matrix``.

>>> dtype, nodes = axis("dtype", ["fp32", "fp16"]), axis("nodes", [1, 2])
>>> for combination in combine([dtype, nodes], [], [{"nodes": 2, "steps": 90}], [{"dtype": "fp16", "nodes": 1}]):
...     print(combination)
{'dtype': 'fp32', 'nodes': 1}
{'dtype': 'fp32', 'nodes': 2, 'steps': 90}
{'dtype': 'fp16', 'nodes': 2, 'steps': 90}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

Axis = tuple[Mapping[str, Any], ...]
"""Alternatives, each of one or more values by name. All alternatives of an axis have the same
names.
"""


def axis(name: str, values: Iterable[Any]) -> Axis:
    """Return the axis of one name, each value once."""
    return tuple({name: value} for value in dict.fromkeys(values))


def names_of(axes: Iterable[Axis]) -> set[str]:
    """Return the names of these axes."""
    return {name for alternatives in axes for alternative in alternatives for name in alternative}


def combine(
    lists: Sequence[Axis],
    given: Sequence[Axis],
    include: Sequence[Mapping[str, Any]],
    exclude: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Return the configurations of the ``lists`` of a run file and of the lists ``given`` on the
    command line.

    A given list replaces one of the same name, and wins against a value of ``include``: an entry
    with another value of the replaced list is dropped. Every configuration of the file is combined
    with every combination of the given lists.
    """
    replaced = [
        alternatives for alternatives in given if names_of([alternatives]) & names_of(lists)
    ]
    own = [alternatives for alternatives in lists if not names_of([alternatives]) & names_of(given)]
    combinations = []
    if lists or not include:
        combinations = [_merge(parts) for parts in product(*own, *replaced)]
    kept = []
    for combination in combinations:
        if not any(_contains(combination, entry) for entry in exclude):
            kept.append(combination)
    extended, added = [dict(combination) for combination in kept], []
    for entry in include:
        matching = [place for place, combination in enumerate(kept) if _agree(combination, entry)]
        for place in matching:
            extended[place] |= {
                name: value for name, value in entry.items() if name not in kept[place]
            }
        if not matching:
            added.append(dict(entry))
    further = [alternatives for alternatives in given if alternatives not in replaced]
    return [
        combination
        for start in (*extended, *added)
        for combination in _combine_given(start, replaced, further)
    ]


def _combine_given(
    start: Mapping[str, Any], replaced: Sequence[Axis], further: Sequence[Axis]
) -> Iterator[dict[str, Any]]:
    """Yield a configuration with each combination of the given lists; none if it has another value
    of a replaced list.
    """
    agreeing = []
    for alternatives in replaced:
        agreeing.append([other for other in alternatives if _agree(start, other)])
    for parts in product(*agreeing, *further):
        yield {**start, **_merge(parts)}


def _agree(combination: Mapping[str, Any], alternative: Mapping[str, Any]) -> bool:
    return all(
        combination[name] == value for name, value in alternative.items() if name in combination
    )


def _contains(combination: Mapping[str, Any], entry: Mapping[str, Any]) -> bool:
    return all(name in combination and combination[name] == value for name, value in entry.items())


def _merge(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    return {name: value for part in parts for name, value in part.items()}
