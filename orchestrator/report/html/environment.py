"""What the templates of all pages have in common: how values get into them."""

from __future__ import annotations

import shlex

from jinja2 import Environment, StrictUndefined

from orchestrator.inventory import fold
from orchestrator.report.text import one_line, visible
from orchestrator.results.numbers.rounding import written

__all__ = ["environment"]


def environment() -> Environment:
    """Return the environment of a template: every value is escaped, and a missing one is an error."""
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
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
