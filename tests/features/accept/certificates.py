"""What tests ask of a certificate."""

from __future__ import annotations

from orchestrator.features.accept.certificate import Certificate
from orchestrator.features.accept.verdicts import Judged

CHECK = {
    "host": "node2",
    "name": "alike",
    "verdict": "warning",
    "found": "driver 570",
    "expected": "driver 580",
    "hint": "equal",
}


def judged(certificate: Certificate, kind: str) -> Judged:
    (bar,) = [bar for bar in certificate.judged if bar.kind == kind]
    return bar


def verdicts(certificate: Certificate) -> dict[str, str]:
    return {node.host: node.verdict for node in certificate.nodes}
