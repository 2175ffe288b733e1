"""Framework folders and payload files on the controller's disk: found, read and checked here,
returned as values.

Each framework is one folder; no code lists them. They are in folders of folders: those that the
caller names (``bases``, the first wins), then orch's own, which is in the package when it is
installed and next to it in a source tree.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from orchestrator.errors import ConfigError, OrchError, nearest
from orchestrator.plan.framework import Framework, payload_digest
from orchestrator.plan.payload import (
    SKIPPED,
    find_folder,
    is_payload_name,
    payload_files,
    rank_source,
)

USUAL = ("pytorch", "pytorch_lm")
"""The default frameworks: the first of them that has a model."""
_LISTED = 24
"""More models than these are counted, not listed, in an error."""


@dataclass(frozen=True, slots=True)
class FrameworkFolder:
    """A framework with the texts of its templates by file name and the bytes of its payload by name
    in the set.

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


def frameworks(bases: Sequence[Path] = ()) -> dict[str, Path]:
    """Return every framework folder by name. Folders in ``bases`` take precedence over orch's own,
    the first over the others.

    Raises ConfigError if one of ``bases`` is no folder.
    """
    return {name: paths[0] for name, paths in _find_folders(bases).items()}


def hidden(bases: Sequence[Path]) -> dict[str, tuple[Path, ...]]:
    """Return by name the folders that another one of the same name hides. Copies with the same
    files are left out.
    """
    by_name = {}
    for name, (first, *others) in _find_folders(bases).items():
        unlike = tuple(path for path in others if _digest(path) != _digest(first))
        if unlike:
            by_name[name] = unlike
    return by_name


def own_folder() -> Path:
    """Return the folder of the framework folders that come with orch."""
    return find_folder("templates")


def open_framework(name: str, bases: Sequence[Path] = ()) -> FrameworkFolder:
    """Read one framework folder.

    Raises ConfigError listing the available frameworks and where they were looked for, or Faults
    with file and line of each.
    """
    folders = frameworks(bases)
    if name not in folders:
        raise ConfigError(
            f"no framework {name!r}",
            where="--framework",
            hint=f"available: {', '.join(folders)}{nearest(name, folders)}; {_describe_search(bases)}",
        )
    return read_folder(folders[name])


def read_folder(folder: Path) -> FrameworkFolder:
    """Read the framework in a folder, which gives it its name. Raises ConfigError, or Faults of
    every fault of the folder.
    """
    from orchestrator import yamlfile
    from orchestrator.plan.declaration import read_declaration

    document = yamlfile.load(folder / "framework.yaml")
    sources = {path.name: yamlfile.read_text(path) for path in sorted(folder.glob("*.j2"))}
    listed = document.value.get("payload") if isinstance(document.value, dict) else None
    entries = {
        entry: index
        for index, entry in enumerate(listed if isinstance(listed, list) else ())
        if is_payload_name(entry)
    }
    places = {
        entry: f"{folder}/framework.yaml:{document.line(('payload', index))}: payload.{index}"
        for entry, index in entries.items()
    }
    payload, faults = payload_files(places, folder)
    framework = read_declaration(
        document.value, document.line, folder.name, str(folder), _digest(folder), sources, faults
    )
    return FrameworkFolder(framework, sources, payload | {"rank_wrapper.py": rank_source()})


def folders_with(name: str, framework: Framework) -> str:
    """Name orch's own folders that have a model, or that have an option and measure the same, as
    words of a hint.
    """
    others = [
        other.name
        for other in _own_frameworks()
        if name in other.models or (name in other.options and other.measures == framework.measures)
    ]
    if not others:
        return ""
    return f"; {', '.join(others)} {'has' if len(others) == 1 else 'have'} {name}"


@cache
def _own_frameworks() -> tuple[Framework, ...]:
    return tuple(open_framework(name).framework for name in frameworks())


def framework_for(
    model: str, bases: Sequence[Path] = (), read: Callable[[str], FrameworkFolder] | None = None
) -> str:
    """Return the framework for a model when none is given: the first of `USUAL` that has it, else
    the only one that does.

    ``read`` is `open_framework` of these bases, for callers that keep what it has read. A faulty
    folder counts with the models that its file names, and says its faults where it is opened;
    without one that has the model, the error names it. Raises ConfigError if several frameworks
    have the model, or none.
    """
    read = read or partial(open_framework, bases=bases)
    folders = frameworks(bases)
    every = list(dict.fromkeys((*USUAL, *folders)))
    models: dict[str, Iterable[str]] = {}
    faulty = []
    candidates: list[str] = []
    # Few folders name a model; the others are read only for the hint that nobody has it.
    for among in ([name for name in every if _mentions(folders[name], model)], every):
        for name in among:
            if name in models:
                continue
            try:
                models[name] = read(name).framework.models
            except OrchError:
                faulty.append(name)
                models[name] = _read_models(folders[name])
            if name in USUAL and model in models[name]:
                return name
        candidates = [name for name, names in models.items() if model in names]
        if candidates:
            break
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        message = f"several frameworks have a model {model!r}: {', '.join(candidates)}"
        raise ConfigError(message, where="--framework", hint="choose one of them")
    if model in models:
        message = f"expected a model, got the framework {model!r}"
        own = ", ".join(models[model])
        raise ConfigError(
            message, where="model", hint=f"name a model of it, with -f {model}; it has {own}"
        )
    if Path(model).is_file():
        hint = f"a run file is given as orch bench MODEL --file {model}"
        raise ConfigError(
            f"expected the name of a model, got the file {model!r}", where="model", hint=hint
        )
    available = sorted({model_name for names in models.values() for model_name in names})
    unread = [
        f"{folders[name]} is faulty and may have it: orch framework check {name}" for name in faulty
    ]
    listed = (
        ", ".join(available)
        if len(available) <= _LISTED
        else f"{len(available)}, listed by orch framework list --json"
    )
    hints = [f"available: {listed}{nearest(model, available)}", *unread, _describe_search(bases)]
    raise ConfigError(f"no framework has a model {model!r}", where="model", hint="; ".join(hints))


def _mentions(folder: Path, word: str) -> bool:
    """Return whether a folder's file has a word, or cannot be read."""
    from orchestrator import yamlfile

    with suppress(OrchError):
        return word in yamlfile.read_text(folder / "framework.yaml")
    return True


def _read_models(folder: Path) -> tuple[str, ...]:
    """Return the models that a faulty folder names, as far as its file can be read."""
    from orchestrator import yamlfile

    with suppress(OrchError):
        content = yamlfile.load(folder / "framework.yaml").value
        named = content.get("models") if isinstance(content, dict) else None
        if not isinstance(named, dict):
            return ()
        return tuple(map(str, named))
    return ()


def _find_folders(bases: Sequence[Path]) -> dict[str, list[Path]]:
    """Return all folders of each name; the first one is used."""
    folders: dict[str, list[Path]] = {}
    seen = set()
    for base in (*bases, own_folder()):
        if not base.is_dir():
            raise ConfigError(
                "expected a folder with framework folders, found no such folder", where=str(base)
            )
        if base.resolve() in seen:
            continue
        seen.add(base.resolve())
        for file in sorted(base.glob("*/framework.yaml")):
            folders.setdefault(file.parent.name, []).append(file.parent)
    return folders


def _digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and SKIPPED not in path.parts:
            digest.update(f"{path.relative_to(folder)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _describe_search(bases: Sequence[Path]) -> str:
    if bases:
        return f"looked in {', '.join(map(str, bases))} and orch's own folders"
    return "folders of your own belong in templates/ of the project, ORCH_TEMPLATES or --templates"
