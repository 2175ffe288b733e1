"""Reads an inventory file with the files that it stands on, or a host expression."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.inventory.hosts import Inventory

__all__ = ["open_inventory"]


_BASE = re.compile(r"""\bbase["']?\s*:""")


def open_inventory(source: str) -> Inventory:
    """Read an inventory file, and those that it stands on, or make one of a host expression.

    Raises ConfigError naming file, line and key.
    """
    from orchestrator.inventory import formats

    path = Path(source).expanduser()
    if path.exists() or "/" in source or path.suffix in (".yaml", ".yml", ".ini", ".txt", ".hosts"):
        return _read_inventory(path, str(source), ())
    return formats.from_expression(source)


def _read_inventory(path: Path, source: str, above: tuple[Path, ...]) -> Inventory:
    """``above`` are the files that stand on this one."""
    from orchestrator import yamlfile
    from orchestrator.inventory import base, formats

    text = yamlfile.read_text(path)
    document = yamlfile.loads(text, source) if _BASE.search(text) and formats.recognise(text) == "orch" else None
    over = base.overlay(document.value, document.line, source) if document else None
    if over is None:
        return formats.parse_text(text, source, yamlfile.loads)
    below = path.parent / Path(over.base).expanduser()
    if below.resolve() in (each.resolve() for each in (path, *above)):
        raise ConfigError(f"expected another inventory than itself, got {over.base}", where=f"{source}: base")
    return base.laid_over(over, _read_inventory(below, str(below), (path, *above)), source)
