"""Groups of host names that the user's ssh configuration treats the same, so that `ssh -G` runs
only once per group.

`ssh -G` takes milliseconds of processor time per name, which for hundreds of hosts is longer than
connecting to them. This module determines only which lines apply to a name, and returns None if
that is unclear; the settings themselves come from ssh.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

_SYSTEM = Path("/etc/ssh/ssh_config")
_MAX_DEPTH = 16
_NAMED = ("canonicalizehostname",)
_LINE = re.compile(r"\s*([A-Za-z0-9]+)(?:\s*=\s*|\s+)(.*?)\s*$")


class _Unclear(Exception):
    """The configuration may treat each name differently."""


def likeness(config: str | None, home: Path, name: str) -> tuple[tuple[object, ...], str] | None:
    """Return a value that is equal for all names with the same settings, and the address of this
    name.

    ``config`` is the file that replaces the user's and the system's configuration (``ssh -F``), if
    any. The value also changes with the lines of those files. Returns None if names may differ in
    other ways: a ``Match``, a token such as ``%h``, an unreadable file.
    """
    places = (
        [(Path(config).expanduser(), home / ".ssh")]
        if config
        else [(home / ".ssh" / "config", home / ".ssh")]
    )
    places += [] if config else [(_SYSTEM, _SYSTEM.parent)]
    try:
        lines = []
        if config != "none":
            lines = [line for path, base in places for line in _in_effect(path, base, name, 0)]
    except (_Unclear, OSError, UnicodeError):
        return None
    address = next((value for keyword, value in lines if keyword == "hostname"), name)
    return tuple(line for line in lines if line[0] != "hostname"), address.lower()


def _in_effect(path: Path, base: Path, name: str, depth: int) -> Iterator[tuple[str, str]]:
    """Yield (keyword, value) of the lines that apply to ``name`` in a file, if it exists, and in
    the files that it includes.
    """
    if depth > _MAX_DEPTH:
        raise _Unclear
    try:
        status = path.stat()
    except FileNotFoundError:
        return
    state = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    for lines in _read(path, state).about(name):
        for keyword, value in lines:
            if (
                keyword in _NAMED
                or set(value) & set("%$")
                or ('"' in value and keyword in ("include", "hostname"))
            ):
                raise _Unclear
            if keyword != "include":
                yield keyword, value
                continue
            for word in value.split():
                named = Path(word).expanduser() if word.startswith(("/", "~")) else base / word
                for included in sorted(
                    Path(named.anchor).glob(str(named.relative_to(named.anchor)))
                ):
                    yield from _in_effect(included, base, name, depth + 1)


class _File:
    """A configuration file, read once: the lines below each ``Host`` line, and an index of the
    names without wildcards.

    Without the index, hosts that each have a block would cost the square of their number.
    """

    def __init__(self, path: Path) -> None:
        self._blocks: list[tuple[tuple[str, ...], list[tuple[str, str]]]] = [(("*",), [])]
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match = _LINE.match(line)
            if (
                not match
                or match[1].lower() == "match"
                or (match[1].lower() == "host" and '"' in match[2])
            ):
                raise _Unclear
            if match[1].lower() == "host":
                self._blocks.append((tuple(match[2].split()), []))
            else:
                self._blocks[-1][1].append((match[1].lower(), match[2]))
        self._plain: dict[str, set[int]] = {}
        self._patterned: set[int] = set()
        for number, (patterns, _) in enumerate(self._blocks):
            if any(set(pattern) & set("*?!") for pattern in patterns):
                self._patterned.add(number)
            for pattern in patterns:
                self._plain.setdefault(pattern, set()).add(number)

    def about(self, name: str) -> Iterator[list[tuple[str, str]]]:
        """Yield the lines of each block that applies to ``name``, in order."""
        for number in sorted(self._plain.get(name, set()) | self._patterned):
            patterns, lines = self._blocks[number]
            if _chosen(patterns, name):
                yield lines


@lru_cache(maxsize=16)
def _read(path: Path, state: tuple[int, ...]) -> _File:
    """Read a configuration file, once per ``state``."""
    return _File(path)


def _chosen(patterns: Sequence[str], name: str) -> bool:
    """Return True if the patterns of a ``Host`` line match a name."""
    chosen = False
    for pattern in patterns:
        negated, glob = pattern.startswith("!"), pattern.removeprefix("!")
        if glob == name or (set(glob) & set("*?") and fnmatchcase(name, glob.replace("[", "[[]"))):
            if negated:
                return False
            chosen = True
    return chosen
