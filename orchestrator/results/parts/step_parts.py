"""The parts of a step that a training program reports in its last line, and their typical values
over several runs.

The line comes from a node: a value that is not a valid number is treated as missing, and missing
values are None.

>>> line = {"solo_step_s": [0.042, 0.044], "input_wait_s": [0.1, 0.2], "gradient_bytes": 30_000_000}
>>> parts = parse_step_parts(line, window_steps=100)
>>> parts.solo_mean_s, parts.solo_max_s, parts.input_s, parts.buckets_bytes
(0.043, 0.044, 0.002, (26214400, 3785600))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.results import mean, median
from orchestrator.results.parts.overlap import Sharing, sharing_of
from orchestrator.results.parts.transfers import Transfer, transfers_in, typical_transfers

_MIB = 1 << 20
_ABSURD = 1e13
"""Above any number of bytes of gradients or of seconds."""
_MOST_BUCKETS = 10_000
_BUCKET_CAP_MIB = 25
"""The default of DistributedDataParallel."""
_ALONE_AND_BESIDE = ("solo_backward_s", "solo_reduce_s", "beside_backward_s", "beside_reduce_s")


@dataclass(frozen=True, slots=True)
class StepParts:
    """The measured parts of a step, in seconds per step; empty or None if not known.

    ``transfers`` are all collectives of a step, None for a program that reports its gradients
    alone, by their buckets: ``buckets_bytes`` are in the order in which they are reduced;
    ``is_cut_here`` if the program reported only their sum; ``ready`` are the shares of the backward
    pass after which each bucket is complete. ``solo_mean_s`` and ``solo_max_s`` are mean and
    maximum over the ranks, for steps without communication that all ranks run at the same time.
    ``reduce_s`` is the time to reduce all buckets one after the other while nothing is computed.
    ``input_s`` is the wait for data of the rank that waited longest. ``backward`` is the share of a
    step that the backward pass takes. ``sharing`` is how the backward pass and simultaneous
    all-reduces slow each other, ``slowed`` the factor by which the forward pass of such a step
    takes longer. ``graphs``: how the program was compiled, in its own word.
    """

    buckets_bytes: tuple[int, ...] = ()
    is_cut_here: bool = False
    ready: tuple[float, ...] = ()
    solo_mean_s: float | None = None
    solo_max_s: float | None = None
    reduce_s: float | None = None
    input_s: float | None = None
    backward: float | None = None
    slowed: float | None = None
    sharing: Sharing | None = None
    transfers: tuple[Transfer, ...] | None = None
    graphs: str = ""


def parse_step_parts(
    observed: Mapping[str, Any], window_steps: int, bucket_cap_mb: Any = None
) -> StepParts:
    """Return the step parts in a program's last line; ``window_steps`` is the number of steps over
    which it summed its waits.

    If it reports the bytes of its gradients but neither buckets nor all its collectives, and does
    not say that it holds the model in shards, they are cut into pieces of ``bucket_cap_mb`` MiB.
    """
    buckets = _numbers(observed.get("gradient_buckets_bytes"))
    is_cut = not buckets and "collectives" not in observed and observed.get("parallel") != "fsdp"
    cut = _cut(observed, bucket_cap_mb) if is_cut else ()
    solo, waits = (
        _numbers(observed.get("solo_step_s")),
        _numbers(observed.get("input_wait_s"), least=0.0),
    )
    slowed, sharing = _read_probe(observed)
    reduce = _numbers(observed.get("solo_reduce_s"))
    backward, ready = (
        _numbers(observed.get("solo_backward_s")),
        _numbers(observed.get("gradient_ready_s")),
    )
    if len(ready) != len(buckets) or not backward:
        ready = ()
    return StepParts(
        buckets_bytes=tuple(map(int, buckets)) or cut,
        is_cut_here=bool(cut),
        ready=tuple(min(1.0, ready_s / backward[0]) for ready_s in ready),
        solo_mean_s=mean(solo) if solo else None,
        solo_max_s=max(solo, default=None),
        reduce_s=median(reduce) if reduce else None,
        input_s=max(waits) / window_steps if waits else None,
        backward=min(1.0, median(backward) / median(solo)) if backward and solo else None,
        slowed=slowed,
        sharing=sharing,
        transfers=transfers_in(observed.get("collectives"), solo[0], len(solo)) if solo else None,
        graphs=split[:40] if isinstance(split := observed.get("compile_split"), str) else "",
    )


def typical(runs: Sequence[StepParts]) -> StepParts:
    """Return typical values of several runs: the median of each number over the runs that report
    it, the buckets of one.
    """
    first = max(
        runs, key=lambda run: (bool(run.buckets_bytes), bool(run.ready)), default=StepParts()
    )
    compute = _median(runs, lambda run: run.sharing.compute if run.sharing else None)
    reduce = _median(runs, lambda run: run.sharing.reduce if run.sharing else None)
    return StepParts(
        buckets_bytes=first.buckets_bytes,
        is_cut_here=first.is_cut_here,
        ready=first.ready,
        solo_mean_s=_median(runs, lambda run: run.solo_mean_s),
        solo_max_s=_median(runs, lambda run: run.solo_max_s),
        reduce_s=_median(runs, lambda run: run.reduce_s),
        input_s=_median(runs, lambda run: run.input_s),
        backward=_median(runs, lambda run: run.backward),
        slowed=_median(runs, lambda run: run.slowed),
        sharing=None if compute is None or reduce is None else Sharing(compute, reduce),
        transfers=typical_transfers([run.transfers for run in runs]),
        graphs=" or ".join(dict.fromkeys(run.graphs for run in runs)),
    )


def _cut(observed: Mapping[str, Any], bucket_cap_mb: Any) -> tuple[int, ...]:
    total = sum(_numbers(observed.get("gradient_bytes"))[:1])
    cap = int(next(iter(_numbers(bucket_cap_mb)), _BUCKET_CAP_MIB)) * _MIB
    whole, rest = divmod(int(total), cap)
    if whole >= _MOST_BUCKETS:
        return ()
    return (*[cap] * whole, rest) if rest else (cap,) * whole


def _read_probe(observed: Mapping[str, Any]) -> tuple[float | None, Sharing | None]:
    """Return the results of steps during all-reduces: the factor by which the forward pass is
    slower, and how a backward pass slower by the same factor and the all-reduces slow each other.
    """
    forward, overlapped = (
        _numbers(observed.get("solo_forward_s")),
        _numbers(observed.get("beside_forward_s")),
    )
    times = [_numbers(observed.get(name)) for name in _ALONE_AND_BESIDE]
    if not forward or len({len(forward), len(overlapped), *map(len, times)}) != 1:
        return None, None
    slowed = max(1.0, median(overlapped) / median(forward))
    probes = [sharing_of(alone * slowed, *others) for alone, *others in zip(*times, strict=True)]
    return slowed, Sharing(
        median([probe.compute for probe in probes]), median([probe.reduce for probe in probes])
    )


def _median(runs: Sequence[StepParts], value: Callable[[StepParts], float | None]) -> float | None:
    values = [number for number in map(value, runs) if number is not None]
    return median(values) if values else None


def _numbers(value: Any, least: float = math.ulp(0.0)) -> tuple[float, ...]:
    """Return a number or a list of numbers as floats; empty if any of them is not a number or out
    of bounds.
    """
    values = value if isinstance(value, list) else [value]
    good = all(type(number) in (int, float) and least <= number < _ABSURD for number in values)
    return tuple(map(float, values)) if good else ()
