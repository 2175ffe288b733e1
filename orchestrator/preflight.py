"""What must be true before a run, found out on every node at once: facts captured, then judged by pure functions.

Nothing is mended silently. Every check says what it found, what was expected and what to do, and nodes that say the same are
folded by whoever prints them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.cluster import Cluster
from orchestrator.errors import OrchError, RunError
from orchestrator.fanout import each
from orchestrator.framework import Framework
from orchestrator.inventory import Host

__all__ = ["Check", "capture", "judge", "unfit", "unlike"]

_SLOW_LOGIN_S = 2.0
_LEAST_DISK = 256 << 20
_CLOCK_OFF_S = 5


@dataclass(frozen=True, slots=True)
class Check:
    """One judgement on one host. ``verdict``: ok, warning or failed."""

    host: str
    name: str
    verdict: str
    found: str
    expected: str = ""
    hint: str = ""


def capture(
    cluster: Cluster,
    framework: Framework | None,
    ports: Sequence[int] = (),
    *,
    names: Sequence[str] | None = None,
    briefly: bool = False,
) -> tuple[dict[str, dict[str, Any]], dict[str, OrchError]]:
    """Ask every connected node, or those named, for its facts. Returns (facts by host, errors by host).

    ``briefly``: where the framework can be told from what is installed, it is not started, which takes seconds; and among the
    facts is ``standing``, what they rest on.
    """
    probe = framework.probe if framework else "print('{}')"
    brief = {"distributions": list(framework.distributions)} if framework and briefly else {}

    def ask(name: str) -> dict[str, Any]:
        node = cluster.nodes[name]
        node.ask("status", timeout_s=30)
        earliest = time.time()
        answer = node.ask(
            "facts",
            timeout_s=150,
            python=str(node.host.vars.get("python", "python3")),
            probe=probe,
            probe_timeout_s=120,
            ports=list(ports),
            interface=node.host.vars.get("interface"),
            data_dir=node.host.vars.get("data_dir"),
            programs=_programs(node.host, framework),
            **brief,
        )
        facts = dict(answer["facts"])
        facts["login_s"] = round(node.login_s, 3)
        if briefly:
            facts["standing"] = answer["standing"]
        # Somewhere between these two instants the node looked at its clock.
        facts["clock_off_s"] = round(min(0.0, facts["time"] - earliest) + max(0.0, facts["time"] - time.time()))
        facts["host_key"] = node.transport.host_key
        return facts

    return each(cluster.nodes if names is None else names, ask)


def judge(host: Host, facts: Mapping[str, Any], framework: Framework | None, ranks: int | None) -> list[Check]:
    """Return every check of one host. ``ranks`` is the number of ranks that a run would put on it, where that is known."""
    checks = [
        Check(host.name, "runner", "ok", f"python {facts['runner_python']}, kernel {facts['kernel']}"),
        _framework_check(host, facts, framework),
        _device_check(host, facts, ranks),
        _disk_check(host, facts),
        _interface_check(host, facts),
        _login_check(host, facts),
        _clock_check(host, facts),
    ]
    if facts["ports_busy"]:
        found = f"in use: {', '.join(map(str, facts['ports_busy']))}"
        checks.append(Check(host.name, "port", "failed", found, "free", "end what listens there, or let orch choose another"))
    if facts.get("data_dir") is False:
        hint = "copy the data set there, or correct vars.data_dir; orch dataset make writes a small one"
        checks.append(Check(host.name, "data", "failed", "missing", f"a directory {host.vars['data_dir']}", hint))
    elif facts.get("data_dir"):
        found = f"{host.vars['data_dir']} {(facts.get('data_set') or '')[:12]}".strip()
        checks.append(Check(host.name, "data", "ok", found))
    for path, digest in facts.get("programs", {}).items():
        if digest is None:
            hint = "copy the program there, or correct the path in vars of this host"
            checks.append(Check(host.name, "program", "failed", f"no {path}", path, hint))
        else:
            checks.append(Check(host.name, "program", "ok", f"{path} {digest[:12]}".strip()))
    return [check for check in checks if check is not None]


def _programs(host: Host, framework: Framework | None) -> list[str]:
    """Return the paths on the node of the programs that are not ours."""
    requires = framework.requires if framework else {}
    return [f"{host.vars[name]}/{holds}" for name, holds in requires.items() if host.vars.get(name)]


def _framework_check(host: Host, facts: Mapping[str, Any], framework: Framework | None) -> Check | None:
    if framework is None:
        return None
    versions = facts["framework"]
    if "error" in versions:
        python = host.vars.get("python", "python3")
        hint = f"install it for {python}, or set vars.python of this host in the inventory"
        return Check(host.name, framework.name, "failed", str(versions["error"]), f"{framework.name} importable", hint)
    found = ", ".join(f"{k} {v}" for k, v in versions.items() if v is not None)
    return Check(host.name, framework.name, "ok", found if facts.get("imported", True) else f"{found}, not started")


def _device_check(host: Host, facts: Mapping[str, Any], ranks: int | None) -> Check:
    if host.gpus == 0:
        cores = facts["cores"]
        if ranks is not None and ranks > host.slots:
            hint = "lower --gpus, or raise slots: in the inventory"
            return Check(host.name, "slots", "failed", f"{host.slots} CPU slots", f"{ranks} ranks", hint)
        return Check(host.name, "slots", "ok", f"{host.slots} CPU slots, {cores} cores, {facts['cpu']}")
    found = facts["gpus"]
    wanted = ranks if ranks is not None else host.gpus
    if not isinstance(found, list):
        hint = "install the driver, or say gpus: 0 and slots: in the inventory to measure the CPU"
        return Check(host.name, "gpus", "failed", str(found or "no nvidia-smi"), f"{wanted or 'some'} GPUs", hint)
    if wanted is not None and len(found) < wanted:
        hint = "correct gpus: in the inventory, or look at nvidia-smi -L on the node"
        return Check(host.name, "gpus", "failed", f"{len(found)} GPUs", f"{wanted} GPUs", hint)
    names = ", ".join(sorted({f"{gpu['name']}, driver {gpu['driver']}" for gpu in found}))
    busy = [gpu["index"] for gpu in found if _number(gpu["used_mib"]) > 1024 or _number(gpu["utilization"]) > 10]
    if busy:
        hint = "see nvidia-smi there; a number measured beside other work says little"
        return Check(host.name, "gpus", "warning", f"GPU {', '.join(busy)} in use; {len(found)} x {names}", "idle GPUs", hint)
    return Check(host.name, "gpus", "ok", f"{len(found)} x {names}")


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _disk_check(host: Host, facts: Mapping[str, Any]) -> Check:
    free = int(facts["disk_free_bytes"])
    verdict = "ok" if free >= _LEAST_DISK else "failed"
    hint = "" if verdict == "ok" else "free some, or set vars.workdir to another disk"
    return Check(host.name, "disk", verdict, f"{_room(free)} free in {facts['workdir']}", f"{_LEAST_DISK >> 20} MiB", hint)


def _room(size_bytes: int) -> str:
    """Say a size as coarsely as it matters, so that nodes alike are folded although one has just written a log."""
    return f"{size_bytes >> 30} GiB" if size_bytes >= 10 << 30 else f"{size_bytes >> 20} MiB"


def _interface_check(host: Host, facts: Mapping[str, Any]) -> Check | None:
    name = host.vars.get("interface")
    if not name:
        return None
    state = facts.get("interface")
    if not state:
        hint = "see ip -brief link there, and correct vars.interface"
        return Check(host.name, "interface", "failed", f"no {name}", f"{name} up", hint)
    verdict = "ok" if state["state"] in ("up", "unknown") else "failed"
    return Check(host.name, "interface", verdict, f"{name} {state['state']}, MTU {state['mtu']}", f"{name} up", "bring it up")


def _login_check(host: Host, facts: Mapping[str, Any]) -> Check | None:
    slow = facts["login_s"]
    if slow < _SLOW_LOGIN_S:
        return None
    hint = "look at the shell's start-up files of this user, and at name resolution in sshd (UseDNS)"
    return Check(host.name, "login", "warning", f"{slow:.1f} s for one command", f"under {_SLOW_LOGIN_S:g} s", hint)


def _clock_check(host: Host, facts: Mapping[str, Any]) -> Check | None:
    off_s = facts.get("clock_off_s", 0)
    if abs(off_s) < _CLOCK_OFF_S:
        return None
    found = f"{abs(off_s)} s {'ahead' if off_s > 0 else 'behind'}"
    hint = "durations do not depend on it, times in logs do; see timedatectl there"
    return Check(host.name, "clock", "warning", found, "this machine's time", hint)


def same_machine(facts: Mapping[str, Mapping[str, Any]]) -> list[OrchError]:
    """Return an error for every pair of names that turn out to be one machine: same host key and same boot."""
    seen: dict[tuple[str, str], str] = {}
    errors: list[OrchError] = []
    for name, found in facts.items():
        identity = (str(found["host_key"]), str(found["boot_id"]))
        if identity in seen:
            message = f"{seen[identity]} and {name} are one machine (same host key, same boot)"
            errors.append(RunError(message, kind="node_unfit", host=name, hint="name it once in the inventory"))
        seen.setdefault(identity, name)
    return errors


def unlike(facts: Mapping[str, Mapping[str, Any]]) -> list[OrchError]:
    """Return an error for every node whose copy of somebody else's program, or of our data set, is not the first node's."""
    programs = {host: tuple((found.get("programs") or {}).values()) for host, found in facts.items()}
    data_sets = {host: found.get("data_set") for host, found in facts.items() if found.get("data_dir")}
    errors = [("program", "the same bytes", host, first) for first, host in _others(programs) if None not in programs[host]]
    errors += [("data", "the same data set", host, first) for first, host in _others(data_sets)]
    return [
        RunError(
            f"{name}: expected {what} as on {first}, found another",
            kind="node_unfit",
            host=host,
            phase="preflight",
            hint="copy one version to every node",
        )
        for name, what, host, first in errors
    ]


def _others(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (first host, host) for every host that does not have the first one's value."""
    first = next(iter(values), "")
    return [(first, host) for host, value in values.items() if value != values[first]]


def unfit(checks: Sequence[Check]) -> list[OrchError]:
    """Return an error for every failed check."""
    return [
        RunError(
            f"{check.name}: expected {check.expected}, found {check.found}",
            kind="node_unfit",
            host=check.host,
            phase="preflight",
            hint=check.hint,
        )
        for check in checks
        if check.verdict == "failed"
    ]
