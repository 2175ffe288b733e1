"""The values that campaign, launch and watch all need to execute the runs of a bench, passed on as
one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.controller.events import Observer
from orchestrator.controller.peer import Interrupt
from orchestrator.nodes.cluster import Cluster
from orchestrator.plan import Limits


@dataclass(frozen=True, slots=True)
class Stage:
    """The environment in which runs are executed.

    ``journal(event, **fields)`` records a transition durably. ``observe(event)`` shows progress and
    never decides anything. ``interrupt`` is set by a signal, including during a run.
    """

    cluster: Cluster
    limits: Limits
    interrupt: Interrupt
    journal: Callable[..., None]
    observe: Observer
