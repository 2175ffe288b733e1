"""Suites and reference data on the controller's disk: those that come with orch, and the project's
own, which win.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.errors import ConfigError, nearest
from orchestrator.plan.payload import find_folder

if TYPE_CHECKING:
    from orchestrator.yamlfile import Document


def suites(bases: Sequence[Path] = ()) -> dict[str, Path]:
    """Return the file of every suite by name. Those in ``bases`` take precedence over orch's own,
    the first over the others.
    """
    files: dict[str, Path] = {}
    for base in (*bases, find_folder("suites")):
        for path in sorted(base.glob("*.yaml")):
            files.setdefault(path.stem, path)
    return files


def open_suite(name: str, bases: Sequence[Path] = (), where: str = "suite") -> Document:
    """Return the document of a suite by name, or of a file. Raises ConfigError, for a name with
    ``where``, if there is none.
    """
    from orchestrator import yamlfile

    if "/" in name or name.endswith(".yaml"):
        return yamlfile.load(Path(name))
    known = suites(bases)
    if name not in known:
        hint = f"available: {', '.join(known)}{nearest(name, known)}; suites of your own belong in suites/ of the project"
        raise ConfigError(f"no suite {name!r}", where=where, hint=hint)
    return yamlfile.load(known[name])


def open_criteria(name: str, bases: Sequence[Path] = (), where: str = "criteria") -> Document:
    """Return the file of public criteria of a name, the project's own first. Raises ConfigError if
    there is none.
    """
    from orchestrator import yamlfile

    for base in (*bases, find_folder("suites")):
        path = base / "criteria" / f"{name}.yaml"
        if path.is_file():
            return yamlfile.load(path)
    hint = "criteria of your own belong in suites/criteria/ of the project"
    raise ConfigError(f"no criteria {name!r}", where=where, hint=hint)


def open_references(bases: Sequence[Path] = ()) -> list[Document]:
    """Return the files of reference data, the project's own first."""
    from orchestrator import yamlfile

    return [
        yamlfile.load(path)
        for base in (*bases, find_folder("suites"))
        for path in sorted(base.glob("references/*.yaml"))
    ]
