"""A second user of this machine, and programs that are started as that user."""

from __future__ import annotations

import os
import pwd
import secrets
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.support.judge import wait_for

__all__ = ["Other", "missing", "second_user", "taking"]


@dataclass(frozen=True, slots=True)
class Other:
    """A user who has nothing to do with ours."""

    name: str
    number: int


def missing() -> str:
    """Return why there can be no other user here; empty where there can be one."""
    return "" if os.geteuid() == 0 else "being another user needs root"


@contextmanager
def second_user(*passwords: Path) -> Iterator[Other]:
    """Have another user, who is entered in these files of nodes with names of their own; all
    processes of it end.

    This machine's own /etc/passwd stays as it is: `useradd` replaces that file, and the kernel then
    takes away what other namespaces have mounted over it, as servers of tests beside this one have.
    """
    name, number = f"orch-{secrets.token_hex(4)}", _unused_number()
    before = {path: path.read_text() for path in passwords}
    for path, text in before.items():
        path.write_text(f"{text}{name}:x:{number}:65534::/:/bin/sh\n")  # in place: the node sees it
    try:
        yield Other(name, number)
    finally:
        _end_all_of(number)
        for path, text in before.items():
            path.write_text(text)


def _unused_number() -> int:
    """Return a number that no user has, of those that systemd leaves to users without a name."""
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    return secrets.choice([number for number in range(61184, 65520) if number not in taken])


def _end_all_of(number: int) -> None:
    """Kill the processes of a second user."""

    def living() -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and entry.stat().st_uid == number:
                    found.append(int(entry.name))
        return found

    for pid in living():
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not living(), 30, "processes of another user are left")


_TAKE = """
import json, socket, sys, time
name, kinds, said = json.loads(sys.argv[1])
print("on", flush=True)
while True:
    rows = [line.split() for line in open("/proc/self/net/unix")]
    seen = {row[7] for row in rows if len(row) == 8}
    found = sorted(one for one in seen if one.startswith(name))
    if not found:
        time.sleep(0.002)
        continue
    print(json.dumps(found), flush=True)
    break
held = []
for one in found:
    for kind in kinds:
        while True:
            taker = socket.socket(socket.AF_UNIX, kind)
            try:
                taker.bind(chr(0) + one[1:])
                break
            except OSError:
                taker.close()
                time.sleep(0.001)
        if kind == socket.SOCK_STREAM:
            taker.listen(64)
        held.append(taker)
print("taken", flush=True)
listeners = [one for one in held if one.type == socket.SOCK_STREAM]
while listeners:
    client = listeners[0].accept()[0]
    try:
        client.sendall(said.encode())
    except OSError:
        pass
    client.close()
sys.stdin.read()
"""


def taking(inside: Sequence[str], other: Other, words: str) -> list[str]:
    """Return the command by which another user waits for abstract addresses to appear, and takes
    them once they are free.

    ``words`` is JSON of how the names begin, the kinds of sockets, and the reply to everybody who
    connects.
    """
    become = ["setpriv", f"--reuid={other.number}", "--regid=65534", "--clear-groups"]
    return [*inside, *become, sys.executable, "-I", "-S", "-c", _TAKE, words]
