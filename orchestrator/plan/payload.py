"""Files sent to nodes, as bytes: a framework folder's payload, the node runner, and the rank
wrapper.

Files are looked up in the framework folder, then by their bare names among orch's own, below
``remote/trainers/``, which is in the package when it is installed and next to it in a source tree.
On a node, all of them lie in one folder.
"""

from __future__ import annotations

import ast
import os
import re
import stat
import zlib
from base64 import b64encode
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from orchestrator.errors import ConfigError, nearest
from orchestrator.plan.bundle import bundle, bundle_on_demand

SKIPPED = "__pycache__"
"""The folders of Python's bytecode, which is neither sent nor part of a folder's digest."""
# The names that the node runner accepts, and few enough that one shell command on a node can list
# them all. No part begins with a dot, so no path can leave the folder.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*(/[A-Za-z0-9_][A-Za-z0-9._-]*)*/?")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
# Files of orch's own by their names in earlier versions, which framework folders of users may still
# list.
_RENAMED = {
    "simulated_meeting.py": "simulated_rendezvous.py",
    "torch_stamps.py": "step_timestamps.py",
}
_MOST_NAME, _MOST_FILES, _MOST_BYTES = 200, 256, 1 << 24
_MOST_FAULTS = 20


def payload_bytes(name: str) -> bytes:
    """Return a file of orch's own, by its bare name."""
    return _own_files()[name].read_bytes()


def is_payload_name(name: object) -> bool:
    """Return True if an entry of ``payload:`` is a file or folder that cannot leave the framework
    folder.
    """
    return isinstance(name, str) and bool(_NAME.fullmatch(name)) and name != "rank_wrapper.py"


def payload_files(
    places: Mapping[str, str], folder: Path
) -> tuple[dict[str, bytes], list[ConfigError]]:
    """Return the files of a folder's payload by name in the set, and every fault of the list.

    ``places`` maps each name under ``payload:`` to file, line and key, where faults are reported. A
    name is looked up in the folder, then among orch's own; a name that ends with a slash means all
    files below that folder. A missing or unreadable file, a link, a name that is not allowed, and
    files beyond the limits are faults.
    """
    files: dict[str, bytes] = {}
    faults: list[ConfigError] = []
    bytes_left = _MOST_BYTES
    for entry, place in places.items():
        of_entry = []
        for entry_file in _payload_paths(entry, folder, place):
            if isinstance(entry_file, ConfigError):
                of_entry.append(entry_file)
                if len(of_entry) > _MOST_FAULTS:
                    message = f"expected files that can be sent, but more than {_MOST_FAULTS} in {entry} cannot"
                    of_entry[-1] = ConfigError(
                        message, where=place, hint="list a folder of programs only"
                    )
                    break
                continue
            name, path = entry_file
            try:
                bytes_left -= path.stat().st_size
                if bytes_left < 0 or len(files) == _MOST_FILES:
                    of_entry.append(_beyond_limits(path, place))
                    break
                files[name] = path.read_bytes()
            except OSError as error:
                of_entry.append(_unreadable(error, path, place))
        faults += of_entry
    return files, faults


Found = tuple[str, Path] | ConfigError
"""The name in the set and the path of a file that is sent, or why one cannot be sent."""


def _payload_paths(name: str, folder: Path, place: str) -> Iterator[Found]:
    """Yield every file of one entry; see `payload_files`."""
    path = folder / name
    of_orch = _own_files().get(_RENAMED.get(name, name))
    if not os.path.lexists(path) and of_orch is not None:
        # Under both names: a program of the folder may import the earlier one, orch's own programs
        # import the other.
        yield from {name: of_orch, of_orch.name: of_orch}.items()
        return
    links = [
        parent
        for parent in path.relative_to(folder).parents
        if parent.parts and (folder / parent).is_symlink()
    ]
    if links:
        yield _link(folder / links[-1], place)
        return
    kind = "folder" if name.endswith("/") else "file"
    if not os.path.lexists(path):
        neighbours = [child.name + "/" * child.is_dir() for child in folder.iterdir()]
        hint = f"looked in {folder} and in orch's own {_trainers()}{nearest(name, [*neighbours, *_own_files()])}"
        yield ConfigError(f"expected a payload {kind}, found no {name}", where=place, hint=hint)
    elif path.is_dir() != (kind == "folder"):
        came = "file" if kind == "folder" else "folder"
        hint = "remove the slash after the name"
        if kind != "folder":
            hint = f"write {name}/ to send all files below it"
        yield ConfigError(f"expected a payload {kind}, {path} is a {came}", where=place, hint=hint)
    else:
        yield from _files_at(path, name.rstrip("/"), place)


