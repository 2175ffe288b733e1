"""What a chart shows: its words, its lines and its dots."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET


def words(picture: ET.Element) -> list[str]:
    return ["".join(text.itertext()).strip() for text in picture.iter("text")]


def paths(picture: ET.Element, colour: str) -> list[list[tuple[float, float]]]:
    """The lines of one of the page's colours, as points."""
    found = [
        each.get("d", "") for each in picture.iter("path") if each.get("stroke") == f"var(--{colour})" and not each.get("id")
    ]
    return [[(float(x), float(y)) for x, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", text)] for text in found]


def dots(picture: ET.Element, colour: str) -> list[tuple[float, float]]:
    """The places of the dots of one of the page's colours, from left to right; areas are transparent and are none."""
    drawn = [each for each in picture.iter("use") if each.get("fill") == f"var(--{colour})"]
    marks = [each for each in drawn if each.get("fill-opacity") is None]
    return sorted((float(each.get("x", "nan")), float(each.get("y", "nan"))) for each in marks)
