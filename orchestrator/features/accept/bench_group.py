"""An acceptance as a group of benches: how it is found, sealed, continued, and shown by a site."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.features.accept.record import AcceptanceDir, acceptances

if TYPE_CHECKING:
    from orchestrator.report.html.navigation import Link

GROUP = AcceptanceDir
groups = acceptances


def group_at(path: Path) -> AcceptanceDir | None:
    """Return the acceptance in a folder; None if it holds none."""
    folder = AcceptanceDir(path)
    return folder if folder.is_one else None


def contents(acceptance: AcceptanceDir) -> dict[str, Any]:
    """Return the contents of its archive besides files: the certificate, and its entry in lists."""
    from orchestrator.analysis.past_cells import dump_past_bench
    from orchestrator.api.sealing import history_of_archive
    from orchestrator.features.accept.certificate import certificate_of
    from orchestrator.results.read import read_run

    record, certificate = acceptance.record(), certificate_of(acceptance).as_dict()
    benches = [bench for _, bench in acceptance.stages()]
    history = history_of_archive(
        record.acceptance_id,
        record.created,
        record.suite,
        runs=sum(len(bench.record().runs) for bench in benches),
        measured=sum(stage["measured"] for stage in certificate["stages"] if stage["bench_id"]),
        benches={
            bench.path.name: dump_past_bench(
                bench, bench.path.name, list(map(read_run, bench.runs()))
            )
            for bench in benches
        },
    )
    return {"tables": certificate, "history": history}


def overview(acceptance: AcceptanceDir, links: Sequence[Link]) -> tuple[dict[str, Any], str]:
    """Return its entry in the overviews of a site, and its page.

    Raises OrchError if its certificate cannot be computed.
    """
    from orchestrator.features.accept.certificate import certificate_of
    from orchestrator.features.accept.page import render

    certificate = certificate_of(acceptance)
    shown = {
        "created": certificate.created,
        "suite": certificate.suite,
        "title": certificate.title,
        "verdict": certificate.verdict,
        "nodes": {node.host: (node.verdict, "; ".join(node.why)) for node in certificate.nodes},
        "not_tested": len(certificate.not_tested),
    }
    return shown, render(certificate, links)


def resume(
    acceptance: AcceptanceDir, *, accept_new: bool, retry_failed: bool, as_json: bool
) -> None:
    """Finish an acceptance whose process is gone."""
    from orchestrator.features.accept.command import go_on

    go_on(acceptance, accept_new=accept_new, retry_failed=retry_failed, as_json=as_json)
