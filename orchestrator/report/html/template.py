"""The templates of this package: every value is escaped, and nothing runs or is loaded but the
style and script of the page.
"""

from __future__ import annotations

import hashlib
import shlex
from base64 import b64encode
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined, Template

from orchestrator.inventory import fold
from orchestrator.report.text import one_line, visible
from orchestrator.results.numbers.rounding import format_number


def fill_section(package: str, **values: Any) -> str:
    """Return the markup of a section from the template `section.html.j2` of a feature's package."""
    return _template("section.html.j2", package).render(**values)


def fill_page(package: str, template: str, **values: Any) -> str:
    """Return a page without scripts from a template of a feature's package, in the style of the
    page of a bench.
    """
    css = read_text("page.css")
    return _template(template, package).render(css=css, style_hash=hash_of(css), **values)


@cache
def _template(name: str, package: str) -> Template:
    """Return a template of a feature's package; it can include the templates of this one."""
    return environment().from_string(read_text(name, package))


@cache
def environment(package: str = __package__) -> Environment:
    """Return the environment of the templates of a package: every value is escaped, and a missing
    one is an error.
    """
    environment = Environment(
        loader=FunctionLoader(lambda name: read_text(name, package)),
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
        "number": lambda value: "–" if value is None else format_number(value, ","),
        "ms": lambda seconds: "–" if seconds is None else f"{seconds * 1e3:.3f}",
        "command": lambda words: one_line(shlex.join(words)),
    }
    return environment


def read_text(name: str, package: str = __package__) -> str:
    """Return a file of a package."""
    return files(package).joinpath(name).read_text(encoding="utf-8")


def hash_of(text: str) -> str:
    """Return the SHA-256 with which a page allows a style or script."""
    return b64encode(hashlib.sha256(text.encode()).digest()).decode()
