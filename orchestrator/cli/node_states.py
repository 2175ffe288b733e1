"""Hosts that the project remembers as suspect or out are left out of a bench: ``--with-suspects`` keeps the suspect ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import Selection

if TYPE_CHECKING:
    from orchestrator.analysis.accept import Certificate
    from orchestrator.record import Project

__all__ = ["Gate", "WithSuspects", "remember", "without_suspects"]

WithSuspects = Annotated[
    bool, typer.Option("--with-suspects", help="Keep hosts that orch nodes lists as suspect, to test them again.")
]

Gate = Annotated[
    str, typer.Option("--gate", metavar="SUITE", help="First run this suite of orch accept, and go on without nodes that fail.")
]


def without_suspects(selection: Selection, keep: bool = False) -> Selection:
    """Return the selection without hosts that are suspect or out; each is named on stderr with its reason, and in its notes.

    ``keep``: only without those that are out. Raises ConfigError if none is left.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.record.node_states import OUT, SUSPECT, node_states
    from orchestrator.report.text import one_line

    known = node_states(selection.project.nodes)
    unwanted = (OUT,) if keep else (OUT, SUSPECT)
    left_out = {
        host.name: state
        for host in selection.hosts
        if (state := known.get(host.name)) and state.is_of(host.name, host.address) and state.state in unwanted
    }
    if not left_out:
        return selection
    notes = [
        f"left out: {name} is {state.state} since {state.since}: {state.reason} ({state.evidence or 'orch nodes'})"
        for name, state in left_out.items()
    ]
    for note in notes:
        typer.echo(one_line(note), err=True)
    hosts = tuple(host for host in selection.hosts if host.name not in left_out)
    if not hosts:
        hint = "orch accept quick --with-suspects tests suspect nodes again; orch nodes --good takes any back"
        raise ConfigError("expected a host that is good, all are suspect or out", where="orch nodes", hint=hint)
    return replace(selection, hosts=hosts, notes=(*selection.notes, *notes))


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
