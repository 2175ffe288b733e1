"""The time that the collectives of a step add to it: from the step's own parts and separate
measurements of each collective.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from orchestrator.features.explain.buckets import Bucket, buckets_of, reduce_buckets
from orchestrator.features.explain.curve import REACH, Curve
from orchestrator.plural import plural
from orchestrator.results.parts.overlap import ALONE, Sharing, Timed, elapsed_s
from orchestrator.results.parts.step_parts import StepParts
from orchestrator.results.parts.transfers import Link, Transfer

BACKWARD = 2 / 3
"""Share of a step, if not measured: the backward pass computes two gradients, the forward pass one
output.
"""
SLOWED_BY_SOCKETS = 1.36
"""Factor by which computing takes longer while NCCL uses sockets, if only the speed of a shape was
measured. It was measured in one run of four nodes that share a host, and is applied to similar
runs."""


@dataclass(frozen=True, slots=True)
class Collective:
    """A measured collective of a shape and its source. ``uncertain``: the times may be off by this
    share.
    """

    curve: Curve
    source: str
    uncertain: float = 0.0


Measured = Mapping[Link, Collective]


@dataclass(frozen=True, slots=True)
class Model:
    """A step of ranks that compute for ``compute_s`` and send ``transfers``. ``measured`` has a
    curve for each of them.
    """

    compute_s: float
    transfers: tuple[Transfer, ...]
    measured: Measured
    sharing: Sharing

    def step_s(self) -> float:
        """Return the seconds of the step."""
        timed = [
            Timed(
                self._time_s(transfer),
                transfer.begins * self.compute_s,
                transfer.needed * self.compute_s,
            )
            for transfer in self.transfers
        ]
        return elapsed_s(self.compute_s, timed, self.sharing)

    def sent_s(self) -> float:
        """Return the seconds of all transfers, one after the other and alone."""
        return math.fsum(map(self._time_s, self.transfers))

    def slower(self, sign: int) -> Model:
        """Return the model with all curves as far off as they may be: 1 for a slower network, -1
        for a faster one.
        """
        scaled = {
            link: replace(
                collective, curve=collective.curve.scale((1 + collective.uncertain) ** sign)
            )
            for link, collective in self.measured.items()
        }
        return replace(self, measured=scaled)

    def _time_s(self, transfer: Transfer) -> float:
        return self.measured[transfer.link].curve.time_s(transfer.size_bytes)


def largest_sizes(parts: StepParts) -> dict[Link, int]:
    """Return the collectives of a step and the largest size of each, in bytes; empty if they are
    not known.
    """
    largest: dict[Link, int] = {}
    for transfer in _transfers(parts, "", 0.0):
        largest[transfer.link] = max(transfer.size_bytes, largest.get(transfer.link, 0))
    return largest


def model_of(
    model: str, parts: StepParts, compute_s: float, measured: Measured, sockets: bool
) -> tuple[Model | None, str]:
    """Return the model of a step whose ranks compute for ``compute_s``, None without one, and its
    inputs, or the missing ones.

    ``model`` names the network that is trained; ``sockets``: NCCL used sockets.
    """
    if parts.transfers is None and not parts.buckets_bytes:
        return None, "the program did not report what ranks send each other in a step"
    largest = largest_sizes(parts)
    lacking = [str(link) for link in sorted(largest) if link not in measured]
    if lacking:
        return (
            None,
            f"{' and '.join(lacking)} of this shape {'was' if len(lacking) == 1 else 'were'} not measured",
        )
    for link, size_bytes in sorted(largest.items()):
        if not measured[link].curve.reaches(size_bytes):
            return None, _too_short(link, measured[link], size_bytes)
    assumed = sockets and parts.slowed is None and parts.solo_mean_s is None
    slowed = SLOWED_BY_SOCKETS if assumed else parts.slowed or 1.0
    backward = parts.backward or BACKWARD
    made = Model(
        compute_s * slowed, _transfers(parts, model, backward), measured, parts.sharing or ALONE
    )
    sources = " and ".join(dict.fromkeys(measured[link].source for link in sorted(largest)))
    if parts.transfers is None:
        in_runs = f" ({ms(parts.reduce_s)} in these runs)" if parts.reduce_s else ""
        inputs = [
            _buckets(parts),
            f"all-reduced in {ms(made.sent_s())} according to {sources}{in_runs}",
        ]
        inputs.append(
            f"during a backward pass of {backward:.0%} of a step{' (assumed)' if parts.backward is None else ''}"
        )
        return made, ", ".join([*inputs, _slowdown(parts, slowed, assumed)])
    text = f"{_count(parts.transfers)}, in {ms(made.sent_s())} according to {sources}"
    if all(transfer.begins == transfer.needed for transfer in parts.transfers):
        return made, f"{text}, during which nothing is computed"
    in_runs = ""
    if parts.reduce_s:
        in_runs = f" (those of the last backward pass in {ms(parts.reduce_s)} in these runs)"
    return made, f"{text}{in_runs}, at measured times, {_slowdown(parts, slowed, assumed)}"


def _transfers(parts: StepParts, model: str, backward: float) -> tuple[Transfer, ...]:
    if parts.transfers is not None:
        return parts.transfers
    buckets = buckets_of(parts.buckets_bytes, model)
    if parts.ready:
        buckets = tuple(
            Bucket(bucket.size_bytes, share)
            for bucket, share in zip(buckets, parts.ready, strict=True)
        )
    return reduce_buckets(buckets, backward)


def _buckets(parts: StepParts) -> str:
    count, megabytes = len(parts.buckets_bytes), sum(parts.buckets_bytes) / 1e6
    sizes = ", sizes assumed" if parts.is_cut_here else ""
    ready = "measured" if parts.ready else "assumed"
    return f"{plural(count, 'bucket')} of {megabytes:.1f} MB ready at {ready} times{sizes}"


def _count(transfers: tuple[Transfer, ...]) -> str:
    """Return how often a step makes each collective, and the bytes of all of them."""
    counts, sizes = Counter(transfer.link for transfer in transfers), Counter[Link]()
    for transfer in transfers:
        sizes[transfer.link] += transfer.size_bytes
    return ", ".join(f"{count} {link} of {_size(sizes[link])}" for link, count in counts.items())


def _size(size_bytes: int) -> str:
    if size_bytes >= 50_000:
        return f"{size_bytes / 1e6:.1f} MB"
    return f"{size_bytes} bytes"


def _too_short(link: Link, collective: Collective, largest_bytes: int) -> str:
    ends_bytes = collective.curve.points[-1][0]
    return (
        f"the sizes of {link} in {collective.source} end at {ends_bytes} bytes, and the largest of a step has {largest_bytes}, "
        f"{largest_bytes / ends_bytes:.0f} times as many: times are not extrapolated by more than a factor of {REACH}"
    )


def _slowdown(parts: StepParts, slowed: float, assumed: bool) -> str:
    if parts.sharing:
        lost = f"{parts.sharing.compute:.0%} of its speed and reducing {parts.sharing.reduce:.0%}"
        text = f"during which computing loses {lost} (measured)"
        if slowed > 1.0005:
            return f"{text}; the whole step {slowed - 1:.1%} slower"
        return text
    if assumed:
        return f"computing {slowed:g} times as slow with sockets (assumed)"
    return "neither slowing the other (assumed)"


def ms(seconds: float) -> str:
    """Return a time as text, in milliseconds."""
    return f"{1e3 * seconds:.2f} ms"
