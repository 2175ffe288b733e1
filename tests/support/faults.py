"""Break the nodes and cables of a lab on purpose, and repair them.

`kill`, `boot`, `freeze` and `thaw` work in every kind of lab; the others need network namespaces. A
crash cuts the cable before it kills: when processes merely die, the kernel closes every connection
properly, and the hard case, silence, would not be tested.

On machines with control groups, the kernel's freezer stops a node; on others a signal does.
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
from orchestrator.procs import (
    Stat,
    ancestors,
    descendants,
    end_all,
    environ,
    hold_namespaces,
    namespace,
    snapshot,
)
from tests.support import node_groups

_NFT_TABLE = """\
add table inet lab
add chain inet lab in { type filter hook input priority 0 ; }
add chain inet lab out { type filter hook output priority 0 ; }
"""


def crash(lab: Lab, name: str) -> None:
    """Cut a node's power: its peers receive nothing more, not even the end of a connection."""
    link(lab, name, up=False)
    kill(lab, name)


def kill(lab: Lab, name: str) -> None:
    """End every process of a node; its peers see their connections closed."""
    node = lab.node(name)
    _end(lab, node)
    if lab.kind == "namespaces":
        # The kernel removes the cable with the node, but only some time later; a boot needs the
        # port to be free now.
        with suppress(RunError):
            namespaces.switch(lab, f"link del {namespaces.port_of(node)}\n")


def _end(lab: Lab, node: LabNode) -> None:
    # Frozen processes die only when they are thawed, and must not do anything else then.
    _signal_all(lab, node.name, signal.SIGSTOP)
    node_groups.thaw(lab, node.name)
    with hold_namespaces([node.pid], "net"):
        end_all(partial(members, lab, node))


def boot(lab: Lab, name: str, *, ahead_s: float = 0.0) -> None:
    """Start a node that is down: same name, addresses, keys and home, empty /tmp and /run. Returns
    when it answers.

    ``ahead_s`` sets its monotonic clock ahead of the machine's by so many seconds, until the node
    ends.
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
    """Freeze every process of a node: connections stay open, but nothing answers."""
    if node_groups.obstacle("freezer"):
        _signal_all(lab, name, signal.SIGSTOP)
    else:
        node_groups.freeze(lab, name, partial(members, lab, lab.node(name)))


def thaw(lab: Lab, name: str) -> None:
    """Resume a frozen node."""
    node_groups.thaw(lab, name)
    _signal_all(lab, name, signal.SIGCONT)


def memory(lab: Lab, name: str, limit_bytes: int) -> None:
    """Limit a node's memory; `heal` removes the limit. Raises ConfigError if the machine does not
    support it.
    """
    node_groups.limit_memory(lab, name, limit_bytes, partial(members, lab, lab.node(name)))


def cpu(lab: Lab, name: str, percent: float, period_us: int = cgroups.PERIOD_US) -> None:
    """Limit a node to ``percent`` of one core; `heal` removes the limit. Raises ConfigError if the
    machine cannot do this.

    Within a period the node computes as fast as ever, until its share is used up: what it does
    between two waits is slower by the same factor only if that takes several periods.
    """
    node_groups.limit_cpu(lab, name, percent, partial(members, lab, lab.node(name)), period_us)


def _signal_all(lab: Lab, name: str, number: signal.Signals) -> None:
    # Twice, for a child that was forked while the first list was made.
    for _ in range(2):
        for pid in members(lab, lab.node(name)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def members(lab: Lab, node: LabNode) -> dict[int, Stat]:
    """Return a node's processes, its first one included.

    In a namespace lab those are all processes that use its network, including an nsenter outside
    that waits for a program inside: a node cannot end while a process outside has not yet reaped
    its child.
    """
    processes = snapshot()
    if lab.kind == "namespaces":
        network = namespace(node.pid, "net") if node.pid else ""
        return {
            pid: process
            for pid, process in processes.items()
            if network and namespace(pid, "net") == network
        }
    marks = {f"ORCH_LAB={lab.marker}".encode(), f"ORCH_LAB_NODE={node.name}".encode()}
    marked = {pid for pid in processes if marks <= environ(pid)} | {node.pid}
    pids = descendants(marked, processes) - ancestors(os.getpid(), processes)
    return {pid: processes[pid] for pid in pids}


def link(lab: Lab, name: str, *, up: bool) -> None:
    """Plug in a node's cable (``up``), or pull it out."""
    _namespaces_only(lab)
    namespaces.switch(
        lab, f"link set {namespaces.port_of(lab.node(name))} {'up' if up else 'down'}\n"
    )


