"""The certificate of an acceptance as one HTML page, in the style of the page of a bench, without
scripts or other files.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.features.accept.certificate import Certificate
from orchestrator.features.accept.report import (
    describe_power,
    figure_cells,
    figures_by_group,
    list_observations,
    subjects,
)
from orchestrator.report.html.navigation import Link
from orchestrator.report.html.template import fill_page


def render(certificate: Certificate, links: Sequence[Link] = ()) -> str:
    """Return the page, with ``links`` to other pages of a site. The same certificate gives the same
    bytes.
    """
    return fill_page(
        __package__,
        "certificate.html.j2",
        links=links,
        certificate=certificate,
        subjects=subjects(certificate),
        seen=list_observations(certificate),
        found=describe_power(certificate),
        figures=[
            (title, list(map(figure_cells, figures)))
            for title, figures in figures_by_group(certificate)
        ],
        hosts=[node.host for node in certificate.nodes],
        verdicts=[
            (verdict, certificate.of_verdict(verdict)) for verdict in ("fail", "undecided", "pass")
        ],
    )
