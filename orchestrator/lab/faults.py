"""Break the nodes and cables of a lab on purpose, and mend them.

`kill`, `boot`, `freeze` and `thaw` work in every kind of lab; the rest needs network namespaces. A crash takes the cable
away before it kills: a node that merely dies lets the kernel say goodbye on every connection, and then the hard case,
silence, goes untested.

Where the machine has control groups, the kernel's freezer stops a node; elsewhere a signal does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

from orchestrator.errors import ConfigError, RunError
from orchestrator.lab import cgroups, namespaces
from orchestrator.lab.programs import find, run
from orchestrator.lab.rehearsal import argv_on, start_nodes, wait_until_answering
from orchestrator.lab.state import Lab, LabNode
from orchestrator.procs import Stat, ancestors, descendants, end_all, environ, held_namespaces, namespace, snapshot

__all__ = [
    "boot",
    "cpu",
    "crash",
    "freeze",
    "heal",
    "kill",
    "link",
    "loss",
    "memory",
    "pair_rate",
    "partition",
    "rate",
    "sshd_start",
    "sshd_stop",
    "thaw",
]

_NFT_TABLE = """\
add table inet lab
add chain inet lab in { type filter hook input priority 0 ; }
add chain inet lab out { type filter hook output priority 0 ; }
"""


def crash(lab: Lab, name: str) -> None:
    """Cut a node's power: its peers hear nothing more, not even a goodbye."""
    link(lab, name, up=False)
    kill(lab, name)


def kill(lab: Lab, name: str) -> None:
    """End every process of a node; its peers see their connections closed."""
    node = lab.node(name)
    _end(lab, node)
    if lab.kind == "namespaces":
        # The kernel takes the cable away with the node, but some time later; a boot must find the port free now.
        with suppress(RunError):
            namespaces.switch(lab, f"link del {namespaces.port_of(node)}\n")


def _end(lab: Lab, node: LabNode) -> None:
    # What the freezer holds dies only when it is thawed, and must do nothing else then.
    _signal_all(lab, node.name, signal.SIGSTOP)
    cgroups.thaw(lab, node.name)
    with held_namespaces([node.pid], "net"):
        end_all(partial(members, lab, node))


def boot(lab: Lab, name: str, *, ahead_s: float = 0.0) -> None:
    """Start a node that is down: same name, addresses, keys and home, empty /tmp and /run. Returns when it answers.

    ``ahead_s`` puts its monotonic clock so far ahead of the machine's, until it ends.
    """
    node = lab.node(name)
    if node.pid:
        raise ConfigError(f"{name} is running")
    clock = namespaces.clock_of(node)
    clock.unlink(missing_ok=True)
    if ahead_s:
        _namespaces_only(lab)
        clock.write_text(f"monotonic {int(ahead_s)} {round(ahead_s % 1 * 1e9)}\n", encoding="ascii")
    start_nodes(lab, [node])
    wait_until_answering(lab, [node])


def freeze(lab: Lab, name: str) -> None:
    """Stop every process of a node where it is: connections stay open, nobody answers."""
    if cgroups.obstacle("freezer"):
        _signal_all(lab, name, signal.SIGSTOP)
    else:
        cgroups.freeze(lab, name, partial(members, lab, lab.node(name)))


def thaw(lab: Lab, name: str) -> None:
    """Let a frozen node go on."""
    cgroups.thaw(lab, name)
    _signal_all(lab, name, signal.SIGCONT)


def memory(lab: Lab, name: str, limit_bytes: int) -> None:
    """Let a node have no more memory than this; `heal` takes the limit off. Raises ConfigError where that is impossible."""
    cgroups.limit_memory(lab, name, limit_bytes, partial(members, lab, lab.node(name)))


def cpu(lab: Lab, name: str, percent: float) -> None:
    """Let a node have no more than this share of one core; `heal` takes the limit off. Raises ConfigError as `memory` does."""
    cgroups.limit_cpu(lab, name, percent, partial(members, lab, lab.node(name)))


