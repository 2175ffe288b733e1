"""Which names the user's ssh configuration cannot tell apart, so that `ssh -G` need be asked only once for all of them.

Asking takes milliseconds of a processor for every name, which for hundreds of hosts is longer than to connect to them. Only
which lines are in effect for a name is found out here, and where that is not plain "I do not know" is said: what the settings
are, ssh says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

__all__ = ["likeness"]

_SYSTEM = Path("/etc/ssh/ssh_config")
_MAX_DEPTH = 16
_NAMED = ("canonicalizehostname",)
_LINE = re.compile(r"\s*([A-Za-z0-9]+)(?:\s*=\s*|\s+)(.*?)\s*$")


class _Unclear(Exception):
    """The configuration may treat each name in its own way."""


def likeness(config: str | None, home: Path, name: str) -> tuple[tuple[object, ...], str] | None:
    """Return a value that is equal for names to which the configuration gives the same settings, and the address of this name.

    ``config`` is the file that replaces the user's and the system's (``ssh -F``), if there is one. The value also changes with
    every change of those files. None where names may differ in a way that is not judged here: a ``Match``, a token such as
    ``%h``, an unreadable file.
    """
    places = [(Path(config).expanduser(), home / ".ssh")] if config else [(home / ".ssh" / "config", home / ".ssh")]
    places += [] if config else [(_SYSTEM, _SYSTEM.parent)]
    try:
        lines = [line for path, base in places for line in _in_effect(path, base, name, 0)] if config != "none" else []
    except (_Unclear, OSError, UnicodeError):
        return None
    address = next((value for keyword, value in lines if keyword == "hostname"), name)
    return tuple(line for line in lines if line[0] != "hostname"), address.lower()


def _in_effect(path: Path, base: Path, name: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield (keyword, value) of what is in effect for ``name`` in a file, if it is there, and in those it includes."""
    if depth > _MAX_DEPTH:
        raise _Unclear
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    for patterns, lines in _blocks(path, (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)):
        for keyword, value in lines if _chosen(patterns, name) else ():
            if keyword in _NAMED or set(value) & set("%$") or ('"' in value and keyword in ("include", "hostname")):
                raise _Unclear
            if keyword != "include":
                yield keyword, value
                continue
            for word in value.split():
                named = Path(word).expanduser() if word.startswith(("/", "~")) else base / word
                for each in sorted(Path(named.anchor).glob(str(named.relative_to(named.anchor)))):
                    yield from _in_effect(each, base, name, depth + 1)


@lru_cache(maxsize=16)
def _blocks(path: Path, state: tuple[int, ...]) -> list[tuple[tuple[str, ...], list[tuple[str, str]]]]:
    """Return (patterns of a ``Host`` line, lines below it) of a file in order; read once for each state of it."""
    blocks: list[tuple[tuple[str, ...], list[tuple[str, str]]]] = [(("*",), [])]
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.match(line)
        if not found or found[1].lower() == "match" or (found[1].lower() == "host" and '"' in found[2]):
            raise _Unclear
        if found[1].lower() == "host":
            blocks.append((tuple(found[2].split()), []))
        else:
            blocks[-1][1].append((found[1].lower(), found[2]))
    return blocks


def _chosen(patterns: Sequence[str], name: str) -> bool:
    """Tell whether the patterns of a ``Host`` line mean a name."""
    chosen = False
    for pattern in patterns:
        wanted, glob = not pattern.startswith("!"), pattern.removeprefix("!")
        if glob == name or (set(glob) & set("*?") and fnmatchcase(name, glob.replace("[", "[[]"))):
            if not wanted:
                return False
            chosen = True
    return chosen
