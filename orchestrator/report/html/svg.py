"""A matplotlib figure as SVG inside an HTML page: colours are the page's variables, so that charts
follow its dark mode.

Matplotlib writes a complete document with a header, metadata, inline styles and ids. Only the
drawing is kept: styles become attributes, because the page forbids inline styles; colours become
``var(--…)``; numbers keep one decimal. The same figure always gives the same text.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

COLOURS = {
    name: f"#0000{number:02x}"
    for number, name in enumerate(
        ("ink", "muted", "grid", "one", "two", "three", "four", "five", "bad", "wait", "band"),
        start=1,
    )
}
"""By name of the page's variable: the placeholder colour that is used in the drawing."""
_NAMES = {colour: name for name, colour in COLOURS.items()}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "orch",
    "text.parse_math": False,
    "font.size": 11,
    "axes.edgecolor": COLOURS["muted"],
    "axes.labelcolor": COLOURS["muted"],
    "axes.titlesize": 11,
    "axes.labelsize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.linewidth": 0.8,
    "axes.unicode_minus": True,
    "grid.color": COLOURS["grid"],
    "grid.linewidth": 0.8,
    "xtick.color": COLOURS["muted"],
    "ytick.color": COLOURS["muted"],
    "xtick.labelcolor": COLOURS["muted"],
    "ytick.labelcolor": COLOURS["muted"],
    "text.color": COLOURS["ink"],
    "path.simplify": True,
    "path.simplify_threshold": 0.3,
}
_TAG = re.compile(r"<[^>]*>")
_INLINE = re.compile(r' style="([^"]*)"')
_FRACTION = re.compile(r"(\d+\.\d)\d+")
_USED = re.compile(r'(?:href="|url\()#([^")]+)')
_ID = re.compile(r' id="([^"]*)"')
_DROPPED = {"font", "font-family", "stroke-linejoin", "stroke-miterlimit"}


@contextmanager
def drawing() -> Iterator[None]:
    """Draw figures in the style of the page, independent of the user's matplotlib settings."""
    with rc_context(_STYLE):
        yield


def inline(figure: Figure, label: str, prefix: str) -> str:
    """Return a figure as an ``<svg>`` element with ``label`` as text for screen readers and
    ``prefix`` before all ids.
    """
    buffer = io.StringIO()
    with warnings.catch_warnings():
        # The browser writes the texts, in a font of its own, and a key of a log may be of any
        # script.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(
            buffer, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
        )
    text = buffer.getvalue()
    body = text[text.index(">", text.index("<svg")) + 1 :]
    body = re.sub(
        r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", body, flags=re.DOTALL
    )
    body = _TAG.sub(lambda tag: _tag(tag[0]), body)
    used = set(_USED.findall(body))
    body = _ID.sub(lambda match: f' id="{prefix}{match[1]}"' if match[1] in used else "", body)
    body = re.sub(r"\s*\n\s*", " ", re.sub(r'(href="|url\()#', rf"\1#{prefix}", body))
    width, height = (round(72 * inches) for inches in figure.get_size_inches())
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f'<svg {size} role="img" aria-label="{escape(label)}">{body}'


def _tag(text: str) -> str:
    text = text.replace("xlink:href", "href")
    return _FRACTION.sub(r"\1", _INLINE.sub(lambda style: _attributes(style[1]), text))


def _attributes(style: str) -> str:
    """Return the declarations of a style as attributes, without those that the page sets."""
    attributes = []
    for name, _, value in (declaration.strip().partition(": ") for declaration in style.split(";")):
        if name == "font":
            size = re.search(r"[\d.]+(?=px)", value)
            attributes.append(f' font-size="{size[0]}"' if size else "")
        elif name and name not in _DROPPED:
            colour = _NAMES.get(value)
            attributes.append(f' {name}="{f"var(--{colour})" if colour else value}"')
    return "".join(attributes)
