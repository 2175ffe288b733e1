"""Monitors: features that watch a run for more than failures of its nodes, and may end it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from orchestrator.controller.peer import Peer
from orchestrator.controller.stage import Stage
from orchestrator.errors import OrchError
from orchestrator.feature import providers
from orchestrator.plan.render import Plan


class RunMonitor(Protocol):
    """A monitor of one run, in the thread that watches it."""

    def take(self, name: str, event: Mapping[str, Any]) -> None:
        """Take an event of a node about the progress of its ranks. Raises KeyError, TypeError or
        ValueError if malformed.
        """

    def turn(self, now: float, peers: Mapping[str, Peer]) -> str:
        """Return the reason to stop the run, empty without one; called about ten times a second."""

    def outcome(self, state: str, error: OrchError | None) -> tuple[str, OrchError | None]:
        """Return the state and the first cause of a run as this monitor knows them."""

    def evidence(self, error: OrchError | None) -> Mapping[str, Any]:
        """Return evidence for the manifest of a run that ended with this error, by key."""


class Monitors:
    """All monitors of one run. A module that provides one has ``monitor(plan, stage)``."""

    def __init__(self, plan: Plan, stage: Stage) -> None:
        self._monitors: tuple[RunMonitor, ...] = tuple(
            module.monitor(plan, stage) for module in providers("run_monitor")
        )

    def take(self, name: str, event: Mapping[str, Any]) -> None:
        """Hand an event of a node to every monitor."""
        for monitor in self._monitors:
            monitor.take(name, event)

    def turn(self, now: float, peers: Mapping[str, Peer]) -> str:
        """Return the first reason to stop the run, empty without one."""
        reasons = [monitor.turn(now, peers) for monitor in self._monitors]
        return next(filter(None, reasons), "")

    def outcome(self, state: str, error: OrchError | None) -> tuple[str, OrchError | None]:
        """Return the state and the first cause of a run as all monitors know them."""
        for monitor in self._monitors:
            state, error = monitor.outcome(state, error)
        return state, error

    def evidence(self, error: OrchError | None) -> dict[str, Any]:
        """Return evidence for the manifest of a run that ended with this error, by key."""
        return {
            key: value
            for monitor in self._monitors
            for key, value in monitor.evidence(error).items()
        }
