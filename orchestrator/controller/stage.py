"""What campaign, launch and watch all need to carry out the runs of a bench, handed on whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.controller.events import Observer
from orchestrator.controller.peer import Interrupt
from orchestrator.nodes.cluster import Cluster
from orchestrator.plan import Limits

__all__ = ["Stage"]


@dataclass(frozen=True, slots=True)
class Stage:
    """Where and how runs are carried out.

    ``journal(event, **fields)`` makes a transition durable. ``observe(event)`` shows progress and never decides anything.
    ``interrupt`` is set by a signal, also while a run is going on.
    """

    cluster: Cluster
    limits: Limits
    interrupt: Interrupt
    journal: Callable[..., None]
    observe: Observer
