"""Bring a lab up, take it down, and run programs in it.

Every step of `up` may be interrupted at any time: `down` finds the started processes by the lab's
marker, not by a list that might not have been written yet.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from orchestrator.errors import ConfigError, RunError
from orchestrator.inventory import fold
from orchestrator.lab import cgroups, loopback, namespaces
from orchestrator.lab import pods as podlab
from orchestrator.lab import slurm as slurmlab
from orchestrator.lab.description import describe, gpu_settings, gpus_for_each, inventory_text
from orchestrator.lab.identity import write_identity
from orchestrator.lab.machines import SHARED, Machines
from orchestrator.lab.machines import prepare as prepare_machines
from orchestrator.lab.machines import require as require_machines
from orchestrator.lab.programs import choose_kind, run
from orchestrator.lab.state import (
    Kind,
    Lab,
    LabNode,
    claim,
    last_words,
    load,
    mark_ready,
    read,
    remove,
)
from orchestrator.plural import plural
from orchestrator.procs import (
    Stat,
    ancestors,
    cmdline,
    descendants,
    end_all,
    environ,
    hold_namespaces,
    namespace,
    snapshot,
)

_ANSWER_TIMEOUT_S = 30.0
_BOOT_TIMEOUT_S = 300.0
"""For each machine that boots at the same time: emulated on a busy computer, one takes a minute."""


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
    slurm: bool = False,
    pods: bool = False,
    machines: Machines | None = None,
    say: Callable[[str], None],
) -> Lab:
    """Build a lab in ``directory`` and return it when every node's SSH server answers.

    ``python`` is the nodes' interpreter; ``gpus_per_node`` None distributes this machine's GPUs;
    ``slots`` is the number of ranks for a node without GPUs; ``kind`` None chooses the best kind
    that is possible on this machine; ``share`` are folders below private ones, such as /home,
    /root, /run or /tmp, that stay visible on the nodes of a namespace lab; ``slurm`` also starts
    Slurm, with one CPU for each rank; ``pods`` also the API server of a Kubernetes cluster;
    ``machines`` is what the nodes of a lab of machines are to have. Raises
    ConfigError before anything is started, RunError if a node does not start; neither leaves
    anything behind.
    """
    if kind == "machines":
        machines = machines or Machines()
    if machines and gpus_per_node is None:
        gpus_per_node = 0
    gpus = gpus_for_each(nodes, gpus_per_node)
    chosen, reasons = choose_kind("machines" if machines else kind)
    kernel = require_machines(machines, nodes, gpus) if machines else None
    for reason in reasons:
        say(f"lab: not {reason}")
    lab = _plan(directory.resolve(), chosen, nodes, _interpreter(python), mtu)
    lab = replace(lab, slurm=slurm, pods=pods)
    if pods:
        podlab.require(chosen)
    for note in slurmlab.require(chosen, lab.directory) if slurm else ():
        say(f"lab: {note}")
    if read(lab.directory) is not None:
        _clear_rest(lab.directory, say)
    claim(lab)
    try:
        write_identity(lab)
        lab.inventory.parent.mkdir(parents=True, exist_ok=True)
        workdir = f"{SHARED}/orch" if machines and machines.nfs else ""
        text = inventory_text(
            lab, gpus=gpus, slots=slots, settings=gpu_settings(os.environ), workdir=workdir
        )
        lab.inventory.write_text(text, encoding="utf-8")
        if slurm:
            slurmlab.prepare(lab, gpus or slots)
        if pods:
            podlab.prepare(lab, gpus, slots)
        if machines and kernel:
            prefix = namespaces.network_of(lab).prefixlen
            words = prepare_machines(lab, machines, kernel, cpus=slots, prefix=prefix, shares=share)
            say(f"lab: machines of {words}")
        _start_all(lab, share)
        if slurm:
            slurmlab.start(lab)
        if pods:
            podlab.start(lab, namespaces.inside(lab)).returncode = 0  # it outlives this process
        wait_until_answering(lab, lab.nodes)
        mark_ready(lab)
    except BaseException:
        down(lab.directory)
        raise
    say(f"lab: {describe(lab, gpus, slots)}")
    return lab


def _interpreter(python: str) -> str:
    """Return an interpreter's full path, without following links, because a virtual environment is
    recognised by its link.
    """
    if path := shutil.which(python):
        return str(Path(path).absolute())
    raise ConfigError(
        f"lab python: expected an interpreter, got {python!r}, which is not a program"
    )


def _plan(directory: Path, kind: Kind, nodes: int, python: str, mtu: int) -> Lab:
    if kind in ("namespaces", "machines"):
        addresses, port = namespaces.addresses(nodes), 22
    else:
        addresses = loopback.addresses(nodes)
        port = loopback.free_port(addresses)
    names = [f"node{index}" for index in range(1, nodes + 1)]
    members = tuple(
        LabNode(n, a, port, directory / "nodes" / n) for n, a in zip(names, addresses, strict=True)
    )
    return Lab(directory, secrets.token_hex(8), kind, members, python, mtu)


def _clear_rest(directory: Path, say: Callable[[str], None]) -> None:
    """Remove the remains of a lab that has died. Raises ConfigError if it is alive or may still be
    starting.
    """
    try:
        load(directory)
    except ConfigError as error:
        if "died" in error.message:
            for line in down(directory):
                say(line)
            return
        raise
    raise ConfigError(f"a lab is already up in {directory}", hint="end it with `orch lab down`")


def _start_all(lab: Lab, share: Sequence[Path]) -> None:
    if lab.in_namespaces:
        namespaces.start(lab, [path.absolute() for path in share])
    else:
        start_nodes(lab, lab.nodes)


def start_nodes(lab: Lab, nodes: Sequence[LabNode]) -> None:
    """Start nodes that are down; `wait_until_answering` waits until they are up."""
    if lab.kind == "loopback":
        loopback.start_sshd(lab, nodes)
    elif lab.kind == "asyncssh":
        loopback.start_asyncssh(lab, nodes)
    else:
        for node in nodes:
            namespaces.start_node(lab, node)


def wait_until_answering(lab: Lab, nodes: Sequence[LabNode]) -> None:
    """Wait until these nodes' SSH servers answer. Raises RunError with their output if one does
    not.
    """
    script = str(Path(__file__).with_name("banner.py"))
    targets = [f"{node.address}:{node.port}" for node in nodes]
    limit_s = lab.limit_s(_ANSWER_TIMEOUT_S)
    if lab.kind == "machines":
        limit_s = _BOOT_TIMEOUT_S * len(nodes)
    # In parts, to see in between if a node has ended.
    part_s = lab.limit_s(_ANSWER_TIMEOUT_S / 3)
    argv = argv_inside(lab, [sys.executable, "-I", "-S", script, str(part_s), *targets])
    deadline = time.monotonic() + limit_s
    while True:
        try:
            run(argv, timeout_s=part_s + 30)
            break
        except RunError as error:
            if time.monotonic() < deadline and all(node.pid for node in nodes):
                continue
            raise RunError(
                f"{error.message}{_last_words(lab, nodes)}", kind="node_unfit", where="lab"
            ) from error
    # If a server of this lab found its port in use, another lab's server may have answered in its
    # place.
    if dead := [node.name for node in nodes if not node.pid]:
        raise RunError(
            f"{', '.join(dead)} ended at once{_last_words(lab, nodes)}",
            kind="node_unfit",
            where="lab",
        )


def _last_words(lab: Lab, nodes: Sequence[LabNode]) -> str:
    return last_words(
        [
            lab.directory / "asyncssh.log",
            *(node.folder / name for node in nodes for name in ("console.log", "sshd.log")),
        ]
    )


def argv_inside(lab: Lab, argv: Sequence[str]) -> list[str]:
    """Return the argv that runs ``argv`` on the controller's side, under the same process id; see
    also `environment`.
    """
    if lab.in_namespaces:
        return [*namespaces.inside(lab), *argv]
    return list(argv)


def argv_on(lab: Lab, node: str, argv: Sequence[str]) -> list[str]:
    """Return the argv that runs ``argv`` on a node, in its home, without SSH where its kernel is
    this machine's.
    """
    lab_node = lab.node(node)
    if lab.kind == "machines":
        return argv_inside(lab, ["ssh", "-F", str(lab.ssh_config), node, shlex.join(argv)])
    if lab.kind == "namespaces":
        return [*namespaces.on_node(lab_node), *argv]
    return [*loopback.on_node(lab, lab_node), *argv]


def environment(lab: Lab) -> Mapping[str, str]:
    """Return the variables that programs on the controller's side get in addition to the caller's
    environment.
    """
    conf = {"SLURM_CONF": str(lab.slurm_conf)} if lab.slurm else {}
    config = {"KUBECONFIG": str(lab.pods_folder / "kubeconfig")} if lab.pods else {}
    return {"ORCH_HOSTS": str(lab.inventory), "ORCH_LAB": lab.marker, **conf, **config}


def down(directory: Path) -> list[str]:
    """End every process of the lab and remove the files that it made; return sentences for a
    person: which nodes and processes were ended, and that the directory is removed.

    Files in it that are not the lab's, such as benches, stay and are named. Does nothing if the
    directory holds no lab. Spares the caller and its parents, so that ``orch lab down`` works
    inside ``orch lab shell``.
    """
    lab = read(directory)
    if lab is None:
        return []
    nodes = {pid: node.name for node in lab.nodes if (pid := node.pid)}
    firsts, holder = set(nodes), lab.holder
    cgroups.release(lab)
    with (
        hold_namespaces(firsts | {holder}, "net") as networks,
        hold_namespaces(firsts, "pid") as inner,
    ):
        shared = {namespace(os.getpid(), which) for which in ("net", "pid")}
        ended = end_all(partial(_members, lab, networks - shared, inner - shared))
    cgroups.clear(lab)
    slurmlab.clear_groups(lab)
    others = Counter(ended[pid].name for pid in sorted(ended) if pid not in firsts | {holder})
    kept = remove(lab)
    names = [f"ended {fold(nodes.values())}"] if nodes else []
    stays = f"{lab.directory} is kept, because it has files that do not belong to the lab: {', '.join(kept)}"
    return [
        *names,
        *(
            f"ended {plural(count, 'process', 'processes')} of {name}"
            for name, count in others.items()
        ),
        stays if kept else f"removed {lab.directory}",
    ]


def _members(lab: Lab, networks: frozenset[str], inner: frozenset[str]) -> dict[int, Stat]:
    """Return the lab's processes: those with its marker, in its network or with its sshd
    configuration, and their descendants.

    OpenSSH overwrites its environment with a title, so that only its arguments identify it.
    Processes inside a node of a namespace lab are left out: the kernel ends them with the holder.
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
    pids = descendants(belonging, processes) - ancestors(os.getpid(), processes)
    return {pid: processes[pid] for pid in pids if not (inner and namespace(pid, "pid") in inner)}
