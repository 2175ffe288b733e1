"""A judge that stands outside the tool: it counts a lab node's processes and files from the
machine, and keeps its own clock.

It shares no code with what it judges. A process belongs to a node because the kernel says so (its
process namespace), not because the tool knows it; in labs without namespaces the node's mark in the
environment has to do.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orchestrator.lab import Lab

_SSHD = ("sshd", "sshd-session", "sshd-auth")
# How command lines of ours look: the wrapper of a rank, the runner sent over stdin, and the
# trainers.
_OURS = ("rank_wrapper.py", "train_", "exec(sys.stdin")


@dataclass(frozen=True, slots=True)
class Proc:
    """One process of a node. ``pid`` is its number on the machine; a defunct one has no cmdline and
    no environment.
    """

    node: str
    pid: int
    comm: str
    cmdline: str
    environ_run_id: str
    defunct: bool

    @property
    def is_ours(self) -> bool:
        """Claim that the tool started it; a defunct process that is not sshd's was forgotten by its
        parent.
        """
        if self.defunct:
            return self.comm not in _SSHD
        return bool(self.environ_run_id) or any(mark in self.cmdline for mark in _OURS)


def processes(lab: Lab, node: str) -> list[Proc]:
    """Return a node's processes without its first one and without sshd's listener. A node that is
    down has none.
    """
    first = lab.node(node).pid
    if not first:
        return []
    everyone = dict(_parents())
    inside = {pid for pid in everyone if _belongs(lab, node, first, pid)}
    defunct = {pid for pid, parent in everyone.items() if parent in inside and _state(pid) == "Z"}
    listed = (_proc(node, pid) for pid in sorted((inside | defunct) - {first}))
    return [
        process for process in listed if process is not None and "[listener]" not in process.cmdline
    ]


def ours(lab: Lab) -> list[Proc]:
    """Return what the tool has running, or left defunct, on any node."""
    return [
        process for node in lab.nodes for process in processes(lab, node.name) if process.is_ours
    ]


def wait_until_clean(lab: Lab, within_s: float) -> float:
    """Return after how many seconds no process of ours was left on any node; fails naming them when
    there still are.
    """
    return wait_for(lambda: not ours(lab), within_s, lambda: f"left on nodes: {ours(lab)}")


LIMIT_S = 1800.0
"""How long a test waits for something that is to come: no statement of how soon it comes on a quiet
machine.
"""

patience = 1.0
"""How many times longer than a bound says anything may take. More than one where tests share a
machine with who knows what: there they show that something ends, and the fault suite on a quiet
machine shows how soon."""


def in_time(took_s: float, bound_s: float) -> bool:
    """Claim that something took no longer than its bound, as far as this machine can be asked to
    keep it.
    """
    return took_s <= bound_s * patience


def slowness() -> float:
    """Return how many times as long as on a quiet machine a program may take at the moment, as many
    share a core; at least 1.
    """
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1) / 4)


def steps(count: int) -> str:
    """Return the steps of a run that has to last until something else has happened: as many on a
    quiet machine, and more on a busy one.
    """
    return str(round(count * slowness()))


def names_killed_runner(node: str, text: str) -> bool:
    """Claim that a text says whose node runner was killed. On a busy machine its silence may be
    noticed before the end of its connection.
    """
    return names_lost_node(node, f"{node}: the node runner was killed", text)


def names_lost_node(node: str, words: str, text: str) -> bool:
    """Claim that a text says why a node is lost. On a busy machine its silence may be noticed
    before the reason is known.
    """
    return words in text or (patience > 1 and f"{node}: no sign of life for" in text)


def wait_for(
    claim: Callable[[], object], within_s: float, otherwise: Callable[[], str] | str
) -> float:
    """Return after how many seconds the claim held; fails with ``otherwise`` when it did not in
    time.
    """
    begin = time.monotonic()
    while not claim():
        if not in_time(time.monotonic() - begin, within_s):
            text = otherwise if isinstance(otherwise, str) else otherwise()
            raise AssertionError(f"not within {within_s:g} s: {text}")
        time.sleep(0.01)
    return time.monotonic() - begin


def digests(lab: Lab, node: str, folder: str = ".") -> dict[str, str]:
    """Return the SHA-256 of every file in a folder of a node's home, read from outside, by its path
    in that folder.
    """
    top = lab.node(node).home / folder
    return {
        str(path.relative_to(top)): sha256(path)
        for path in sorted(top.rglob("*"))
        if path.is_file()
    }


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal text."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _parents() -> Iterator[tuple[int, int]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (text := _read(entry / "stat")):
            yield int(entry.name), int(text.rpartition(")")[2].split()[1])


def _belongs(lab: Lab, node: str, first: int, pid: int) -> bool:
    if lab.kind != "namespaces":
        return {f"ORCH_LAB={lab.marker}", f"ORCH_LAB_NODE={node}"} <= set(
            _read(Path(f"/proc/{pid}/environ")).split("\0")
        )
    # A pod has a process namespace of its own, in the network of its node.
    kind = "net" if lab.pods else "pid"
    try:
        ours, nodes = (Path(f"/proc/{one}/ns/{kind}").readlink() for one in (pid, first))
        return ours == nodes
    except OSError:
        return False  # gone, defunct, or somebody else's


def _state(pid: int) -> str:
    return _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].strip()[:1]


def _proc(node: str, pid: int) -> Proc | None:
    folder = Path(f"/proc/{pid}")
    stat = _read(folder / "stat")
    if not stat:
        return None
    variables = _read(folder / "environ").split("\0")
    run_id = next(
        (value.partition("=")[2] for value in variables if value.startswith("ORCH_RUN_ID=")), ""
    )
    comm = stat.partition("(")[2].rpartition(")")[0]
    return Proc(
        node,
        pid,
        comm,
        _read(folder / "cmdline").replace("\0", " ").strip(),
        run_id,
        _state(pid) == "Z",
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
