r"""Conversion of an argument list into the single string that an SSH server passes to a login
shell.

That shell may be sh, bash, dash, zsh, csh, tcsh or fish. They have little in common, so the string
consists only of single-quoted words of plain characters, and starts ``/bin/sh``, which does the
rest. Characters that the shells treat differently inside single quotes (``'`` itself, the backslash
for fish, ``!`` and newline for csh, everything outside ASCII) are sent as octal numbers, which
``printf`` of that ``/bin/sh`` converts back. Long words and long lists are sent in the same way, in
pieces, because the original csh accepts neither.

>>> remote_command(["echo", "two words"])
'exec /bin/sh -c \'exec "$0" "$@"\' \'echo\' \'two words\''
>>> print(remote_command(["echo", "wow!"]))
exec /bin/sh -c 'IFS=; eval "exec $(printf "$0$*")"' '\047echo\047 \047wow\041\047'

Both forms ``exec``, so that the process replaces the shells, and the server sees the signal that
ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from orchestrator.errors import ConfigError

COMMAND_LIMIT = 131_071
"""Bytes that Linux accepts as a single argument; the login shell gets the whole string as one."""

_PIECE = 900  # bytes in a word, and four times the words in a list, that the BSD csh accepts ("Word too long.")
_PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b"'\\!")
_PERCENT = ord("%")


def remote_command(argv: Sequence[str]) -> str:
    """Return the ASCII string that makes any login shell run exactly ``argv``; the program is
    looked up in the node's PATH.

    Raises ConfigError for an empty list, a NUL byte, a program name that is empty or looks like an
    option, and for more than
    `COMMAND_LIMIT` bytes: long data belongs on standard input.
    """
    words = [_encode(position, word) for position, word in enumerate(argv)]
    if not words or not words[0] or words[0].startswith(b"-"):
        raise ConfigError(
            f"expected a program and its arguments, got {list(argv)[:3]!r}", where="remote command"
        )
    if len(words) <= _PIECE // 4 and all(
        len(word) <= _PIECE and _PLAIN.issuperset(word) for word in words
    ):
        command = (
            f"""exec /bin/sh -c 'exec "$0" "$@"' {_quote(word.decode("ascii") for word in words)}"""
        )
    else:
        script = b" ".join(b"'" + word.replace(b"'", b"'\\''") + b"'" for word in words)
        # A piece must not end in the middle of an octal number: fish would take its backslash for
        # one before the quote.
        step = _PIECE // 4
        pieces = (
            "".join(map(_printf_byte, script[start : start + step]))
            for start in range(0, len(script), step)
        )
        command = f"""exec /bin/sh -c 'IFS=; eval "exec $(printf "$0$*")"' {_quote(pieces)}"""
    if len(command) > COMMAND_LIMIT:
        raise ConfigError(
            f"expected a command line of at most {COMMAND_LIMIT} bytes, got {len(command)}",
            where=f"remote command {argv[0]!r}",
            hint="send long data through standard input",
        )
    return command


def _encode(position: int, word: str) -> bytes:
    encoded = word.encode("utf-8", "surrogateescape")
    if b"\0" in encoded:
        raise ConfigError(
            "expected an argument without NUL, got one with it",
            where=f"remote command, argument {position}",
        )
    return encoded


def _quote(words: Iterable[str]) -> str:
    return " ".join(f"'{word}'" for word in words)


def _printf_byte(byte: int) -> str:
    if byte == _PERCENT:
        return "%%"
    return chr(byte) if byte in _PLAIN else f"\\{byte:03o}"
