"""What is on this machine's disk of frameworks: their folders and payload files. Reads, checks, and hands on values.

Folders and payloads are found beside the package when it is installed, above it in a source tree, and in whatever folder
``--templates`` names. A framework is a folder; there is no list of them anywhere.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.inventory.hostset import nearest
from orchestrator.plan.bundle import bundle
from orchestrator.plan.framework import Framework

__all__ = [
    "FrameworkFolder",
    "framework_for",
    "frameworks",
    "open_framework",
    "payload_bytes",
    "rank_source",
    "runner_source",
]


USUAL = "pytorch"
"""The framework of a model that it has, where nobody names one."""


@dataclass(frozen=True, slots=True)
class FrameworkFolder:
    """A framework with the texts of its templates by file name and the bytes of its payload, ``rank_wrapper.py`` included."""

    framework: Framework
    sources: Mapping[str, str]
    payload: Mapping[str, bytes]

    @property
    def payload_digests(self) -> dict[str, str]:
        """SHA-256 of each payload file."""
        return {name: hashlib.sha256(content).hexdigest() for name, content in self.payload.items()}


def frameworks(extra: Path | None = None) -> dict[str, Path]:
    """Return every framework folder by name; those of ``extra`` come first and win."""
    found: dict[str, Path] = {}
    for base in ([extra] if extra else []) + [_beside("templates")]:
        if not base.is_dir():
            raise ConfigError("expected a folder of framework folders, there is none", where=str(base))
        for file in sorted(base.glob("*/framework.yaml")):
            found.setdefault(file.parent.name, file.parent)
    return found


def open_framework(name: str, extra: Path | None = None) -> FrameworkFolder:
    """Read one framework folder. Raises ConfigError listing the known ones, or naming file and line of what is wrong."""
    from orchestrator import yamlfile
    from orchestrator.logs.parse import parse
    from orchestrator.plan import schema

    known = frameworks(extra)
    if name not in known:
        raise ConfigError(
            f"no framework {name!r}", where="--framework", hint=f"there are {', '.join(known)}{nearest(name, known)}"
        )
    folder = known[name]
    document = yamlfile.load(folder / "framework.yaml")
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    framework = schema.parse(document.value, document.line, folder.name, str(folder), digest.hexdigest())
    try:
        parse(b"", framework.log)
    except ConfigError as error:  # a pattern that a log could make to run for ever
        raise ConfigError(error.message, where=f"{folder}/framework.yaml: {error.where}", hint=error.hint) from error
    sources = {path.name: yamlfile.read_text(path) for path in sorted(folder.glob("*.j2"))}
    for file in framework.files:
        if file.template not in sources:
            raise ConfigError(f"expected a template {file.template}, there is none", where=f"{folder}/framework.yaml: files")
    payload = {each: payload_bytes(each, folder) for each in framework.payload}
    return FrameworkFolder(framework, sources, payload | {"rank_wrapper.py": rank_source()})


def framework_for(model: str, extra: Path | None = None) -> str:
    """Return the framework of a model for which nobody named one: `USUAL` if it has it, else the only one that does.

    Raises ConfigError where several have it, or none.
    """
    if model in open_framework(USUAL, extra).framework.models:
        return USUAL
    models = {name: open_framework(name, extra).framework.models for name in frameworks(extra)}
    having = [name for name, has in models.items() if model in has]
    if len(having) == 1:
        return having[0]
    if having:
        raise ConfigError(f"{', '.join(having)} have a model {model!r}", where="--framework", hint="name one of them")
    known = sorted({each for has in models.values() for each in has})
    raise ConfigError(
        f"no framework has a model {model!r}", where="model", hint=f"there are {', '.join(known)}{nearest(model, known)}"
    )


def payload_bytes(name: str, folder: Path | None = None) -> bytes:
    """Return a payload file: from the framework's own folder, or from ``remote/``."""
    remote = _beside("remote")
    for path in (folder or remote) / name, remote / name:
        if path.is_file():
            return path.read_bytes()
    raise ConfigError(f"expected a payload file {name}, there is none", where=f"{folder or remote}")


@cache
def runner_source() -> bytes:
    """Return the source of the node runner, which travels in front of each request."""
    return bundle(_beside("remote") / "noderun", "serve")


@cache
def rank_source() -> bytes:
    """Return the source of the program that wraps a rank: only what that needs, since all ranks of a node start at once."""
    return bundle(_beside("remote") / "noderun", "rank")


def _beside(name: str) -> Path:
    """Return the installed or the source-tree folder of that name."""
    package = Path(__file__).resolve().parents[1]
    installed = package / name
    return installed if installed.is_dir() else package.parent / name
