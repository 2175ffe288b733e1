"""The certificate of an acceptance as one HTML page, in the style of the page of a bench, without scripts or other files."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from importlib.resources import files

from orchestrator.analysis.accept import Certificate
from orchestrator.report.accept import subjects
from orchestrator.report.html.environment import environment

__all__ = ["render"]


def render(certificate: Certificate) -> str:
    """Return the page. The same certificate gives the same bytes."""
    folder = files(__package__)
    css = folder.joinpath("page.css").read_text(encoding="utf-8")
    template = folder.joinpath("certificate.html.j2").read_text(encoding="utf-8")
    return (
        environment()
        .from_string(template)
        .render(
            css=css,
            style_hash=b64encode(hashlib.sha256(css.encode()).digest()).decode(),
            certificate=certificate,
            subjects=subjects(certificate),
            hosts=[node.host for node in certificate.nodes],
            verdicts=[(verdict, certificate.of_verdict(verdict)) for verdict in ("fail", "undecided", "pass")],
        )
    )
