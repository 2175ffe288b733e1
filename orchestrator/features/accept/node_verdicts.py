"""Verdicts of an acceptance, entered in the project's memory of nodes."""

from __future__ import annotations

import typer

from orchestrator.features.accept.certificate import Certificate
from orchestrator.record import Project
from orchestrator.record.node_states import SUSPECT, apply_verdicts, change, now
from orchestrator.report.text import one_line


def remember(project: Project, certificate: Certificate) -> None:
    """Store what an acceptance has found out about its nodes, and say which became suspect or good
    again.
    """
    verdicts = {
        node.host: (node.verdict, node.address, "; ".join(node.why[:2])[:300])
        for node in certificate.nodes
    }
    before, after = change(
        project.nodes,
        lambda known: apply_verdicts(known, verdicts, certificate.acceptance_id, now()),
    )
    for host, state in after.items():
        was_suspect = host in before and before[host].state == SUSPECT
        if state.state == SUSPECT and not was_suspect:
            typer.echo(
                one_line(
                    f"accept: {host} is suspect from now on, and left out of benches: orch nodes"
                ),
                err=True,
            )
        elif was_suspect and state.state != SUSPECT:
            typer.echo(one_line(f"accept: {host} is good again"), err=True)