def _files_at(path: Path, name: str, place: str) -> Iterator[Found]:
    """Yield a file, or every file below a folder except Python's bytecode."""
    try:
        mode = (
            path.lstat().st_mode
        )  # from Python 3.14 on, is_file and others answer no where they may not look
        if stat.S_ISLNK(mode):
            yield _link(path, place)
        elif not _PART.match(path.name) or len(name) > _MOST_NAME:
            expected = f"up to {_MOST_NAME} letters, digits, dots, dashes and underscores, no part starting with a dot or dash"
            hint = "rename it, or move it elsewhere"
            yield ConfigError(
                f"expected a path of {expected}, got {name!r}", where=place, hint=hint
            )
        elif stat.S_ISREG(mode):
            yield name, path
        elif not stat.S_ISDIR(mode):
            yield ConfigError(
                f"expected files and folders, but {path} is a pipe, socket or device", where=place
            )
        else:
            for child in sorted(path.iterdir()):
                if child.name != SKIPPED:
                    yield from _files_at(child, f"{name}/{child.name}", place)
    except OSError as error:
        yield _unreadable(error, path, place)


def _link(path: Path, place: str) -> ConfigError:
    hint = "links are not sent: put a copy of the file into the folder"
    return ConfigError(
        f"expected files and folders, but {path} is a symbolic link", where=place, hint=hint
    )


def _unreadable(error: OSError, path: Path, place: str) -> ConfigError:
    return ConfigError(f"{path} cannot be read: {error.strerror}", where=place)


def _beyond_limits(path: Path, place: str) -> ConfigError:
    message = f"expected up to {_MOST_FILES} files of {_MOST_BYTES >> 20} MiB together, which {path} exceeds"
    return ConfigError(
        message, where=place, hint="send only programs; put data into vars.data_dir of each host"
    )


def find_imports(script: Path) -> list[str]:
    """Return the payload entries of a Python script: itself, and the modules and packages next to
    it that it imports.

    A file that is no Python imports nothing.
    """
    entries = [script.name]
    for entry in entries:
        path = script.parent / entry
        try:
            tree = ast.parse(path.read_bytes()) if path.suffix == ".py" else ast.Module([], [])
        except (SyntaxError, ValueError):
            continue
        for name in _imports(tree):
            sibling = f"{name}.py" if (script.parent / f"{name}.py").is_file() else f"{name}/"
            if sibling not in entries and (script.parent / sibling).exists():
                entries.append(sibling)
    return entries


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


@cache
def node_program(part: str) -> bytes:
    """Return the source of a program of the node's side: its last part and all that it imports."""
    return bundle(find_folder("remote") / "noderun", part)


@cache
def booted_program(part: str) -> bytes:
    """Return the source of a program of the node's side that is sent to a boot program instead of
    being written as a file.
    """
    return bundle_on_demand(find_folder("remote") / "noderun", part)


def runner_source() -> bytes:
    """Return the source of the node runner, which is sent before the first request to it."""
    return booted_program("serve")


def rank_source() -> bytes:
    """Return the source of the rank wrapper. It has only what a rank needs, because all ranks of a
    node start at once.
    """
    return node_program("rank")


def probe_source() -> bytes:
    """Return the source of the program that preflight starts in a container."""
    return node_program("container_probe")


def telemetry_source() -> bytes:
    """Return the source of the process that samples a node during a run. It comes with the order to
    arm, because a request would have to compile it too."""
    return node_program("telemetry")


def _trainers() -> Path:
    return find_folder("remote") / "trainers"


@cache
def _own_files() -> dict[str, Path]:
    """Return orch's own files by their bare names, which are unique."""
    return {path.name: path for path in sorted(_trainers().glob("*/*.py"))}


@cache
def pack(source: bytes) -> str:
    """Return a source as a text of less than half its size, for an order to each of many nodes:
    zlib, in base 64.
    """
    return b64encode(zlib.compress(source, 9)).decode()


def find_folder(name: str) -> Path:
    """Return the folder of that name, installed with the package or in the source tree."""
    package = Path(__file__).resolve().parents[1]
    installed = package / name
    if installed.is_dir():
        return installed
    return package.parent / name
