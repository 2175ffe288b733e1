"""An extra run of each configuration that no table counts: a few of its steps as traces of chosen
ranks.

>>> str(read_extra_runs("torch:ranks=0,3")), read_extra_runs("torch").ranks_of(4)
('torch:steps=5:ranks=0,3', (0, 3))
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from orchestrator.errors import ConfigError
from orchestrator.plan.framework import Framework
from orchestrator.plan.spec import RunSpec

_VARIABLE = "ORCH_PROFILE"
_PROFILER = "torch_profile.py"
_MOST_STEPS, _MOST_RANKS = 50, 16
_LEAST_STEPS = 16
"""Steps from which on every way to take a step of our trainers is the final one."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The extra runs of a bench: the number of traced steps after the warm-up, and the traced
    ranks.

    Without ``ranks``, the first and the last rank are traced.
    """

    steps: int = 5
    ranks: tuple[int, ...] = ()

    def __str__(self) -> str:
        ranks = f":ranks={','.join(map(str, self.ranks))}" if self.ranks else ""
        return f"torch:steps={self.steps}{ranks}"

    def ranks_of(self, world_size: int) -> tuple[int, ...]:
        """Return the ranks that are traced of so many."""
        return tuple(
            rank for rank in self.ranks or dict.fromkeys((0, world_size - 1)) if rank < world_size
        )

    def check_frameworks(self, frameworks: Iterable[Framework]) -> None:
        """Raise ConfigError for a folder whose program cannot trace its steps."""
        for framework in frameworks:
            if _PROFILER not in framework.payload:
                message = (
                    f"expected a framework whose trainer traces its steps, got {framework.name}"
                )
                hint = "pytorch and pytorch_lm do"
                raise ConfigError(message, where="--profile", hint=hint)

    def check(self, cells: Sequence[RunSpec]) -> None:
        """Raise ConfigError if no configuration has any of these ranks."""
        most = max((cell.world_size for cell in cells), default=1)
        if not self.ranks_of(most):
            raise ConfigError(f"expected ranks from 0 to {most - 1}, got {self}", where="--profile")

    def spec_of(self, cell: RunSpec) -> RunSpec | None:
        """Return the spec of a configuration's extra run, with no more steps than the traces need.

        None if it has none of the ranks.
        """
        ranks = self.ranks_of(cell.world_size)
        if not ranks:
            return None
        steps = min(cell.steps, max(cell.warmup_steps + self.steps, _LEAST_STEPS))
        traced = min(self.steps, steps - cell.warmup_steps)
        text = f"steps={traced} ranks={','.join(map(str, ranks))}"
        origins = {**cell.origins, f"env.{_VARIABLE}": "--profile"}
        return replace(cell, steps=steps, env={**cell.env, _VARIABLE: text}, origins=origins)

    def name_of(self, bench_id: str, index: int, cell: RunSpec) -> str:
        """Return the id of the extra run of a configuration, counted from 1. No code parses it."""
        words = (f"profile-{index:03d}", cell.framework, cell.model, cell.shape, cell.dtype)
        return f"{bench_id}.{'-'.join(words)}"


def read_extra_runs(text: str) -> Profile:
    """Read ``--profile torch[:steps=N][:ranks=R,…]``. Raises ConfigError."""
    tool, *settings = text.split(":")
    if tool != "torch":
        hint = "steps and ranks may follow: torch:steps=5:ranks=0,3"
        if tool == "nsys":
            hint = "nsys is not supported"
        raise ConfigError(f"expected torch, got {tool!r}", where="--profile", hint=hint)
    given = {}
    for setting in settings:
        match = re.fullmatch(r"(steps)=(\d{1,3})|(ranks)=(\d{1,6}(?:,\d{1,6})*)", setting, re.ASCII)
        if not match:
            raise ConfigError(
                f"expected steps=N or ranks=R,… after torch, got {setting!r}", where="--profile"
            )
        name, value = (group for group in match.groups() if group is not None)
        given[name] = value
    steps = int(given.get("steps", "5"))
    ranks = tuple(map(int, given["ranks"].split(","))) if "ranks" in given else ()
    if not 1 <= steps <= _MOST_STEPS:
        hint = "each step adds thousands of events to the trace"
        raise ConfigError(
            f"expected 1 to {_MOST_STEPS} steps, got {steps}", where="--profile", hint=hint
        )
    if len(ranks) > _MOST_RANKS:
        raise ConfigError(
            f"expected at most {_MOST_RANKS} ranks, got {len(ranks)}", where="--profile"
        )
    return Profile(steps, tuple(dict.fromkeys(ranks)))
