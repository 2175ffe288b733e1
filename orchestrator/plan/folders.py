"""Framework folders and payload files on the controller's disk: found, read and checked here, returned as values.

Folders and payloads are in the package when it is installed, next to the package in a source tree, and in the folder given
with ``--templates``. Each framework is one folder; no code lists them.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.inventory import nearest
from orchestrator.plan.bundle import bundle
from orchestrator.plan.framework import Framework, payload_digest

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
"""The default framework for every model that it has."""


_COMPILED = "__pycache__"
# The names that the node runner accepts, and few enough that one shell command on a node can list them all.
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_MOST_NAME, _MOST_FILES, _MOST_BYTES = 200, 256, 1 << 24


@dataclass(frozen=True, slots=True)
class FrameworkFolder:
    """A framework with the texts of its templates by file name and the bytes of its payload by name in the set.

    The payload includes ``rank_wrapper.py``.
    """

    framework: Framework
    sources: Mapping[str, str]
    payload: Mapping[str, bytes]

    @property
    def payload_digests(self) -> dict[str, str]:
        """SHA-256 of each payload file."""
        return {name: hashlib.sha256(content).hexdigest() for name, content in self.payload.items()}

    @property
    def payload_digest(self) -> str:
        """The digest that names the payload as one set."""
        return payload_digest(self.payload_digests)


def frameworks(extra: Path | None = None) -> dict[str, Path]:
    """Return every framework folder by name. Folders in ``extra`` come first and take precedence."""
    folders: dict[str, Path] = {}
    for base in ([extra] if extra else []) + [_beside("templates")]:
        if not base.is_dir():
            raise ConfigError("expected a folder of framework folders, found none", where=str(base))
        for file in sorted(base.glob("*/framework.yaml")):
            folders.setdefault(file.parent.name, file.parent)
    return folders


def open_framework(name: str, extra: Path | None = None) -> FrameworkFolder:
    """Read one framework folder.

    Raises ConfigError listing the available frameworks, or naming file and line of the fault.
    """
    from orchestrator import yamlfile
    from orchestrator.logs.parse import parse
    from orchestrator.plan import schema

    folders = frameworks(extra)
    if name not in folders:
        raise ConfigError(
            f"no framework {name!r}", where="--framework", hint=f"available: {', '.join(folders)}{nearest(name, folders)}"
        )
    folder = folders[name]
    document = yamlfile.load(folder / "framework.yaml")
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and _COMPILED not in path.parts:
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    framework = schema.parse(document.value, document.line, folder.name, str(folder), digest.hexdigest())
    try:
        parse(b"", framework.log)
    except ConfigError as error:  # a pattern that could take forever on some log
        raise ConfigError(error.message, where=f"{folder}/framework.yaml: {error.where}", hint=error.hint) from error
    sources = {path.name: yamlfile.read_text(path) for path in sorted(folder.glob("*.j2"))}
    for file in framework.files:
        if file.template not in sources:
            raise ConfigError(f"expected a template {file.template}, found none", where=f"{folder}/framework.yaml: files")
    payload = _payload_files(framework.payload, folder)
    return FrameworkFolder(framework, sources, payload | {"rank_wrapper.py": rank_source()})


def framework_for(model: str, extra: Path | None = None) -> str:
    """Return the framework to use for a model when none is given: `USUAL` if it has the model, else the only one that does.

    Raises ConfigError if several frameworks have the model, or none.
    """
    if model in open_framework(USUAL, extra).framework.models:
        return USUAL
    models = {name: open_framework(name, extra).framework.models for name in frameworks(extra)}
    candidates = [name for name, names in models.items() if model in names]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        message = f"several frameworks have a model {model!r}: {', '.join(candidates)}"
        raise ConfigError(message, where="--framework", hint="choose one of them")
    available = sorted({model_name for names in models.values() for model_name in names})
    raise ConfigError(
        f"no framework has a model {model!r}",
        where="model",
        hint=f"available: {', '.join(available)}{nearest(model, available)}",
    )


def payload_bytes(name: str) -> bytes:
    """Return a file of ``remote/``."""
    return (_beside("remote") / name).read_bytes()


def _payload_files(names: Sequence[str], folder: Path) -> dict[str, bytes]:
    """Return the files listed under ``payload:`` of a framework folder, by name in the set.

    Each name is looked up in the folder, then in ``remote/``. A name that ends with a slash means all files below that folder.
    Raises ConfigError naming what cannot be sent: a missing or unreadable file, a link, a name that is not allowed, or files
    beyond the limits.
    """
    files: dict[str, bytes] = {}
    bytes_left = _MOST_BYTES
    try:
        for name, path in _payload_paths(names, folder):
            bytes_left -= path.stat().st_size
            if bytes_left < 0 or len(files) == _MOST_FILES:
                message = f"expected up to {_MOST_FILES} files of {_MOST_BYTES >> 20} MiB together, {path} exceeds that"
                hint = "send only programs; put data into vars.data_dir of each host"
                raise ConfigError(message, where=f"{folder}/framework.yaml: payload", hint=hint)
            files[name] = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(error.filename or folder)) from error
    return files


def _payload_paths(names: Sequence[str], folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the name in the set and the path of every file; see `_payload_files`."""
    for name in names:
        path, shipped = folder / name, _beside("remote") / name
        if not os.path.lexists(path) and shipped.is_file():
            yield name, shipped
            continue
        for parent in path.relative_to(folder).parents:
            if parent.parts:
                _refuse_link(folder / parent)
        kind = "folder" if name.endswith("/") else "file"
        if not os.path.lexists(path):
            raise ConfigError(f"expected a payload {kind} {name}, found none", where=str(folder))
        if path.is_dir() != (kind == "folder"):
            hint = "remove the slash after the name" if kind == "folder" else f"write {name}/ to send all files below it"
            raise ConfigError(f"payload: expected {name} to be a {kind}", where=str(path), hint=hint)
        yield from _files_at(path, name.rstrip("/"))


def _files_at(path: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield name and path of a file, or of every file below a folder except Python's bytecode."""
    _refuse_link(path)
    if not _PART.match(path.name) or len(name) > _MOST_NAME:
        expected = f"up to {_MOST_NAME} letters, digits, dots, dashes and underscores, no part starting with a dot or dash"
        hint = "rename it, or move it elsewhere"
        raise ConfigError(f"expected a path of {expected}, got {name!r}", where=str(path), hint=hint)
    if path.is_file():
        yield name, path
    elif not path.is_dir():
        raise ConfigError("expected a file or a folder, got a pipe, socket or device", where=str(path))
    else:
        for child in sorted(path.iterdir()):
            if child.name != _COMPILED:
                yield from _files_at(child, f"{name}/{child.name}")


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        hint = "links are not sent: put the file itself into the folder"
        raise ConfigError("expected a file or a folder, got a symbolic link", where=str(path), hint=hint)


@cache
def runner_source() -> bytes:
    """Return the source of the node runner, which is sent before the first request to it."""
    return bundle(_beside("remote") / "noderun", "serve")


@cache
def rank_source() -> bytes:
    """Return the source of the rank wrapper. It has only what a rank needs, because all ranks of a node start at once."""
    return bundle(_beside("remote") / "noderun", "rank")


def _beside(name: str) -> Path:
    """Return the folder of that name, installed with the package or in the source tree."""
    package = Path(__file__).resolve().parents[1]
    installed = package / name
    return installed if installed.is_dir() else package.parent / name
