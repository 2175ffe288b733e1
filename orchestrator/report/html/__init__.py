"""A bench as one HTML page: `page` fills the template, `charts` draws, `svg` makes a drawing part of the page."""

from orchestrator.report.html.page import render

__all__ = ["render"]
