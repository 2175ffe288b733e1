"""Timing of training steps on a GPU, by its own events. PyTorch 1.13 or newer, Python 3.8 or newer."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch
from trainer import Skips, Step, computed_in


class DeviceClock:
    """Timing of steps on a GPU, by events, so that the device's queue never runs empty for the sake
    of a log line.

    After step k the host waits for step k-2. `t` is the host's clock at one synchronised moment
    plus the device's own time since then. Loss and loss scale are copied into pinned memory after
    their step: `.item()` would wait for everything queued. The device's wait for input is the time
    between two of its own events: a host that waits while the device computes costs nothing.
    Whether the GPU has begun with a step is asked without waiting for it. ``scale`` is the initial
    loss scale.
    """

    def __init__(self, steps: int, scale: float = 1.0) -> None:
        self.losses = torch.zeros(steps + 1, pin_memory=True)
        self.scales = torch.ones(steps + 1, pin_memory=True)
        self.skips = Skips(scale)
        self.queued: deque[tuple[int, Any, Any, Any]] = deque()
        self.forward: Any = None

    def start(self) -> float:
        """Wait until the device is idle; return the monotonic clock."""
        torch.cuda.synchronize()
        self.last = torch.cuda.Event(enable_timing=True)
        self.last.record()
        self.last.synchronize()
        self.t = time.monotonic()
        return self.t

    def begin(self) -> None:
        """Record that the images of the next step are ready, or will be when the device gets here."""
        self.begun = torch.cuda.Event(enable_timing=True)
        self.begun.record()
        self.begun_host_s = time.perf_counter()

    def stamp(self, name: str) -> None:
        """Record the end of a part of the step; only that of `forward` is kept."""
        if name == "forward":
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self.forward = event, time.perf_counter() - self.begun_host_s, self.begun.query()

    def mark(self, number: int, loss: torch.Tensor, scale: Any) -> list[Step]:
        """Record the end of a step that is still queued; return the steps that are finished by now."""
        self.losses[number].copy_(loss, non_blocking=True)
        if isinstance(scale, torch.Tensor):
            self.scales[number].copy_(scale, non_blocking=True)
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.queued.append((number, self.begun, self.forward, event))
        self.forward = None
        return [self._oldest()] if len(self.queued) > 2 else []

    def rest(self) -> list[Step]:
        """Wait for the device; return the steps not yet returned."""
        return [self._oldest() for _ in range(len(self.queued))]

    def _oldest(self) -> Step:
        number, begun, forward, event = self.queued.popleft()
        event.synchronize()
        waited, seconds = (self.last.elapsed_time(end) / 1000.0 for end in (begun, event))
        computed, waits = computed_in(begun, forward)
        self.last, self.t = event, self.t + seconds
        skipped = self.skips.after(float(self.scales[number]))
        return Step(
            number,
            self.t,
            seconds,
            float(self.losses[number]),
            waited,
            skipped,
            computed,
            gpu_waits=waits,
        )
