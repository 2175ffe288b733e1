"""What the log of a program means: patterns, scope and window, as a framework folder says it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

__all__ = ["LogGrammar"]


@dataclass(frozen=True, slots=True)
class LogGrammar:
    """What a program prints, as data.

    ``files``: globs, relative to a node's log folder, of the files that hold samples. ``nodes``: ``first`` or ``every``,
    whose files are read. ``patterns``: regular expressions with the named group ``step`` and one or more of
    ``samples_per_s``, ``step_time_s``, ``steps_per_s``, ``elapsed_s``, ``timestamp``, ``samples``. ``scope``: ``global``
    where a rate speaks of the whole run, ``node`` where of the devices of one node, ``process`` where of one rank;
    ``scope_by`` is the same for single values of options.
    ``cumulative``: a rate covers all steps so far. ``counts_from``: the number that the program gives to its first step.
    ``after_warmup``: it does its warm-up uncounted, so its first step is the first of the window.
    ``rank``: pattern of the line by which each rank proves who it is (groups ``rank``, ``world_size``).
    ``closing``: pattern of the last line, group ``json`` with the facts of the run. ``nccl_files``: globs of the files in
    which NCCL speaks of itself. ``readings``: pattern of each line that a program has which trains nothing, instead of
    ``patterns``; what its groups mean, those know who read that kind of measurement.
    """

    files: tuple[str, ...]
    patterns: tuple[str, ...] = ()
    nodes: str = "first"
    scope: str = "global"
    scope_by: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    cumulative: bool = False
    counts_from: int = 1
    after_warmup: bool = False
    rank: str = ""
    rank_files: tuple[str, ...] = ()
    closing: str = ""
    nccl_files: tuple[str, ...] = ()
    readings: str = ""

    def with_options(self, options: Mapping[str, Any]) -> LogGrammar:
        """Return what holds for a run with these options."""
        scopes = (table[options[name]] for name, table in self.scope_by.items() if options.get(name) in table)
        return replace(self, scope=next(scopes, self.scope), scope_by={})
