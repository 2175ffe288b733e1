"""Bundle the modules of a program into one text to send to nodes.

Parts are modules that import each other with ``from noderun.PART import NAME``. In a bundle they
share one namespace. A comment at the start of each names its file, for tracebacks.
"""

from __future__ import annotations

import re
from pathlib import Path

BOUNDARY = b"\f"
"""Between the parts of a bundle. White space to Python, which no module of ours contains otherwise."""

# A regular expression, because every command waits for this: parsing all parts with `ast` takes 28
# ms, this takes 1 ms.
_IMPORT = re.compile(r"^( *)from noderun\.(\w+) import (?:\([^)]*\)|[^(\n]*)\n", re.MULTILINE)


def bundle(folder: Path, entry: str) -> bytes:
    """Return one part of a folder and everything it imports as one self-contained program: each
    part comes after those it imports, and these imports are removed.
    """
    texts = parts(folder, entry)
    return BOUNDARY.join(_part(name, _IMPORT.sub("", text)) for name, text in texts.items())


def bundle_on_demand(folder: Path, entry: str) -> bytes:
    """Return one part of a folder, everything it imports and everything that its functions import.
    Of this text a boot program (`nodes.node.boot_arguments`) runs the first part, which is
    ``entry``.

    An import of another part is a call of the boot program's ``load_part`` there, so that a part is
    compiled when it is needed: most requests need few, and compiling all of them is half of what a
    node does for a connection.
    """
    texts = parts(folder, entry)
    return BOUNDARY.join(
        _part(name, _IMPORT.sub(r'\1load_part("\2")\n', texts[name]))
        for name in sorted(texts, key=lambda name: name != entry)
    )


def parts(folder: Path, entry: str) -> dict[str, str]:
    """Return the texts of a part and all that it imports, by name. Each part comes after those it
    imports.
    """
    texts: dict[str, str] = {}
    _add(folder, entry, texts, set())
    return texts


def _add(folder: Path, name: str, texts: dict[str, str], begun: set[str]) -> None:
    begun.add(name)
    text = (folder / f"{name}.py").read_text(encoding="utf-8")
    for _, imported in _IMPORT.findall(text):
        if imported not in begun:
            _add(folder, imported, texts, begun)
    texts[name] = text


def _part(name: str, text: str) -> bytes:
    return f"# ---- noderun/{name}.py\n\n{text}\n".encode()
