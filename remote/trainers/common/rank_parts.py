"""The parts of a rank's steps in the measured window, which every rank prints once, at its end.

All steps of a synchronous run take equally long on all ranks; what a rank does before it first
communicates does not, and tells a slow rank from those that wait for it. Python 3.6 or newer,
standard library only: train_simulated.py uses it too.

    orch parts {"compute_cpu_s": [0.0724, …], "compute_s": [0.0731, …], "first_step": 21, "input_s": [0.0002, …], …}

`step_s`, `input_s` and `compute_s` are the medians of consecutive blocks of steps, in seconds: of
whole steps, of the wait for the step's input, and of computing from then on until the rank first
communicates. `compute_s` is empty where that moment is not known, or where computing waits for
other ranks before it. `compute_cpu_s` is the processor time of all threads of the rank during
`compute_s`; empty where a GPU computes, or where it is not measured. `gpu_waits`, where a GPU
computes, is the share of the window's steps in which the GPU waits for its program to give it work
during `compute_s`, 0 to 1: ranks of such steps differ by chance.
"""

import argparse
import json
import math
from statistics import median
from typing import Any, Dict, Iterable, List, Optional, Tuple

import rank_progress
import trainer

BLOCKS = 16
"""Enough for an interval, and for a stretch of slow steps to be seen; more would say little more.
"""

NAMES = ("step_s", "input_s", "compute_s", "compute_cpu_s")
Parts = Tuple[Optional[float], ...]
"""Seconds of a step, as `NAMES`: all of it, the wait for its input, computing after that and before
the first communication, and the processor time of that."""


class RankParts:
    """The steps of the window by blocks. ``first`` and ``last``: the numbers of its steps."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.steps = last - first + 1
        self.count = min(BLOCKS, self.steps)
        self.block: List[Parts] = []
        self.medians: List[Parts] = []
        self.gpu_waits: List[Optional[bool]] = []

    def add(
        self,
        number: int,
        step_s: float,
        input_s: float,
        compute_s: Optional[float],
        compute_cpu_s: Optional[float] = None,
        gpu_waits: Optional[bool] = None,
    ) -> None:
        """Add a step; steps come in order, and those outside the window do not count.
        ``gpu_waits``: whether the GPU waited for its program; None where that is not known."""
        if not self.first <= number <= self.last:
            return
        self.block.append((step_s, input_s, compute_s, compute_cpu_s))
        self.gpu_waits.append(gpu_waits)
        done = number - self.first + 1
        if done * self.count // self.steps > len(self.medians):
            self.medians.append(
                tuple(None if None in part else median(part) for part in zip(*self.block))
            )
            self.block = []

    def line(self, rank: int) -> str:
        """Return the line that the rank prints."""
        facts: Dict[str, Any] = {"rank": rank, "first_step": self.first, "last_step": self.last}
        for name, column in zip(NAMES, zip(*self.medians)):
            facts[name] = [] if None in column else [round(seconds, 9) for seconds in column]
        known = [waits for waits in self.gpu_waits if waits is not None]
        if known and len(known) == len(self.gpu_waits):
            facts["gpu_waits"] = round(sum(known) / len(known), 4)
        return "parts " + json.dumps(facts, sort_keys=True)


class StepLog:
    """The lines of a rank about its steps: rank 0 prints each, every rank the parts of its own."""

    def __init__(self, args: argparse.Namespace, rank: int, samples: int, clock: Any) -> None:
        self.args, self.rank, self.samples, self.clock = args, rank, samples, clock
        self.window = RankParts(args.warmup_steps + 1, args.steps)
        self.input_wait_s = 0.0

    def start(self, skipped: Optional[int] = None, loss: Optional[float] = math.nan) -> None:
        """Start the clock. ``loss`` is None for a program that learns nothing."""
        begun = self.clock.start()
        if self.rank == 0:
            trainer.say_start(begun, skipped, loss)

    def tell(self, finished: Iterable[trainer.Step]) -> None:
        """Print finished steps, and count the steps of the window."""
        for step in finished:
            if self.rank == 0:
                trainer.say_step(step, self.samples)
            compute = (step.compute_s, step.compute_cpu_s, step.gpu_waits)
            self.window.add(step.number, step.seconds, step.input_wait_s, *compute)
            if step.number > self.args.warmup_steps:
                self.input_wait_s += step.input_wait_s

    def end(self, has_parts: bool = True) -> None:
        """Wait for the last step, and print the parts of all, if they are known."""
        self.tell(self.clock.rest())
        if has_parts:
            trainer.say(self.window.line(self.rank))
        rank_progress.mark(self.args.steps, "end")
