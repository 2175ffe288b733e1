"""Bundle the modules of a program into one text to send to nodes.

Parts are modules that import each other with ``from noderun.PART import NAME``. In a bundle they
share one namespace, so these imports are removed. Parts are separated by `BOUNDARY`, so that they
can be compiled one by one. A comment at the start of each names its file, for tracebacks.
"""

from __future__ import annotations

import re
from pathlib import Path

BOUNDARY = b"\f"
"""White space to Python, which no module of ours contains otherwise."""

# A regular expression, because every command waits for this: parsing all parts with `ast` takes 28
# ms, this takes 1 ms.
_IMPORT = re.compile(r"^from noderun\.(\w+) import (?:\([^)]*\)|[^(\n]*)\n", re.MULTILINE)


def bundle(folder: Path, entry: str) -> bytes:
    """Return one part of a folder and everything it imports as one self-contained program."""
    texts = (
        f"# ---- noderun/{name}.py\n\n{text}\n".encode()
        for name, text in parts(folder, entry).items()
    )
    return BOUNDARY.join(texts)


def parts(folder: Path, entry: str) -> dict[str, str]:
    """Return the texts of a part and all that it imports, by name, imports removed. Each part comes
    after those it imports.
    """
    texts: dict[str, str] = {}
    _add(folder, entry, texts)
    return texts


def _add(folder: Path, name: str, texts: dict[str, str]) -> None:
    text = (folder / f"{name}.py").read_text(encoding="utf-8")
    for imported in _IMPORT.findall(text):
        if imported not in texts:
            _add(folder, imported, texts)
    texts[name] = _IMPORT.sub("", text)
