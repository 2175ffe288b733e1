"""Contents of a chart: its words, its lines and its dots."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET


def words(picture: ET.Element) -> list[str]:
    return ["".join(text.itertext()).strip() for text in picture.iter("text")]


def paths(picture: ET.Element, colour: str) -> list[list[tuple[float, float]]]:
    """The lines of one of the page's colours, as points."""
    drawn = [
        path.get("d", "")
        for path in picture.iter("path")
        if path.get("stroke") == f"var(--{colour})" and not path.get("id")
    ]
    return [
        [(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", text)]
        for text in drawn
    ]


def dots(picture: ET.Element, colour: str) -> list[tuple[float, float]]:
    """The places of the dots of one of the page's colours, from left to right; areas are
    transparent and are none.
    """
    drawn = [dot for dot in picture.iter("use") if dot.get("fill") == f"var(--{colour})"]
    marks = [dot for dot in drawn if dot.get("fill-opacity") is None]
    return sorted((float(mark.get("x", "nan")), float(mark.get("y", "nan"))) for mark in marks)
