"""A trace of a few steps of this rank by PyTorch's own profiler, where the run is an extra one for
that. PyTorch 1.13, Python 3.8 or newer.

`ORCH_PROFILE=steps=5 ranks=0,3` says how many steps after the warm-up, and of which ranks. The
trace is logs/trace-rank-<rank>.json.gz, in the format of Chrome's traces, in which each step is an
annotation `orch step <number>`. Without the variable nothing is done.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch


class Profiler:
    """The profiler of a rank. ``first`` is the number of the first step after the warm-up."""

    def __init__(self, rank: int, first: int, device: torch.device) -> None:
        asked = dict(word.split("=", 1) for word in os.environ.get("ORCH_PROFILE", "").split())
        self.device, self.first = device, first
        chosen = bool(asked) and str(rank) in asked["ranks"].split(",")
        self.last = first + int(asked["steps"]) - 1 if chosen else 0
        self.path = Path("logs").absolute() / f"trace-rank-{rank}.json.gz"
        self.profile: Any = None

    def step(self, number: int) -> Any:
        """Return the context in which a step is taken. Before the first traced one, wait until the
        device is idle.
        """
        if not self.first <= number <= self.last:
            self.end()
            return nullcontext()
        if self.profile is None:
            self._settle()
            kinds = [torch.profiler.ProfilerActivity.CPU]
            if self.device.type == "cuda":
                kinds.append(torch.profiler.ProfilerActivity.CUDA)
            self.profile = torch.profiler.profile(activities=kinds)
            self.profile.start()
        return torch.profiler.record_function(f"orch step {number}")

    def end(self) -> None:
        """Write the trace, if one was begun and is not yet written."""
        if self.profile is None:
            return
        self._settle()
        self.profile.stop()
        self.profile.export_chrome_trace(str(self.path))
        self.profile, self.last = None, 0

    def _settle(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
