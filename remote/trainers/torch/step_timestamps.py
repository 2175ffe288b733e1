"""Moments of steps by the clock that fits the device, and collectives that run while something is
computed.
"""

from __future__ import annotations

import time
from statistics import median
from typing import Any, Callable, Sequence

import torch


def ignore_stamp(_: str) -> None:
    """Record no moment."""


class Stamps:
    """Moments of steps, each named for the part that ends there, on the device's own clock or on
    the host's.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.steps: list[dict[str, Any]] = []

    def begin(self) -> None:
        """Begin a step, whose first moment is `start`."""
        self.steps.append({})
        self("start")

    def __call__(self, name: str) -> None:
        """Record a moment; on a GPU, of the current stream."""
        self.steps[-1][name] = self.now()

    def now(self, stream: Any = None) -> Any:
        """Return the present moment; on a GPU, of a stream, by default the current one."""
        if self.device.type == "cpu":
            return time.monotonic()
        event = torch.cuda.Event(enable_timing=True)
        event.record(stream or torch.cuda.current_stream())
        return event

    def begin_reduction(self, begin: Sequence[Callable[[], Any]], aside: Any) -> Callable[[], Any]:
        """Begin collectives, one after the other, and record the end of all as `reduced`; return a
        function that waits for it.

        ``begin``: calls with ``async_op``, which return their work. ``aside``: a stream that
        nothing else uses. On a CPU the thread that completes the last collective records the end.
        """
        works = [call() for call in begin]
        if self.device.type == "cuda":
            with torch.cuda.stream(aside):
                for work in works:
                    work.wait()  # the stream waits, not the host
                self("reduced")
            return lambda: torch.cuda.current_stream().wait_stream(aside)
        futures = [work.get_future().then(lambda _: self("reduced")) for work in works]
        return torch.futures.collect_all(futures).wait

    def between(self, start: str, end: str) -> float | None:
        """Return the median seconds over the later half of the steps. None if a moment is missing."""
        later = self.steps[len(self.steps) // 2 :]
        if not later or not all(start in step and end in step for step in later):
            return None
        if self.device.type == "cpu":
            return round(median(step[end] - step[start] for step in later), 9)
        torch.cuda.synchronize(self.device)
        return round(median(step[start].elapsed_time(step[end]) for step in later) / 1000.0, 9)


BESIDE = ("solo_reduce_s", "beside_forward_s", "beside_backward_s", "beside_reduce_s")
"""What `time_beside` returns."""


def time_beside(
    begin: Sequence[Callable[[], Any]],
    both: Stamps,
    steps: int,
    take: Callable[[int, Callable[[str], None]], Any],
    first: str = "start",
    micro_batches: int = 1,
) -> dict[str, Any]:
    """Make collectives, alone and then during backward passes that neither feed nor await them;
    return the seconds.

    ``take`` takes a step of this number, recorded in ``both``, and calls what it gets after each
    forward and each backward pass. ``first``: the moment at which a forward pass begins.
    """
    aside = torch.cuda.Stream(both.device) if both.device.type == "cuda" else None
    separate = Stamps(both.device)
    for _ in range(steps):
        separate.begin()
        separate.begin_reduction(begin, aside)()
    ends: list[Callable[[], Any]] = []
    forwards: list[str] = []

    def stamp(name: str) -> None:
        if name == "forward":
            forwards.append(name)
            if len(forwards) % micro_batches == 0:
                ends.append(both.begin_reduction(begin, aside))
        if name == "backward" and ends:
            ends.pop()()

    for number in range(steps):
        take(number, stamp)
    spans = ((first, "forward"), ("forward", "backward"), ("forward", "reduced"))
    seconds = [separate.between("start", "reduced"), *(both.between(*span) for span in spans)]
    return dict(zip(BESIDE, seconds))
