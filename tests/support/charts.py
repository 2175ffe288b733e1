"""The words that a chart shows."""

from __future__ import annotations

import xml.etree.ElementTree as ET


def words(picture: ET.Element) -> list[str]:
    return ["".join(text.itertext()).strip() for text in picture.iter("text")]
