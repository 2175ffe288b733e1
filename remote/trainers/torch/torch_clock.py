"""Timing of training steps on a GPU, by its own events. PyTorch 1.13 or newer, Python 3.8 or newer."""

from __future__ import annotations

from typing import Any

import torch
from trainer import EventClock


class DeviceClock(EventClock):
    """The clock of ``steps`` steps. Loss and loss scale are copied into pinned memory after their
    step: `.item()` would wait for everything queued.
    """

    def __init__(self, steps: int, scale: float = 1.0) -> None:
        super().__init__(scale)
        self.losses = torch.zeros(steps + 1, pin_memory=True)
        self.scales = torch.ones(steps + 1, pin_memory=True)

    def event(self) -> Any:
        """Return an event of the current stream."""
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def settle(self) -> None:
        """Wait until the device is idle."""
        torch.cuda.synchronize()

    def keep(self, number: int, loss: torch.Tensor, scale: Any) -> tuple[Any, Any]:
        """Copy loss and loss scale, without waiting."""
        self.losses[number].copy_(loss, non_blocking=True)
        if isinstance(scale, torch.Tensor):
            self.scales[number].copy_(scale, non_blocking=True)
        return self.losses[number], self.scales[number]
