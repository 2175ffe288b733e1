"""Time that ranks wait in collectives for each other, from the traces of several ranks.

A collective begins on a rank when that rank has come to it, and transfers nothing before the last
rank has. Clocks of two nodes need not agree for that: the rank that comes last is the one on which
the collective takes least time, and what it takes longer on another rank is how long that one
waited, at its begin. If not all ranks were traced, a rank that was not may have come later still,
and the result is the least that was waited.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from orchestrator.features.profile.spans import Span, common, length, unite, without
from orchestrator.features.profile.trace import Recorded, Trace

_GROUPS = ("tensor_parallel", "pipeline_parallel", "replicas")
"""Options of trainers with which not all ranks take part in each collective, though all may have as
many of them.
"""


def with_waits(
    recordings: Sequence[Recorded], options: Mapping[str, Any] = MappingProxyType({})
) -> list[Trace]:
    """Return the traces, each with its share of exposed waiting; None if there is one alone, or
    they differ in their collectives, or by the ``options`` of the run ranks are in groups of their
    own."""
    if any(options.get(name, 1) != 1 for name in _GROUPS):
        return [own.trace for own in recordings]
    first = recordings[0].sends if recordings else {}
    counts = {name: len(spans) for name, spans in first.items()}
    alike = all(
        {name: len(spans) for name, spans in own.sends.items()} == counts for own in recordings
    )
    if len(recordings) < 2 or not counts or not alike:
        return [own.trace for own in recordings]
    least = {}
    for name in counts:
        least[name] = [
            min(end - begin for begin, end in same)
            for same in zip(*(own.sends[name] for own in recordings), strict=True)
        ]
    return [replace(own.trace, waiting=_waiting(own, least) / own.lasts) for own in recordings]


def _waiting(own: Recorded, least: dict[str, list[float]]) -> float:
    """Return for how long a rank was exposed to waits alone: while another collective transfers, it
    does not wait.
    """
    waits: list[Span] = []
    transfers: list[Span] = []
    for name, spans in own.sends.items():
        for (begin, end), transfer in zip(spans, least[name], strict=True):
            waits.append((begin, end - transfer))
            transfers.append((end - transfer, end))
    return length(
        common(
            own.exposed,
            without(unite(span for span in waits if span[0] < span[1]), unite(transfers)),
        )
    )
