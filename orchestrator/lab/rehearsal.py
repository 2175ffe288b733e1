"""Bring a lab up, take it down, and run programs in it.

Every step of `up` can be cut short at any moment: `down` finds what was started by its marker, not by a list that might
not have been written yet.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from orchestrator.errors import ConfigError, RunError
from orchestrator.inventory.hostset import fold
from orchestrator.lab import cgroups, loopback, namespaces
from orchestrator.lab.description import described, gpu_settings, gpus_for_each, inventory_text
from orchestrator.lab.identity import write_identity
from orchestrator.lab.programs import choose_kind, run
from orchestrator.lab.state import Kind, Lab, LabNode, claim, load, mark_ready, read
from orchestrator.procs import Stat, ancestors, cmdline, descendants, end_all, environ, held_namespaces, namespace, snapshot

__all__ = ["argv_inside", "argv_on", "down", "environment", "load", "start_nodes", "up", "wait_until_answering"]

_ANSWER_TIMEOUT_S = 30.0


def up(
    directory: Path,
    *,
    nodes: int = 4,
    python: str = sys.executable,
    gpus_per_node: int | None = None,
    slots: int = 1,
    kind: str | None = None,
    mtu: int = 1500,
    share: Sequence[Path] = (),
    say: Callable[[str], None],
) -> Lab:
    """Build a lab in ``directory`` and return it when every node's SSH server answers.

    ``python`` is the nodes' interpreter, ``gpus_per_node`` None deals out the GPUs that are there, ``slots`` are the processes
    of a node without GPUs, ``kind`` None takes the best one possible here, ``share`` are folders that stay visible on the
    nodes of a namespace lab although they lie under /home, /root, /run, /tmp or the like. Raises ConfigError before anything
    is started, RunError when a node does not come up; either leaves nothing behind.
    """
    gpus = gpus_for_each(nodes, gpus_per_node)
    chosen, passed_over = choose_kind(kind)
    for reason in passed_over:
        say(f"lab: not {reason}")
    lab = _planned(directory.resolve(), chosen, nodes, _interpreter(python), mtu)
    if read(lab.directory) is not None:
        _clear_rest(lab.directory)
    claim(lab)
    try:
        write_identity(lab)
        lab.inventory.parent.mkdir(parents=True)
        text = inventory_text(lab, gpus=gpus, slots=slots, settings=gpu_settings(os.environ))
        lab.inventory.write_text(text, encoding="utf-8")
        _start_all(lab, share)
        wait_until_answering(lab, lab.nodes)
        mark_ready(lab)
    except BaseException:
        down(lab.directory)
        raise
    say(f"lab: {described(lab, gpus, slots)}")
    return lab


def _interpreter(python: str) -> str:
    """Return an interpreter's full path, without following the link by which a virtual environment is known."""
    if path := shutil.which(python):
        return str(Path(path).absolute())
    raise ConfigError(f"lab python: expected an interpreter, {python!r} is not a program")


def _planned(directory: Path, kind: Kind, nodes: int, python: str, mtu: int) -> Lab:
    if kind == "namespaces":
        addresses, port = namespaces.addresses(nodes), 22
    else:
        addresses = loopback.addresses(nodes)
        port = loopback.free_port(addresses)
    names = [f"node{index}" for index in range(1, nodes + 1)]
    members = tuple(LabNode(n, a, port, directory / "nodes" / n) for n, a in zip(names, addresses, strict=True))
    return Lab(directory, secrets.token_hex(8), kind, members, python, mtu)


def _clear_rest(directory: Path) -> None:
    """Remove what a lab that has died left behind; raises ConfigError when it is alive or may still be starting."""
    try:
        load(directory)
    except ConfigError as error:
        if "died" in error.message:
            down(directory)
            return
        raise
    raise ConfigError(f"a lab is up in {directory} already", hint="end it with `orch lab down`")


def _start_all(lab: Lab, share: Sequence[Path]) -> None:
    if lab.kind == "namespaces":
        namespaces.start(lab, [path.absolute() for path in share])
    else:
        start_nodes(lab, lab.nodes)


def start_nodes(lab: Lab, nodes: Sequence[LabNode]) -> None:
    """Start nodes that are down; `wait_until_answering` tells when they are up."""
    if lab.kind == "loopback":
        loopback.start_sshd(lab, nodes)
    elif lab.kind == "asyncssh":
        loopback.start_asyncssh(lab, nodes)
    else:
        for node in nodes:
            namespaces.start_node(lab, node)


