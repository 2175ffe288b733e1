"""A store in a folder of a machine, through a connection of `orchestrator.transport`.

All that the machine needs is a shell and the usual programs: a store's machine is often one without
Python.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from orchestrator.errors import ConfigError, DataError, TransportError
from orchestrator.features.store.place import HINT, PIECE_BYTES, sha256_of, too_long
from orchestrator.transport import Channel, Result, Transport

__all__ = ["MachinePlace"]

_TIMEOUT_S = 60.0
_LEAST_BYTES_PER_S = 5e6
"""How slow a disk may be that flushes and reads again what it was sent."""
_MISSING, _CUT, _CHANGED, _LOST, _ODD = 44, 45, 46, 47, 48

# The folder's own permissions hold for what is in it, whatever the umask of who pushes. `sync FILE`
# is of coreutils 8.24.
_SCRIPT = f"""
set -eu
op=$1 root=$2 name=$3
[ "$op" != make ] || {{ [ -d "$root" ] || exec mkdir -- "$root"; exit 0; }}
[ -d "$root" ] || exit {_MISSING}
cd -- "$root"
case $op in
sizes)
    [ -d "./$name" ] || exit 0
    LC_ALL=C exec ls -ln "./$name";;
read)
    [ -e "./$name" ] || exit {_MISSING}
    [ -f "./$name" ] && [ ! -h "./$name" ] || exit {_ODD}
    tail -c "+$4" "./$name" | head -c "$5";;
fetch)
    [ -e "./$name" ] || [ -h "./$name" ] || exit {_MISSING}
    [ -f "./$name" ] && [ ! -h "./$name" ] || exit {_ODD}
    exec head -c "$4" "./$name";;
publish)
    mode=$(stat -c %a .) folder=./$(dirname "$name") base=$(basename "$name")
    [ -d "$folder" ] || mkdir -m "$mode" "$folder" || [ -d "$folder" ]
    part=$folder/.$base.$6.part
    trap 'rm -f "$part"' EXIT
    trap 'exit 1' HUP INT TERM PIPE
    # Who has published under this name meanwhile has removed what was unfinished.
    unless() {{ [ -e "$part" ] || [ ! -e "./$name" ] || exit 0; exit "$1"; }}
    cat >"$part"
    [ "$(wc -c <"$part")" -eq "$4" ] || unless {_CUT}
    ! command -v sha256sum >/dev/null || [ "$(sha256sum <"$part" | cut -c 1-64)" = "$5" ] || unless {_CHANGED}
    chmod "$(printf %o $((0$mode & 0666)))" "$part" || unless {_LOST}
    sync "$part" 2>/dev/null || sync
    mv -f "$part" "./$name" || unless {_LOST}
    sync "$folder" 2>/dev/null || sync
    rm -f "$folder/.$base".*.part;;
esac
"""


class MachinePlace:
    """Files below a folder of a machine; ``connect`` is called for the first of them."""

    def __init__(self, title: str, root: str, connect: Callable[[], Transport]) -> None:
        self.title = title
        self._root = root
        self._connect = connect
        self._transport: Transport | None = None

    def make(self) -> None:
        """Make the folder, unless it exists."""
        result = self._run("make")
        if result.code:
            hint = "make the folder above it first, or name another one"
            raise ConfigError(
                f"cannot be made: {_said(result.stderr)}",
                kind="unsafe_path",
                where=self.title,
                hint=hint,
            )

    def sizes(self, folder: str) -> dict[str, int | None]:
        """Return what is in a folder."""
        lines = (
            self._checked(self._run("sizes", folder), folder)
            .decode("utf-8", "replace")
            .splitlines()
        )
        rows = [row for line in lines if len(row := line.split(None, 8)) == 9]
        return {
            row[8]: int(row[4]) if row[0].startswith("-") and row[4].isdecimal() else None
            for row in rows
        }

    def read(self, name: str, start: int, size: int) -> bytes:
        """Return bytes of a file."""
        return self._checked(self._run("read", name, str(start + 1), str(size)), name)

    def fetch(self, name: str, target: Path, most: int) -> None:
        """Copy a file."""
        channel = self._open().popen(self._argv("fetch", name, str(most + 1)), timeout_s=_TIMEOUT_S)
        try:
            channel.shutdown_write()
            left = most
            with target.open("xb") as out:
                while data := channel.recv(_TIMEOUT_S):
                    left -= len(data)
                    if left < 0:
                        raise too_long(f"{self.title}/{name}", most)
                    out.write(data)
            self._checked(self._end(channel, _TIMEOUT_S), name)
        except TimeoutError:
            raise self._silent(name) from None
        finally:
            channel.close()

    def publish(self, name: str, source: Path) -> None:
        """Make a file appear: sent under a hidden name, its size and digest compared on the
        machine, then renamed.
        """
        size = source.stat().st_size
        argv = self._argv("publish", name, str(size), sha256_of(source), secrets.token_hex(8))
        channel = self._open().popen(argv, timeout_s=_TIMEOUT_S)
        try:
            with source.open("rb") as stream:
                try:
                    while piece := stream.read(PIECE_BYTES):
                        channel.send(piece)
                except TransportError:
                    if not self._open().alive:
                        raise  # otherwise the script ended early, and says why
            channel.shutdown_write()
            self._checked(self._end(channel, _TIMEOUT_S + size / _LEAST_BYTES_PER_S), name)
        except TimeoutError:
            raise self._silent(name) from None
        finally:
            channel.close()

    def close(self) -> None:
        """Close the connection."""
        if self._transport:
            self._transport.close()

    def _open(self) -> Transport:
        if self._transport is None:
            self._transport = self._connect()
        return self._transport

    def _argv(self, operation: str, *words: str) -> list[str]:
        return ["sh", "-c", _SCRIPT, "orch-store", operation, self._root, *(words or ("",))]

    def _run(self, operation: str, *words: str) -> Result:
        return self._open().run(self._argv(operation, *words), timeout_s=_TIMEOUT_S)

    @staticmethod
    def _end(channel: Channel, timeout_s: float) -> Result:
        code, signal = channel.ending(timeout_s)
        return Result(code, signal, b"", channel.stderr_tail())

    def _checked(self, result: Result, name: str) -> bytes:
        """Return the output of the script, or raise what its status says."""
        if result.code == 0:
            return result.stdout
        where = f"{self.title}/{name}"
        if result.code == _MISSING:
            raise FileNotFoundError(where)
        if result.code == _ODD:
            raise DataError(
                "expected a regular file, found something else", kind="state_damaged", where=where
            )
        if result.code in (_CUT, _CHANGED):
            message = "expected the bytes that were sent, others arrived"
            raise TransportError(message, kind="transfer_corrupt", where=where, hint="push again")
        said = _said(result.stderr) or f"the script ended with {result.signal or result.code}"
        raise DataError(said, kind="storage_failed", where=where, hint=HINT)

    def _silent(self, name: str) -> TransportError:
        return TransportError(
            "the machine stopped sending data",
            kind="node_lost",
            where=f"{self.title}/{name}",
            hint="try again",
        )


def _said(stderr: bytes) -> str:
    lines = stderr.decode("utf-8", "backslashreplace").strip().splitlines()
    return lines[-1][:300] if lines else ""
