"""A bench as one HTML page: `page` fills the template, `charts` draws, `svg` embeds a drawing in the page."""

from orchestrator.report.html.page import render

__all__ = ["render"]
