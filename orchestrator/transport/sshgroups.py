"""Which names the user's ssh configuration cannot tell apart, so that `ssh -G` need be asked only once for all of them.

Asking takes milliseconds of a processor for every name, which for hundreds of hosts is longer than to connect to them. Only
which lines are in effect for a name is found out here, and where that is not plain "I do not know" is said: what the settings
are, ssh says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

__all__ = ["likeness"]

_SYSTEM = Path("/etc/ssh/ssh_config")
_MAX_DEPTH = 16
_NAMED = ("canonicalizehostname", "match")
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
        lines = [line for path, base in places for line in _lines(path, base, name, 0)] if config != "none" else []
    except (_Unclear, OSError, UnicodeError):
        return None
    address = next((value for keyword, value in lines if keyword == "hostname"), name)
    return tuple(line for line in lines if line[0] != "hostname"), address.lower()


def _lines(path: Path, base: Path, name: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield (keyword, value) of what is in effect for ``name`` in a file, if it is there, and in those it includes."""
    if depth > _MAX_DEPTH:
        raise _Unclear
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    active = True
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.match(line)
        if not found or found[1].lower() in _NAMED:
            raise _Unclear
        keyword, value = found[1].lower(), found[2]
        if keyword == "host":
            active = _chosen(value, name)
            continue
        if not active:
            continue
        if set(value) & set('%$"'):
            raise _Unclear
        if keyword != "include":
            yield keyword, value
            continue
        for word in value.split():
            named = Path(word).expanduser() if word.startswith(("/", "~")) else base / word
            for each in sorted(Path(named.anchor).glob(str(named.relative_to(named.anchor)))):
                yield from _lines(each, base, name, depth + 1)


def _chosen(patterns: str, name: str) -> bool:
    """Tell whether a ``Host`` line means a name."""
    if '"' in patterns:
        raise _Unclear
    words = patterns.split()
    if any(word.startswith("!") and fnmatchcase(name, _glob(word[1:])) for word in words):
        return False
    return any(not word.startswith("!") and fnmatchcase(name, _glob(word)) for word in words)


def _glob(pattern: str) -> str:
    return pattern.replace("[", "[[]")
