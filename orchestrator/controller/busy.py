"""Nodes that another run holds: who holds them, and the wait until they are free."""

from __future__ import annotations

import time
from collections.abc import Sequence

from orchestrator.controller.events import Waiting
from orchestrator.controller.stage import Stage
from orchestrator.errors import Faults, OrchError, RunError
from orchestrator.nodes.conversation import owner_words
from orchestrator.nodes.fanout import each

_LEAVING_S = 1.0
"""The supervisor of a run that has just ended may need a moment to exit."""
_POLL_S = 1.0


def is_busy(error: OrchError | None) -> bool:
    """Return whether a run was not started because another run holds a node."""
    return error is not None and any(fault.kind == "node_busy" for fault in error.errors)


def wait_until_free(stage: Stage, hosts: Sequence[str]) -> None:
    """Wait until no other run holds any of these connected nodes, or for an interrupt.

    Raises Faults of RunError node_busy, which name the holder of each node, after
    ``limits.wait_s``.
    """
    began = time.monotonic()
    shown: dict[str, str] = {}
    while holders := _holders(stage, hosts):
        waited_s = time.monotonic() - began
        if stage.interrupt.signal:
            return
        if waited_s >= max(_LEAVING_S, stage.limits.wait_s):
            raise Faults(
                [_busy(host, holder, stage.limits.wait_s) for host, holder in holders.items()]
            )
        if waited_s >= _LEAVING_S and holders != shown:
            stage.observe(Waiting(holders))
            shown = holders
        time.sleep(_POLL_S if shown else 0.1)


def _holders(stage: Stage, hosts: Sequence[str]) -> dict[str, str]:
    nodes = stage.cluster.nodes
    # Preflight asks next, and reports a node that does not answer together with all other faults.
    answers, _ = each(hosts, lambda name: nodes[name].ask("status", timeout_s=stage.limits.ask_s))
    return {
        name: owner_words(str(answer["owner"]))
        for name, answer in answers.items()
        if answer.get("owner")
    }


def _busy(host: str, holder: str, waited_s: float) -> RunError:
    limit = f" after {waited_s:g} s of waiting" if waited_s else ""
    hint = "orch status shows that run; --wait waits until the node is free; orch cancel ends runs of this user"
    return RunError(
        f"another run holds this node{limit}: {holder}",
        kind="node_busy",
        host=host,
        phase="preflight",
        hint=hint,
    )
