"""A store in a folder of this machine, which may be on NFS, or of another one, through a connection
of `orchestrator.transport`.

One shell script does all of it on either: a store's machine is often one without Python.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from orchestrator.errors import ConfigError, DataError, TransportError
from orchestrator.features.store.place import PIECE_BYTES, sha256_of, too_long, unreadable
from orchestrator.inventory import Host
from orchestrator.transport import Channel, Transport
from orchestrator.transport.program import ProgramChannel

_TIMEOUT_S = 60.0
_LEAST_BYTES_PER_S = 5e6
"""How slow a disk may be that flushes and reads again what it was sent."""
_MISSING, _CUT, _CHANGED, _LOST, _ODD, _CLOSED, _NO_FOLDER = range(44, 51)

# Files get the folder's own permissions, whatever the pusher's umask. `sync FILE` needs coreutils
# 8.24.
_SCRIPT = f"""
set -eu
export LC_ALL=C
op=$1 root=$2 name=$3
missing() {{
    case $(ls -d -- "$1" 2>&1) in *"Permission denied") exit {_CLOSED};; esac
    exit {_MISSING}
}}
regular() {{
    [ -e "./$name" ] || [ -h "./$name" ] || missing "./$name"
    [ -f "./$name" ] && [ ! -h "./$name" ] || exit {_ODD}
    [ -r "./$name" ] || exit {_CLOSED}
}}
if [ "$op" = make ]; then
    [ ! -d "$root" ] || exit 0
    [ ! -e "$root" ] || exit {_NO_FOLDER}
    exec mkdir -- "$root"
fi
[ -d "$root" ] || missing "$root"
[ -x "$root" ] || exit {_CLOSED}
cd -- "$root"
case $op in
sizes)
    [ -d "./$name" ] || exit 0
    [ -r "./$name" ] && [ -x "./$name" ] || exit {_CLOSED}
    exec ls -ln "./$name";;
read)
    regular
    tail -c "+$4" "./$name" | head -c "$5";;
fetch)
    regular
    exec head -c "$4" "./$name";;
publish)
    mode=$(stat -c %a .) folder=./$(dirname "$name") base=$(basename "$name")
    [ ! -h "$folder" ] || exit {_NO_FOLDER}
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


class FolderPlace:
    """Files below a folder, with its permissions. ``connect`` opens the connection to its machine;
    without it, it is a folder of this one.
    """

    def __init__(
        self, title: str, root: str, connect: Callable[[], Transport] | None = None
    ) -> None:
        self.title = title
        self._root = root
        self._connect = connect
        self._transport: Transport | None = None

    def make(self) -> None:
        """Make the folder, unless it exists."""
        self._run("make")

    def sizes(self, folder: str) -> dict[str, int | None]:
        """Return the names in a folder, with the sizes of files."""
        sizes = {}
        for line in self._run("sizes", folder).decode("utf-8", "replace").splitlines():
            row = line.split(None, 8)
            if len(row) == 9:
                is_file = row[0].startswith("-") and row[4].isdecimal()
                name = row[8].partition(" -> ")[0] if row[0].startswith("l") else row[8]
                sizes[name] = int(row[4]) if is_file else None
        return sizes

    def read(self, name: str, start: int, size: int) -> bytes:
        """Return bytes of a file."""
        return self._run("read", name, str(start + 1), str(size))

    def fetch(self, name: str, target: Path, most: int) -> None:
        """Copy a file."""
        left = most
        with target.open("xb") as out:

            def write(data: bytes) -> None:
                nonlocal left
                left -= len(data)
                if left < 0:
                    raise too_long(f"{self.title}/{name}", most)
                out.write(data)

            try:
                self._stream(write, "fetch", name, str(most + 1))
            except BaseException:
                target.unlink()
                raise

    def publish(self, name: str, source: Path) -> None:
        """Make a file appear: sent under a hidden name, its size and digest compared there, then
        renamed. What killed writers of this name left is removed.
        """
        size = source.stat().st_size
        words = str(size), sha256_of(source), secrets.token_hex(8)
        self._run(
            "publish", name, *words, source=source, timeout_s=_TIMEOUT_S + size / _LEAST_BYTES_PER_S
        )

    def _run(
        self,
        operation: str,
        name: str = "",
        *words: str,
        source: Path | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> bytes:
        pieces: list[bytes] = []
        self._stream(pieces.append, operation, name, *words, source=source, timeout_s=timeout_s)
        return b"".join(pieces)

    def _stream(
        self,
        take: Callable[[bytes], object],
        operation: str,
        name: str,
        *words: str,
        source: Path | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        """Run the script, send it a file, and pass its output on. Raises what its status means."""
        channel = self._start(
            ["sh", "-c", _SCRIPT, "orch-store", operation, self._root, name, *words]
        )
        try:
            if source:
                self._send(channel, source)
            channel.shutdown_write()
            while data := channel.recv(timeout_s):
                take(data)
            code, signal = channel.ending(timeout_s)
            stderr = channel.stderr_tail()
        except TimeoutError:
            raise TransportError(
                "the machine stopped sending data",
                kind="node_lost",
                where=f"{self.title}/{name}",
                hint="try again",
            ) from None
        finally:
            channel.close()
        if code != 0:
            lines = stderr.decode("utf-8", "backslashreplace").strip().splitlines()
            said = lines[-1][:300] if lines else f"the script ended with {signal or code}"
            raise self._fault(operation, f"{self.title}/{name}".rstrip("/"), code, said)

    def _start(self, argv: list[str]) -> Channel:
        if not self._connect:
            return ProgramChannel(Host("localhost", "localhost"), argv)
        if not self._transport:
            self._transport = self._connect()
        return self._transport.popen(argv, timeout_s=_TIMEOUT_S)

    def _send(self, channel: Channel, source: Path) -> None:
        try:
            with source.open("rb") as stream:
                while piece := stream.read(PIECE_BYTES):
                    channel.send(piece)
        except TransportError:
            if self._transport and not self._transport.alive:
                raise  # otherwise the script ended early, and says why

    @staticmethod
    def _fault(operation: str, where: str, code: int | None, said: str) -> Exception:
        """Return the error for a status of the script."""
        if code == _MISSING:
            return FileNotFoundError(where)
        if code == _CLOSED:
            return unreadable(where)
        if code == _ODD:
            message = "expected a regular file, found something else"
            return DataError(message, kind="state_damaged", where=where)
        if code == _NO_FOLDER:
            message = "expected a folder, found something else"
            return ConfigError(message, kind="unsafe_path", where=where)
        if code in (_CUT, _CHANGED):
            message = "expected the bytes that were sent, others arrived"
            return TransportError(message, kind="transfer_corrupt", where=where, hint="push again")
        if operation == "make":
            hint = "make the folder above it first, or name another one"
            return ConfigError(
                f"cannot be made: {said}", kind="unsafe_path", where=where, hint=hint
            )
        hint = "all who push need write access to the store's folder and to archives/ in it"
        return DataError(said, kind="storage_failed", where=where, hint=hint)