def wait_until_answering(lab: Lab, nodes: Sequence[LabNode], *, timeout_s: float = _ANSWER_TIMEOUT_S) -> None:
    """Return when these nodes' SSH servers answer; raises RunError with what they wrote when one does not."""
    script = str(Path(__file__).with_name("banner.py"))
    targets = [f"{node.address}:{node.port}" for node in nodes]
    try:
        run([*argv_inside(lab, [sys.executable, "-I", "-S", script, str(timeout_s), *targets])], timeout_s=timeout_s + 30)
    except RunError as error:
        raise RunError(f"{error.message}{_last_words(lab, nodes)}", kind="node_unfit", where="lab") from error
    # Another lab's server may answer in the place of one of ours that found its port taken.
    if dead := [node.name for node in nodes if not node.pid]:
        raise RunError(f"{', '.join(dead)} ended at once{_last_words(lab, nodes)}", kind="node_unfit", where="lab")


def _last_words(lab: Lab, nodes: Sequence[LabNode]) -> str:
    logs = [lab.directory / "asyncssh.log", *(node.folder / name for node in nodes for name in ("console.log", "sshd.log"))]
    texts = [path.read_text(encoding="utf-8", errors="replace").strip()[-300:] for path in logs if path.exists()]
    return "".join(f"; {text}" for text in [text for text in texts if text][:3])


def argv_inside(lab: Lab, argv: Sequence[str]) -> list[str]:
    """Return what to execute to run ``argv`` on the controller's side, under the same process id; see also `environment`."""
    return [*namespaces.inside(lab), *argv] if lab.kind == "namespaces" else list(argv)


def argv_on(lab: Lab, node: str, argv: Sequence[str]) -> list[str]:
    """Return what to execute to run ``argv`` on a node, past SSH, in its home."""
    one = lab.node(node)
    return [*(namespaces.on_node(one) if lab.kind == "namespaces" else loopback.on_node(lab, one)), *argv]


def environment(lab: Lab) -> Mapping[str, str]:
    """Return what programs on the controller's side have in their environment beside the caller's own."""
    return {"ORCH_HOSTS": str(lab.inventory), "ORCH_LAB": lab.marker}


def down(directory: Path) -> list[str]:
    """End every process of the lab and remove its directory; return what was ended, alike ones in one line. Nothing there:
    nothing to do.

    The caller and its parents are spared, so that ``orch lab down`` works inside ``orch lab shell``.
    """
    lab = read(directory)
    if lab is None:
        return []
    nodes = {pid: node.name for node in lab.nodes if (pid := node.pid)}
    firsts, holder = set(nodes), lab.holder
    cgroups.release(lab)
    with held_namespaces(firsts | {holder}, "net") as networks, held_namespaces(firsts, "pid") as inner:
        shared = {namespace(os.getpid(), which) for which in ("net", "pid")}
        ended = end_all(partial(_members, lab, networks - shared, inner - shared))
    cgroups.clear(lab)
    others = Counter(ended[pid].name for pid in sorted(ended) if pid not in firsts | {holder})
    _remove(lab.directory)
    names = [fold(nodes.values())] if nodes else []
    return [*names, *(f"{count} x {name}" for name, count in others.items()), str(lab.directory)]


def _members(lab: Lab, networks: frozenset[str], inner: frozenset[str]) -> dict[int, Stat]:
    """Find the lab's processes: by its marker, by its network, by the sshd configuration they were given, and their children.

    OpenSSH overwrites its environment with a title, so that only its arguments tell whose it is. What runs inside a node
    of a namespace lab is left out: the kernel ends it with the holder.
    """
    processes = snapshot()
    marker, configured = f"ORCH_LAB={lab.marker}".encode(), os.fsencode(f"{lab.directory}/nodes/")
    belonging = {
        pid
        for pid in processes
        if marker in environ(pid)
        or (networks and namespace(pid, "net") in networks)
        or (processes[pid].name.startswith("sshd") and configured in cmdline(pid))
    }
    found = descendants(belonging, processes) - ancestors(os.getpid(), processes)
    return {pid: processes[pid] for pid in found if not (inner and namespace(pid, "pid") in inner)}


def _remove(directory: Path) -> None:
    """Remove the lab's files, ``lab.json`` last: until then a second ``down`` can go on where a first one was stopped."""
    for entry in directory.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != "lab.json":
            entry.unlink()
    (directory / "lab.json").unlink()
    directory.rmdir()
