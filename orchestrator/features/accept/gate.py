"""`orch bench --gate`: a short suite on the hosts of a bench, which goes on without those that fail
it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.node_states import without_suspects
from orchestrator.features.accept.certificate_files import certify, seal_certificate
from orchestrator.features.accept.command import begin_acceptance, hold
from orchestrator.features.accept.node_verdicts import remember
from orchestrator.features.accept.suite_plan import in_words, plan_suite

if TYPE_CHECKING:
    from orchestrator.api.selection import Selection
    from orchestrator.plan import Limits


def describe_gate(suite: str, selection: Selection, bases: Sequence[Path]) -> str:
    """Return the plan of a suite on these hosts, in words. Raises ConfigError for an invalid suite."""
    plan = plan_suite(suite, selection, bases, None, "--gate")
    return in_words(plan, len(selection.hosts))


def run_gate(
    selection: Selection,
    suite: str,
    bases: Sequence[Path],
    limits: Limits,
    *,
    accept_new: bool,
    with_suspects: bool,
) -> Selection:
    """Run a short suite on the hosts of a bench, and return the selection without those that fail.

    ``with_suspects``: a host that was suspect before stays if its verdict is open. Raises
    Regression if what fails is not a node, or no host is left. An open verdict is named, and the
    bench goes on.
    """
    from orchestrator.errors import Regression
    from orchestrator.features.accept.report import lines

    plan = plan_suite(suite, selection, bases, None, "--gate")
    acceptance = begin_acceptance(
        plan, selection, bases, limits, budget_s=None, accept_new=accept_new
    )
    with hold(acceptance.folder):
        acceptance.carry_out()
        certificate = certify(acceptance.folder)
    remember(selection.project, certificate)
    seal_certificate(acceptance.folder, None)
    for line in lines(certificate):
        typer.echo(line, err=True)
    failed = [
        finding
        for finding in (*certificate.links, *certificate.cluster)
        if finding.verdict == "fail"
    ]
    if failed:
        where = f"--gate {suite}"
        raise Regression(
            f"{failed[0].subject}: {failed[0].text}", kind="expectation_not_met", where=where
        )
    return without_suspects(
        selection,
        with_suspects,
        {node.host for node in certificate.nodes if node.verdict == "fail"},
    )
