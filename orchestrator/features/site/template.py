"""Fill the templates of the pages of a site; nothing runs or is loaded but their style and script."""

from __future__ import annotations

from typing import Any

from orchestrator.report.cells import number, reach, repeats, result
from orchestrator.report.html.navigation import address
from orchestrator.report.html.template import environment, hash_of, read_text


def fill(template: str, **values: Any) -> str:
    """Return a page; ``links`` and ``here``, the text of the one that is this page, are values."""
    css = read_text("page.css") + read_text("site.css", __package__)
    script = read_text("site.js", __package__)
    filled = environment(__package__)
    filled.filters |= {"address": address, "value": number, "reach": reach, "result": result}
    filled.globals |= {"repeats": repeats}
    return filled.get_template(template).render(
        css=css, style_hash=hash_of(css), script=script, script_hash=hash_of(script), **values
    )
