"""Hosts that the project remembers as suspect or out are left out of a bench: ``--with-suspects`` keeps the suspect ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.api.selection import Selection
from orchestrator.cli.options import say

if TYPE_CHECKING:
    from collections.abc import Collection

    from orchestrator.features.accept.certificate import Certificate
    from orchestrator.record import Project

__all__ = ["Gate", "WithSuspects", "remember", "without_suspects"]

WithSuspects = Annotated[
    bool, typer.Option("--with-suspects", help="Keep hosts that orch nodes lists as suspect, to retest them.")
]

Gate = Annotated[
    str | None,
    typer.Option("--gate", metavar="SUITE", help="Run this orch accept suite first; continue without nodes that fail it."),
]


def without_suspects(selection: Selection, keep: bool = False, failed: Collection[str] = ()) -> Selection:
    """Return the selection without hosts that are suspect or out, and tell it on stderr.

    ``keep``: without those that are out, and of those that are suspect without those that have ``failed`` again.
    """
    from orchestrator.api import selection as hosts

    stay = [host.name for host in selection.hosts if host.name not in failed] if keep else ()
    return hosts.without_suspects(selection, stay, say=say)


def remember(project: Project, certificate: Certificate) -> None:
    """Store what an acceptance has found out about its nodes, and say which became suspect or good again."""
    from orchestrator.record.node_states import SUSPECT, change, judged, now
    from orchestrator.report.text import one_line

    verdicts = {node.host: (node.verdict, node.address, "; ".join(node.why[:2])[:300]) for node in certificate.nodes}
    before, after = change(project.nodes, lambda known: judged(known, verdicts, certificate.acceptance_id, now()))
    for host, state in after.items():
        was_suspect = host in before and before[host].state == SUSPECT
        if state.state == SUSPECT and not was_suspect:
            typer.echo(one_line(f"accept: {host} is suspect from now on, and left out of benches: orch nodes"), err=True)
        elif was_suspect and state.state != SUSPECT:
            typer.echo(one_line(f"accept: {host} is good again"), err=True)