def rate(
    lab: Lab, name: str, limit: str | None, *, ways: Sequence[str] = ("sent", "received")
) -> None:
    """Limit a node's cable to e.g. ``20mbit`` for what it sends, what it receives, or both, each;
    None removes the limit.
    """
    _namespaces_only(lab)
    if unknown := set(ways) - {"sent", "received"}:
        raise ConfigError(
            f"rate: expected ways of sent and received, got {', '.join(sorted(unknown))}"
        )
    tc = find("tc")
    ends = {
        "sent": (argv_on(lab, name, [tc]), "eth0"),
        "received": ([*namespaces.inside(lab), tc], namespaces.port_of(lab.node(name))),
    }
    for begin, device in (ends[way] for way in ways):
        if limit is None:
            run([*begin, "qdisc", "del", "dev", device, "root"])
        else:
            shape = ["tbf", "rate", limit, "burst", "256kb", "latency", "100ms"]
            run([*begin, "qdisc", "replace", "dev", device, "root", *shape])


def pair_rate(lab: Lab, first: str, second: str, limit: str | None) -> None:
    """Limit the traffic between two nodes to e.g. ``20mbit`` each way, and no other traffic; None
    removes the limit.

    Replaces a `rate` of these nodes on their own end of the cable, and the limit of another pair
    with one of them.
    """
    _namespaces_only(lab)
    tc = find("tc")
    for sender, receiver in ((first, lab.node(second).address), (second, lab.node(first).address)):
        begin = argv_on(lab, sender, [tc])
        if limit is None:
            run([*begin, "qdisc", "del", "dev", "eth0", "root"])
        else:  # htb sends traffic outside its classes without a limit
            lines = [
                "qdisc replace dev eth0 root handle 1: htb",
                f"class add dev eth0 parent 1: classid 1:1 htb rate {limit} burst 256kb",
                f"filter add dev eth0 parent 1: protocol ip u32 match ip dst {receiver}/32 flowid 1:1",
            ]
            run([*begin, "-batch", "-"], text="\n".join(lines) + "\n")


def loss(lab: Lab, name: str, percent: float, *, each_way: bool = False) -> None:
    """Drop ``percent`` of the packets that arrive at a node, independently of each other; `heal`
    ends it.

    ``each_way``: also of those that it sends, which are dropped on the switch, because a local drop
    is reported to the sender.
    """
    if not 0 <= percent <= 100:
        raise ConfigError(f"loss: expected a percentage, got {percent:g}")
    share = "" if percent == 100 else f"numgen random mod 10000 < {round(percent * 100)} "
    _nft(lab, name, [f"add rule inet lab in {share}drop"])
    if each_way:
        port = namespaces.port_of(lab.node(name))
        table = "add table netdev lab\n"
        chain = f"add chain netdev lab {port} {{ type filter hook ingress device {port} priority 0 ; }}\n"
        run(
            [*namespaces.inside(lab), find("nft"), "-f", "-"],
            text=f"{table}{chain}add rule netdev lab {port} {share}drop\n",
        )


def partition(lab: Lab, first: str, second: str) -> None:
    """Drop all traffic between two nodes, which all other nodes can still reach; `heal` ends it."""
    for name, peer in ((first, lab.node(second).address), (second, lab.node(first).address)):
        _nft(
            lab,
            name,
            [
                f"add rule inet lab in ip saddr {peer} drop",
                f"add rule inet lab out ip daddr {peer} drop",
            ],
        )


def heal(lab: Lab) -> None:
    """End all losses and partitions, and all limits on memory and processor time."""
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
    """Stop a node's listener: new connections are refused, open sessions continue. Returns when its
    port is free.
    """
    _namespaces_only(lab)
    pid = (lab.node(name).folder / "sshd.pid").read_text(encoding="ascii").strip()
    run(
        argv_on(
            lab,
            name,
            ["sh", "-c", 'kill "$0" && while kill -0 "$0" 2>/dev/null; do sleep 0.01; done', pid],
        )
    )


def sshd_start(lab: Lab, name: str) -> None:
    """Restart a node's listener, and return when it answers."""
    _namespaces_only(lab)
    folder = lab.node(name).folder
    run(
        argv_on(
            lab,
            name,
            [find("sshd"), "-f", str(folder / "sshd_config"), "-E", str(folder / "sshd.log")],
        )
    )
    wait_until_answering(lab, [lab.node(name)])


def _namespaces_only(lab: Lab) -> None:
    if lab.kind != "namespaces":
        raise ConfigError(
            f"this fault needs a lab of network namespaces, {lab.directory} is of kind {lab.kind}"
        )
