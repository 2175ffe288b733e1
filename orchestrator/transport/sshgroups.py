"""Which names the user's ssh configuration cannot tell apart, so that `ssh -G` need be asked only once for all of them.

Asking takes milliseconds of a processor for every name, which for hundreds of hosts is longer than to connect to them. Only the
lines that choose by name are read here, and only to say "the same" or "I do not know": what the settings are, ssh says.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

__all__ = ["likeness"]

_SYSTEM = Path("/etc/ssh/ssh_config")
_MAX_DEPTH = 16
_NAMED = ("hostname", "canonicalizehostname", "match")
_LINE = re.compile(r"\s*([A-Za-z0-9]+)(?:\s*=\s*|\s+)(.*?)\s*$")


class _Unclear(Exception):
    """The configuration may treat each name in its own way."""


def likeness(config: str | None, home: Path, name: str) -> tuple[object, ...] | None:
    """Return a value that is equal for names to which the configuration gives the same settings but for the name itself.

    ``config`` is the file that replaces the user's and the system's (``ssh -F``), if there is one. The value also changes with
    every change of those files. None where names may differ in a way that is not judged here: a ``Match``, a ``HostName``, a
    token such as ``%h``, an unreadable file.
    """
    places = [(Path(config).expanduser(), home / ".ssh")] if config else [(home / ".ssh" / "config", home / ".ssh")]
    places += [] if config else [(_SYSTEM, _SYSTEM.parent)]
    try:
        lines = [line for path, base in places for line in _lines(path, base, 0)] if config != "none" else []
        return tuple(_choice(keyword, value, name) for keyword, value in lines)
    except (_Unclear, OSError, UnicodeError):
        return None


def _lines(path: Path, base: Path, depth: int) -> Iterator[tuple[str, str]]:
    """Yield (keyword, value) of a file and of those it includes; nothing where it is not there."""
    if depth > _MAX_DEPTH:
        raise _Unclear
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _LINE.match(line)
        if not found or "%" in line or "$" in line:
            raise _Unclear
        keyword, value = found[1].lower(), found[2]
        if keyword in _NAMED or '"' in value:
            raise _Unclear
        yield keyword, value
        if keyword == "include":
            for word in value.split():
                named = Path(word).expanduser() if word.startswith(("/", "~")) else base / word
                for each in sorted(Path(named.anchor).glob(str(named.relative_to(named.anchor)))):
                    yield from _lines(each, base, depth + 1)


def _choice(keyword: str, value: str, name: str) -> tuple[str, str] | tuple[str, str, bool]:
    """Return a line of the configuration, one that begins a block with whether the block is meant for ``name``."""
    if keyword != "host":
        return keyword, value
    words = value.split()
    if any(word.startswith("!") and fnmatchcase(name, _glob(word[1:])) for word in words):
        return keyword, value, False
    return keyword, value, any(not word.startswith("!") and fnmatchcase(name, _glob(word)) for word in words)


def _glob(pattern: str) -> str:
    return pattern.replace("[", "[[]")
