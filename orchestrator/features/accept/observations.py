"""Observations about nodes beside their numbers, which no bar judges."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from orchestrator.grouping import group_pairs
from orchestrator.results import RunResult
from orchestrator.results.hardware import load_notes, on_host, slowdown_notes
from orchestrator.results.summary import Summary
from orchestrator.results.telemetry.doubts import doubts_by_host

_Texts = Iterable[tuple[str, str]]
"""Hosts, and what was seen of them."""


def see(seen: dict[str, list[str]], stage: str, texts: _Texts) -> None:
    """Add to what was seen of hosts, each text once."""
    for host, text in texts:
        words = f"{stage}: {text}"
        if words not in seen.setdefault(host, []):
            seen[host].append(words)


def of_runs(summary: Summary, results: Sequence[RunResult]) -> _Texts:
    """Yield the ranks that others waited for, then what the samples of each node tell, of the runs
    of each configuration.
    """
    for row in summary.rows:
        for slow in row.slow:
            yield slow.host, slow.words
    for runs in _by_configuration(results).values():
        hosts = dict.fromkeys(host for run in runs for host in (*run.facts, *run.loaded))
        for host in hosts:
            of_host = on_host(host, runs)
            yield from ((host, text) for text in (*slowdown_notes(of_host), *load_notes(of_host)))
        for host, texts in doubts_by_host([run.use for run in runs]).items():
            yield from ((host, text) for text in texts)


def _by_configuration(results: Sequence[RunResult]) -> Mapping[str, list[RunResult]]:
    return group_pairs((repr(run.spec), run) for run in results if run.is_good and run.spec)


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """What an audit found on some hosts that is not as it should be, or could not be read."""

    hosts: tuple[str, ...]
    name: str
    verdict: str
    found: str
    expected: str
    hint: str


def fold_audit(checks: Sequence[Mapping[str, str]]) -> tuple[AuditFinding, ...]:
    """Return what an audit found that is not ok, once for all hosts with the same."""
    keys = ("name", "verdict", "found", "expected", "hint")
    folded = group_pairs(
        (tuple(check[key] for key in keys), check["host"])
        for check in checks
        if check["verdict"] != "ok"
    )
    return tuple(AuditFinding(tuple(hosts), *texts) for texts, hosts in folded.items())
