"""Entries in a list of acceptances, from a certificate in JSON: of a project, or sealed in an
archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.documents import read


@dataclass(frozen=True, slots=True)
class PastAcceptance:
    """An acceptance that was made: when, in UTC, its suite, the verdict of the cluster, and its
    hosts in order. ``failed`` has for each node, link or cluster that failed its name and the first
    reason; ``undecided`` are the hosts of open verdicts, also of links and of the cluster."""

    acceptance_id: str
    created: str
    suite: str
    verdict: str
    hosts: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]
    undecided: tuple[str, ...]

    @classmethod
    def of_certificate(cls, content: Mapping[str, Any]) -> PastAcceptance:
        """Return the acceptance of a certificate. Raises Invalid."""
        certificate = read(_Certificate, content)
        nodes = certificate.nodes
        failed = [(node.host, (*node.why, "")[0]) for node in nodes if node.verdict == "fail"]
        findings = (*certificate.links, *certificate.cluster)
        also_failed = [
            (finding.subject, finding.text) for finding in findings if finding.verdict == "fail"
        ]
        is_open = {node.host for node in nodes if node.verdict == "undecided"}
        is_open.update(*(found.hosts for found in findings if found.verdict == "undecided"))
        return cls(
            certificate.acceptance_id,
            certificate.created,
            certificate.suite,
            certificate.verdict,
            hosts=tuple(node.host for node in nodes),
            failed=(*failed, *also_failed),
            undecided=tuple(node.host for node in nodes if node.host in is_open),
        )


@dataclass(frozen=True, slots=True)
class _Node:
    host: str
    verdict: str
    why: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Finding:
    subject: str
    text: str
    verdict: str
    hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Certificate:
    """The keys of a certificate that a list shows."""

    acceptance_id: str
    created: str
    suite: str
    verdict: str
    nodes: tuple[_Node, ...]
    links: tuple[_Finding, ...]
    cluster: tuple[_Finding, ...]


def oldest_first(made: Iterable[PastAcceptance]) -> tuple[PastAcceptance, ...]:
    """Return acceptances in the order in which they were made."""
    return tuple(sorted(made, key=lambda past: (past.created, past.acceptance_id)))