def _signal_all(lab: Lab, name: str, number: signal.Signals) -> None:
    # Twice, for a child that was forked while the first list was made.
    for _ in range(2):
        for pid in members(lab, lab.node(name)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def members(lab: Lab, node: LabNode) -> dict[int, Stat]:
    """Return a node's processes, its first one included.

    In a namespace lab those are all that use its network: the nsenter that waits outside for a program inside belongs to
    them, since a node cannot end while somebody outside has yet to take note of a child's end.
    """
    processes = snapshot()
    if lab.kind == "namespaces":
        own = namespace(node.pid, "net") if node.pid else ""
        return {pid: one for pid, one in processes.items() if own and namespace(pid, "net") == own}
    marks = {f"ORCH_LAB={lab.marker}".encode(), f"ORCH_LAB_NODE={node.name}".encode()}
    marked = {pid for pid in processes if marks <= environ(pid)} | {node.pid}
    found = descendants(marked, processes) - ancestors(os.getpid(), processes)
    return {pid: processes[pid] for pid in found}


def link(lab: Lab, name: str, *, up: bool) -> None:
    """Pull a node's cable out, or plug it in."""
    _namespaces_only(lab)
    namespaces.switch(lab, f"link set {namespaces.port_of(lab.node(name))} {'up' if up else 'down'}\n")


def rate(lab: Lab, name: str, limit: str | None) -> None:
    """Limit a node's cable to e.g. ``20mbit`` in both directions; None takes the limit off."""
    _namespaces_only(lab)
    tc = find("tc")
    ends = (argv_on(lab, name, [tc]), "eth0"), ([*namespaces.inside(lab), tc], namespaces.port_of(lab.node(name)))
    for begin, device in ends:
        if limit is None:
            run([*begin, "qdisc", "del", "dev", device, "root"])
        else:
            shape = ["tbf", "rate", limit, "burst", "256kb", "latency", "100ms"]
            run([*begin, "qdisc", "replace", "dev", device, "root", *shape])


def pair_rate(lab: Lab, one: str, other: str, limit: str | None) -> None:
    """Limit what two nodes send each other to e.g. ``20mbit`` each way, and nothing else of theirs; None takes the limit off.

    Takes the place of a `rate` of these nodes on their own end of the cable, and of another pair of theirs.
    """
    _namespaces_only(lab)
    tc = find("tc")
    for here, there in ((one, lab.node(other).address), (other, lab.node(one).address)):
        begin = argv_on(lab, here, [tc])
        if limit is None:
            run([*begin, "qdisc", "del", "dev", "eth0", "root"])
        else:  # what no class takes is sent at once
            lines = [
                "qdisc replace dev eth0 root handle 1: htb",
                f"class add dev eth0 parent 1: classid 1:1 htb rate {limit} burst 256kb",
                f"filter add dev eth0 parent 1: protocol ip u32 match ip dst {there}/32 flowid 1:1",
            ]
            run([*begin, "-batch", "-"], text="\n".join(lines) + "\n")


def loss(lab: Lab, name: str, percent: float, *, each_way: bool = False) -> None:
    """Lose this share of the packets that arrive at a node, each on its own; `heal` ends it.

    ``each_way``: of those that it sends as well. They are lost on the switch, since a sender is told of what it cannot send.
    """
    if not 0 <= percent <= 100:
        raise ConfigError(f"loss: expected a percentage, got {percent:g}")
    some = "" if percent == 100 else f"numgen random mod 10000 < {round(percent * 100)} "
    _nft(lab, name, [f"add rule inet lab in {some}drop"])
    if each_way:
        port = namespaces.port_of(lab.node(name))
        table = "add table netdev lab\n"
        chain = f"add chain netdev lab {port} {{ type filter hook ingress device {port} priority 0 ; }}\n"
        run([*namespaces.inside(lab), find("nft"), "-f", "-"], text=f"{table}{chain}add rule netdev lab {port} {some}drop\n")


def partition(lab: Lab, one: str, other: str) -> None:
    """Keep two nodes from hearing each other, while everybody else hears both; `heal` ends it."""
    for here, there in ((one, lab.node(other).address), (other, lab.node(one).address)):
        _nft(lab, here, [f"add rule inet lab in ip saddr {there} drop", f"add rule inet lab out ip daddr {there} drop"])


def heal(lab: Lab) -> None:
    """End every loss and partition, and every limit on memory and processor time."""
    _namespaces_only(lab)
    cgroups.release(lab)
    run([*namespaces.inside(lab), find("nft"), "flush", "ruleset"])
    for node in lab.nodes:
        if node.pid:
            run(argv_on(lab, node.name, [find("nft"), "flush", "ruleset"]))


def _nft(lab: Lab, name: str, rules: Sequence[str]) -> None:
    _namespaces_only(lab)
    run(argv_on(lab, name, [find("nft"), "-f", "-"]), text=_NFT_TABLE + "\n".join(rules) + "\n")


def sshd_stop(lab: Lab, name: str) -> None:
    """End a node's listener: new connections are refused, sessions under way go on. Returns when its port is free."""
    _namespaces_only(lab)
    pid = (lab.node(name).folder / "sshd.pid").read_text(encoding="ascii").strip()
    run(argv_on(lab, name, ["sh", "-c", 'kill "$0" && while kill -0 "$0" 2>/dev/null; do sleep 0.01; done', pid]))


def sshd_start(lab: Lab, name: str) -> None:
    """Start a node's listener again, and return when it answers."""
    _namespaces_only(lab)
    folder = lab.node(name).folder
    run(argv_on(lab, name, [find("sshd"), "-f", str(folder / "sshd_config"), "-E", str(folder / "sshd.log")]))
    wait_until_answering(lab, [lab.node(name)])


def _namespaces_only(lab: Lab) -> None:
    if lab.kind != "namespaces":
        raise ConfigError(f"this fault needs a lab of network namespaces, {lab.directory} is of kind {lab.kind}")
