"""Reads an inventory file and the files that it extends, or a host expression."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.inventory.hosts import Inventory

__all__ = ["open_inventory"]


_BASE = re.compile(r"""\bbase["']?\s*:""")


def open_inventory(source: str) -> Inventory:
    """Read an inventory file and the files that it extends, or make an inventory from a host expression.

    Raises ConfigError with file, line and key.
    """
    from orchestrator.inventory import formats

    path = Path(source).expanduser()
    if path.exists() or "/" in source or path.suffix in (".yaml", ".yml", ".ini", ".txt", ".hosts"):
        return _read_inventory(path, str(source), ())
    return formats.from_expression(source)


def _read_inventory(path: Path, source: str, above: tuple[Path, ...]) -> Inventory:
    """Read one file; ``above`` are the files that extend it."""
    from orchestrator import yamlfile
    from orchestrator.inventory import base, formats

    text = yamlfile.read_text(path)
    document = yamlfile.loads(text, source) if _BASE.search(text) and formats.recognise(text) == "orch" else None
    over = base.overlay(document.value, document.line, source) if document else None
    if over is None:
        return formats.parse_text(text, source, yamlfile.loads)
    below = path.parent / Path(over.base).expanduser()
    if below.resolve() in (file.resolve() for file in (path, *above)):
        raise ConfigError(f"expected an inventory that does not extend this one, got {over.base}", where=f"{source}: base")
    return base.laid_over(over, _read_inventory(below, str(below), (path, *above)), source)
