"""What is judged of a machine apart from its GPUs and networks: interpreter and framework, room, limits, data, the clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.checks.check import Check, failed, ok, warning
from orchestrator.inventory.hosts import Host
from orchestrator.inventory.versions import number
from orchestrator.plan.framework import Framework

__all__ = ["host_checks", "slots_check"]

_SLOW_LOGIN_S = 2.0
_LEAST_DISK = 256 << 20
_CLOCK_OFF_S = 5
_LEAST_SHM = 1 << 30
_LEAST_OF = {"nofile": 4096, "nproc": 4096}


def host_checks(host: Host, facts: Mapping[str, Any], framework: Framework | None) -> list[Check]:
    """Return every check of this kind, in the order in which they are shown."""
    found = [
        ok(host.name, "runner", f"python {facts['runner_python']}, kernel {facts['kernel']}"),
        _held(host, facts),
        _framework(host, facts, framework),
        _disk(host, facts),
        _limits(host, facts),
        _shared_memory(host, facts),
        _login(host, facts),
        _clock(host, facts),
        _ports(host, facts),
        _data(host, facts),
        *_programs(host, facts),
    ]
    return [check for check in found if check]


def slots_check(host: Host, facts: Mapping[str, Any], ranks: int | None) -> Check:
    """Judge whether a machine that is measured on its CPU takes the ranks of a run."""
    slots = f"{host.slots} CPU slot{'s' * (host.slots > 1)}"
    if ranks is not None and ranks > host.slots:
        hint = "lower --gpus, or raise slots: in the inventory"
        return failed(host.name, "slots", slots, f"{ranks} ranks", hint)
    return ok(host.name, "slots", f"{slots}, {facts['cores']} cores, {facts['cpu']}")


def _held(host: Host, facts: Mapping[str, Any]) -> Check | None:
    if not facts.get("held_by"):
        return None
    hint = "a bench is refused until that run is over; orch status shows more, orch cancel ends runs of this user"
    return warning(host.name, "held", f"by {facts['held_by']}", "no run on this node", hint)


def _framework(host: Host, facts: Mapping[str, Any], framework: Framework | None) -> Check | None:
    if framework is None:
        return None
    versions = facts["framework"]
    if "error" in versions:
        hint = f"install it for {host.vars.get('python', 'python3')}, or set vars.python of this host in the inventory"
        return failed(host.name, framework.name, str(versions["error"]), f"{framework.name} importable", hint)
    found = ", ".join(f"{k} {v}" for k, v in versions.items() if v is not None)
    return ok(host.name, framework.name, found if facts.get("imported", True) else f"{found}, not started")


def _disk(host: Host, facts: Mapping[str, Any]) -> Check:
    if error := facts.get("disk_error"):
        hint = "free or remount that disk, or set vars.workdir of this host to another one"
        return failed(host.name, "disk", f"{facts['workdir']}: {error}", "a work directory that can be written", hint)
    free = int(facts["disk_free_bytes"])
    found = f"{_room(free)} free in {facts['workdir']}"
    if free >= _LEAST_DISK:
        return ok(host.name, "disk", found)
    return failed(host.name, "disk", found, f"{_room(_LEAST_DISK)}", "free some, or set vars.workdir to another disk")


def _room(size_bytes: int) -> str:
    """Say a size as coarsely as it matters, so that nodes alike are folded although one has just written a log."""
    return f"{size_bytes >> 30} GiB" if size_bytes >= 10 << 30 else f"{size_bytes >> 20} MiB"


def _limits(host: Host, facts: Mapping[str, Any]) -> Check | None:
    limits = facts.get("limits")
    if not isinstance(limits, Mapping):
        return None
    # The keeper of a run raises the soft limit of open files to the hard one; of the others the soft one counts.
    real = {name: limits[name][name == "nofile"] for name in ("memlock", "nofile", "nproc") if name in limits}
    words = {name: _limit(name, value) for name, value in real.items()}
    hint = "raise it in /etc/security/limits.conf or for sshd (LimitMEMLOCK= and the like of its unit), and log in anew"
    if real.get("memlock") is not None and facts.get("infiniband_gbit"):
        return warning(
            host.name, "limits", f"memlock {words['memlock']}", "memlock unlimited, as InfiniBand locks its buffers", hint
        )
    low = {name: least for name, least in _LEAST_OF.items() if real.get(name) is not None and real[name] < least}
    if low:
        found, expected = (", ".join(f"{name} {of[name]}" for name in low) for of in (words, low))
        return warning(host.name, "limits", found, f"{expected} or more", hint)
    return ok(host.name, "limits", ", ".join(f"{name} {value}" for name, value in words.items()))


def _limit(name: str, value: int | None) -> str:
    if value is None or name != "memlock":
        return "unlimited" if value is None else str(value)
    return _room(value) if value >= 1 << 20 else f"{value >> 10} KiB"


def _shared_memory(host: Host, facts: Mapping[str, Any]) -> Check | None:
    if "shm_bytes" not in facts:
        return None
    size = facts["shm_bytes"]
    if number(size) < _LEAST_SHM:
        hint = "mount it larger (a container: --shm-size, --ipc=host); loaders and NCCL share memory there"
        return warning(host.name, "shm", f"/dev/shm of {_room(int(number(size)))}" if size else "no /dev/shm", "1 GiB", hint)
    return ok(host.name, "shm", f"/dev/shm of {_room(size)}")


def _login(host: Host, facts: Mapping[str, Any]) -> Check | None:
    slow = facts["login_s"]
    if slow < _SLOW_LOGIN_S:
        return None
    hint = "look at the shell's start-up files of this user, and at name resolution in sshd (UseDNS)"
    return warning(host.name, "login", f"{slow:.1f} s for one command", f"under {_SLOW_LOGIN_S:g} s", hint)


def _clock(host: Host, facts: Mapping[str, Any]) -> Check | None:
    off_s = facts.get("clock_off_s", 0)
    if abs(off_s) < _CLOCK_OFF_S:
        return None
    found = f"{abs(off_s)} s {'ahead' if off_s > 0 else 'behind'}"
    hint = "durations do not depend on it, times in logs do; see timedatectl there"
    return warning(host.name, "clock", found, "this machine's time", hint)


def _ports(host: Host, facts: Mapping[str, Any]) -> Check | None:
    if not facts["ports_busy"]:
        return None
    found = f"in use: {', '.join(map(str, facts['ports_busy']))}"
    return failed(host.name, "port", found, "free", "end what listens there, or let orch choose another")


def _data(host: Host, facts: Mapping[str, Any]) -> Check | None:
    if facts.get("data_dir") is None:
        return None
    path = host.vars["data_dir"]
    if not facts["data_dir"]:
        hint = "copy the data set there, or correct vars.data_dir; orch dataset make writes a small one"
        return failed(host.name, "data", "missing", f"a directory {path}", hint)
    return ok(host.name, "data", f"{path} {(facts.get('data_set') or '')[:12]}".strip())


def _programs(host: Host, facts: Mapping[str, Any]) -> list[Check]:
    return [_program(host, path, digest) for path, digest in facts.get("programs", {}).items()]


def _program(host: Host, path: str, digest: Any) -> Check:
    if isinstance(digest, Mapping):
        hint = "let the login user read it (chmod -R a+rX), or take away what does not belong to the program"
        return failed(host.name, "program", str(digest.get("error")), f"a readable {path}", hint)
    if digest is None:
        return failed(
            host.name, "program", f"no {path}", path, "copy the program there, or correct the path in vars of this host"
        )
    return ok(host.name, "program", f"{path} {digest[:12]}".strip())
