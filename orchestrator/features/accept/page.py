"""The certificate of an acceptance as one HTML page, in the style of the page of a bench, without scripts or other files."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from collections.abc import Sequence
from importlib.resources import files

from orchestrator.features.accept.certificate import Certificate
from orchestrator.features.accept.report import figure_cells, figures_by_group, found, seen, subjects
from orchestrator.report.html.navigation import Link
from orchestrator.report.html.template import environment

__all__ = ["render"]


def render(certificate: Certificate, links: Sequence[Link] = ()) -> str:
    """Return the page, with ``links`` to other pages of a site. The same certificate gives the same bytes."""
    folder = files("orchestrator.report.html")
    css = folder.joinpath("page.css").read_text(encoding="utf-8")
    template = files(__package__).joinpath("certificate.html.j2").read_text(encoding="utf-8")
    return (
        environment()
        .from_string(template)
        .render(
            css=css,
            style_hash=b64encode(hashlib.sha256(css.encode()).digest()).decode(),
            links=links,
            certificate=certificate,
            subjects=subjects(certificate),
            seen=seen(certificate),
            found=found(certificate),
            figures=[(title, list(map(figure_cells, figures))) for title, figures in figures_by_group(certificate)],
            hosts=[node.host for node in certificate.nodes],
            verdicts=[(verdict, certificate.of_verdict(verdict)) for verdict in ("fail", "undecided", "pass")],
        )
    )
