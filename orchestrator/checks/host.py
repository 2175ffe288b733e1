"""Checks of a machine other than of GPUs and networks: interpreter and framework, disk, limits,
data, clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from orchestrator.checks.check import Check, cure, failure, ok, warning
from orchestrator.checks.containers import container_checks
from orchestrator.checks.facts import NodeFacts
from orchestrator.inventory import REFERENCE, Host, takes_references
from orchestrator.inventory.reserved import LAB_VARIABLE
from orchestrator.plan import Framework
from orchestrator.plural import plural

_MOST_LEFT = 4
_SLOW_LOGIN_S = 2.0
_SLOW_LOGIN = "check this user's shell start-up files, and name resolution in sshd (UseDNS)"
_SLOW_HINTS = {
    "kubectl": "check the load of this machine and of the API server, and the kubeconfig's log-in",
    "srun": "check the load of this machine and of slurmctld",
}
_LEAST_DISK = 256 << 20
_LEAST_INODES = 1000
_CLOCK_OFF_S = 5
_LEAST_SHM = 1 << 30
_CPUS_OF_A_GPU = 2  # a rank computes in one thread, and loads data and communicates in others
_SHM = (
    "volumes: [{name: shm, emptyDir: {medium: Memory}}], and in the container"
    " volumeMounts: [{name: shm, mountPath: /dev/shm}]"
)
_READ = (
    *(
        "python",
        "runner_python",
        "interface",
        "data_dir",
        "workdir",
        "setup",
        "cuda_visible_devices",
        "container",
    ),
    "cpu_binding",
    *(
        "slurm_job",
        "pod",
        "pod_labels",
        "pod_namespace",
        "pod_container",
        "pod_node",
        "kube_context",
    ),
    *("gpus", "slots", "env", "expect", "ssh", "address"),
)
"""Names of variables that orch reads itself, and keys of a host that could be taken for one."""
_LEAST_OF = {"nofile": 4096, "nproc": 4096}


def host_checks(host: Host, facts: NodeFacts, framework: Framework | None) -> list[Check]:
    """Return every check of this kind, in the order of the table."""
    checks = [
        ok(host.name, "runner", f"python {facts.runner_python}, kernel {facts.kernel}"),
        _check_holder(host, facts),
        *container_checks(host, facts),
        _check_leftovers(host, facts),
        _framework(host, facts, framework),
        _references(host),
        _misspelt(host),
        _disk(host, facts),
        _limits(host, facts),
        _shared_memory(host, facts),
        _login(host, facts),
        _clock(host, facts),
        _ports(host, facts),
        _data(host, facts),
        *_programs(host, facts),
    ]
    return [check for check in checks if check]


def _check_leftovers(host: Host, facts: NodeFacts) -> Check | None:
    """Return a failed check if processes of earlier runs are there, which use what the next run is
    given.
    """
    rows = facts.processes_left
    if not rows:
        return None
    listed = ", ".join(
        f"{name} ({pid}, state {state}) of {run}" for pid, name, state, run in rows[:_MOST_LEFT]
    )
    more = f" and {len(rows) - _MOST_LEFT} more" if len(rows) > _MOST_LEFT else ""
    hint = "orch cancel ends what a run has left; in state D it waits in the kernel, mostly for storage that does not answer"
    return failure(host.name, "leftovers", f"{listed}{more}", "no processes of earlier runs", hint)


def slots_check(host: Host, facts: NodeFacts, ranks: int | None) -> Check:
    """Check that a machine that is measured on its CPU has enough slots for the ranks of a run."""
    slots = plural(host.slots, "CPU slot")
    if ranks is not None and ranks > host.slots:
        hint = "lower --gpus, or raise slots: in the inventory"
        return failure(host.name, "slots", slots, f"{ranks} ranks", hint)
    return ok(host.name, "slots", f"{slots}, {facts.cores} cores, {facts.cpu}")


def _check_holder(host: Host, facts: NodeFacts) -> Check | None:
    if not facts.held_by:
        return None
    hint = "a bench is refused until that run ends; see orch status; orch cancel ends runs of this user"
    return warning(host.name, "held", f"by {facts.held_by}", "no run on this node", hint)


def _framework(host: Host, facts: NodeFacts, framework: Framework | None) -> Check | None:
    container = facts.container
    if framework is None or (
        container and container.error
    ):  # nothing was asked where the container does not start
        return None
    versions = facts.framework
    if "error" in versions:
        error = str(versions["error"])
        hint = f"install it for {host.vars.get('python', 'python3')}, or set vars.python of this host in the inventory"
        if container:
            hint = f"install it in {container.what}, or set container.python to the interpreter that has it"
        elif error.startswith("setup:"):
            hint = "correct setup: of the folder, or vars.setup of this host in the inventory"
        elif len(host.python) > 1 and host.python[0].startswith(("/", "~")):
            hint += "; put a path with a space in an extra pair of quotes"
        return failure(
            host.name, framework.name, error, f"the probe of {framework.name} to run", hint
        )
    shown = ", ".join(f"{k} {v}" for k, v in versions.items() if v is not None)
    return ok(
        host.name,
        framework.name,
        shown if facts.imported else f"{shown}, installed but not imported",
    )


def _references(host: Host) -> Check | None:
    """Warn of variables whose value looks like a reference but is passed literally; values may be
    secrets.
    """
    names = [
        name
        for name, value in host.env.items()
        if REFERENCE.search(value) and not takes_references(name)
    ]
    if not names:
        return None
    hint = "only variables whose names end in PATH are expanded on the node; export this one in vars.setup to have it expanded"
    return warning(
        host.name,
        "env",
        f"$ in {', '.join(names)} is passed as written, not expanded",
        "literal values",
        hint,
    )


def _misspelt(host: Host) -> Check | None:
    """Warn of unread variables whose name is close to one that orch reads."""
    meant = {
        name: known[0]
        for name in host.vars
        if name not in _READ
        and not name.endswith("_dir")
        and (known := get_close_matches(name, _READ, 1, 0.8))
    }
    if not meant:
        return None
    hint = ", ".join(f"did you mean {known} instead of {name}?" for name, known in meant.items())
    return warning(
        host.name,
        "vars",
        f"{', '.join(meant)}, which orch does not read",
        "names that orch or a template reads",
        hint,
    )


def _disk(host: Host, facts: NodeFacts) -> Check:
    if error := facts.disk_error:
        hint = "free or remount this disk, or set vars.workdir of this host to another one"
        return failure(
            host.name, "disk", f"{facts.workdir}: {error}", "a writable work directory", hint
        )
    free = facts.disk_free_bytes
    space = f"{_size(free)} free in {facts.workdir}"
    inodes = facts.disk_free_inodes
    if inodes is not None and inodes < _LEAST_INODES:
        hint = "delete files on this disk, or set vars.workdir to another one"
        return failure(
            host.name,
            "disk",
            f"{inodes} free inodes in {facts.workdir}",
            f"{_LEAST_INODES} free inodes",
            hint,
        )
    if free < _LEAST_DISK:
        hint = "free some space, or set vars.workdir to another disk"
        return failure(host.name, "disk", space, f"{_size(_LEAST_DISK)}", hint)
    if reason := facts.workdir_open:
        expected = "folders above the work directory that only its user and root can change"
        hint = "another user could put a directory in its place: chmod go-w that folder, or set vars.workdir to another place"
        return warning(host.name, "disk", f"{space}; {reason}", expected, hint)
    return ok(host.name, "disk", space)


def _size(size_bytes: int) -> str:
    """Return a size as text, rounded so far that equal nodes are folded even if one of them has
    just written a log.
    """
    if size_bytes >= 10 << 30:
        return f"{size_bytes >> 30} GiB"
    return f"{size_bytes >> 20} MiB"


def _limits(host: Host, facts: NodeFacts) -> Check | None:
    limits = facts.limits
    if limits is None:
        return None
    # The supervisor of a run raises the soft limit of open files to the hard one; of the other
    # limits the soft one counts.
    limit_of = {
        name: limits[name][name == "nofile"]
        for name in ("memlock", "nofile", "nproc")
        if name in limits
    }
    words = {name: _limit(name, value) for name, value in limit_of.items()}
    hint = "raise it in /etc/security/limits.conf or in the unit of sshd (LimitMEMLOCK= and the like), and log in again"
    least_cpus = _CPUS_OF_A_GPU * (host.gpus or 0)
    if facts.cpu_limit and not facts.container:
        words["cpus"] = f"{facts.cpu_limit:g}"
        if facts.cpu_limit < least_cpus:
            more = "raise its control group's limit (docker --cpus, CPUQuota= of a unit)"
            more = cure(host, more, f'resources: {{limits: {{cpu: "{least_cpus}"}}}}, or no limit')
            expected = f"{least_cpus} cpus or more, {_CPUS_OF_A_GPU} for each GPU"
            return warning(host.name, "limits", f"cpus {words['cpus']}", expected, more)
    if limit_of.get("memlock") is not None and any(
        port.state == "ACTIVE" for port in facts.infiniband
    ):
        return warning(
            host.name,
            "limits",
            f"memlock {words['memlock']}",
            "memlock unlimited, as InfiniBand locks its buffers",
            cure(host, hint, "securityContext: {capabilities: {add: [IPC_LOCK]}} in the container"),
        )
    low = {}
    for name, least in _LEAST_OF.items():
        limit = limit_of.get(name)
        if limit is not None and limit < least:
            low[name] = least
    if low:
        got = ", ".join(f"{name} {words[name]}" for name in low)
        expected = ", ".join(f"{name} {least}" for name, least in low.items())
        hint = cure(host, hint, "nothing; the unit of containerd on its machine sets it")
        return warning(host.name, "limits", got, f"{expected} or more", hint)
    return ok(host.name, "limits", ", ".join(f"{name} {value}" for name, value in words.items()))


def _limit(name: str, value: int | None) -> str:
    if value is None or name != "memlock":
        return "unlimited" if value is None else str(value)
    if value >= 1 << 20:
        return _size(value)
    return f"{value >> 10} KiB"


def _shared_memory(host: Host, facts: NodeFacts) -> Check | None:
    if "shm_bytes" not in facts.told:
        return None
    size = facts.shm_bytes
    if not size or size < _LEAST_SHM:
        use = "; loaders and NCCL use it as shared memory"
        hint = cure(host, "mount it larger (in containers --shm-size or --ipc=host)", _SHM) + use
        return warning(
            host.name,
            "shm",
            f"/dev/shm of {_size(size)}" if size else "no /dev/shm",
            "1 GiB",
            hint,
        )
    return ok(host.name, "shm", f"/dev/shm of {_size(size)}")


def _login(host: Host, facts: NodeFacts) -> Check | None:
    slow = facts.login_s
    if slow < _SLOW_LOGIN_S:
        return None
    hint = _SLOW_HINTS.get(host.transport, _SLOW_LOGIN)
    return warning(
        host.name, "login", f"{slow:.1f} s for one command", f"under {_SLOW_LOGIN_S:g} s", hint
    )


def _clock(host: Host, facts: NodeFacts) -> Check | None:
    off_s = facts.clock_off_s
    if abs(off_s) < _CLOCK_OFF_S:
        return None
    offset = f"{abs(off_s)} s {'ahead' if off_s > 0 else 'behind'}"
    hint = "durations do not depend on it, times in logs do; see timedatectl on the node"
    return warning(host.name, "clock", offset, "the controller's clock", hint)


def _ports(host: Host, facts: NodeFacts) -> Check | None:
    if not facts.ports_busy:
        return None
    busy = f"in use: {', '.join(map(str, facts.ports_busy))}"
    return failure(
        host.name,
        "port",
        busy,
        "free",
        "stop the process that listens there, or let orch choose another port",
    )


def _data(host: Host, facts: NodeFacts) -> Check | None:
    if facts.data_dir is None:
        return None
    path = host.vars["data_dir"]
    if not facts.data_dir:
        hint = "copy the data set to the node, or correct vars.data_dir; orch dataset make writes a small one"
        hint = _private(host, path) or hint
        return failure(host.name, "data", "missing", f"a directory {path}", hint)
    look = facts.data_set
    if look is None:
        return ok(host.name, "data", path)
    if look.error:
        hint = "find out why this disk is slow; whether all nodes have the same data is not known"
        return warning(
            host.name,
            "data",
            look.error[:200],
            "a data set that can be listed and read",
            hint,
        )
    names = f"{look.names} names" if look.whole else f"the first {look.names} names"
    return ok(
        host.name,
        "data",
        f"{path} {(look.digest or '')[:12]}: {names}, {look.sizes} sizes, {look.bytes} bytes",
    )


def _programs(host: Host, facts: NodeFacts) -> list[Check]:
    return [_program(host, path, digest) for path, digest in facts.programs.items()]


def _program(host: Host, path: str, digest: Any) -> Check:
    if isinstance(digest, Mapping):
        hint = "let the login user read it (chmod -R a+rX), or remove files that do not belong to the program"
        return failure(host.name, "program", str(digest.get("error")), f"a readable {path}", hint)
    if digest is None:
        hint = (
            _private(host, path)
            or "copy the program to the node, or correct the path in vars of this host"
        )
        return failure(host.name, "program", f"no {path} on the node", path, hint)
    return ok(host.name, "program", f"{path} {digest[:12]}".strip())


def _private(host: Host, path: str) -> str:
    """Return why a node of a lab may not see a path that this machine has; empty if that is not the
    reason.

    The inventory of a lab names the folders that each node has for itself, in ``vars.lab_private``.
    """
    for folder in str(host.vars.get(LAB_VARIABLE, "")).split():
        if path.startswith(f"{folder}/"):
            return (
                f"{folder} is private to each node of a lab: move the files to another one, such as /opt or /srv, or start the "
                "lab with orch lab up --share DIR"
            )
    return ""
