"""The templates of this package: every value is escaped, and nothing runs or is loaded but the style and script of the page."""

from __future__ import annotations

import hashlib
import shlex
from base64 import b64encode
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined

from orchestrator.inventory import fold
from orchestrator.report.cells import number, reach, repeats
from orchestrator.report.html.navigation import address
from orchestrator.report.text import one_line, visible
from orchestrator.results.numbers.rounding import written

__all__ = ["environment", "fill", "fill_page", "fill_section"]

_STYLES, _SCRIPTS = ("page.css", "site.css"), ("site.js",)


def fill(template: str, **values: Any) -> str:
    """Return a page of a site from its template; ``links`` and ``here``, the text of the one that is this page, are values."""
    css, script = ("".join(map(_text, names)) for names in (_STYLES, _SCRIPTS))
    filled = environment()
    filled.filters |= {"address": address, "value": number, "reach": reach}
    filled.globals |= {"repeats": repeats}
    return filled.get_template(template).render(
        css=css, style_hash=_digest(css), script=script, script_hash=_digest(script), **values
    )


def fill_section(package: str, **values: Any) -> str:
    """Return the markup of a section from the template `section.html.j2` of a feature's package."""
    template = files(package).joinpath("section.html.j2").read_text(encoding="utf-8")
    return environment().from_string(template).render(**values)


def fill_page(package: str, template: str, **values: Any) -> str:
    """Return a page without scripts from a template of a feature's package, in the style of the page of a bench."""
    css = _text("page.css")
    text = files(package).joinpath(template).read_text(encoding="utf-8")
    return environment().from_string(text).render(css=css, style_hash=_digest(css), **values)


def environment() -> Environment:
    """Return the environment of the templates of this package: every value is escaped, and a missing one is an error."""
    environment = Environment(
        loader=FunctionLoader(_text),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "line": one_line,
        "text": visible,
        "fold": fold,
        "number": lambda value: "–" if value is None else written(value, ","),
        "ms": lambda seconds: "–" if seconds is None else f"{seconds * 1e3:.3f}",
        "command": lambda words: one_line(shlex.join(words)),
    }
    return environment


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return b64encode(hashlib.sha256(text.encode()).digest()).decode()
