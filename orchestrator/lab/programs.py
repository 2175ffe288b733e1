"""The programs of this machine that a lab needs, and the kinds of lab that they allow.

Programs are looked up in ``PATH`` and then in system folders, which are often missing from a user's
``PATH``.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from orchestrator.errors import ConfigError, RunError
from orchestrator.lab.state import KINDS, Kind

_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")
_PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "munged": "munge",
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    **dict.fromkeys(("modprobe", "depmod"), "kmod"),
    "rdma": "iproute2",
    "mkfs.ext4": "e2fsprogs",
    "mount.nfs4": "nfs-common",
    **dict.fromkeys(("exportfs", "rpc.nfsd", "rpc.mountd"), "nfs-kernel-server"),
    **dict.fromkeys(("srun", "sbatch", "scontrol", "squeue", "scancel", "sinfo"), "slurm-client"),
}
_NEEDED: dict[Kind, tuple[str, ...]] = {
    "namespaces": ("ip", "nsenter", "unshare", "sshd"),
    "loopback": ("sshd",),
    "asyncssh": (),
    "machines": (
        *("ip", "nsenter", "unshare", "sshd"),
        *("qemu-system-x86_64", "busybox", "cpio", "modprobe", "depmod"),
    ),
}


def find(name: str) -> str:
    """Return the path of a program. Raises ConfigError with the command that installs it."""
    path = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM_FOLDERS]))
    if path:
        return str(Path(path).absolute())
    raise ConfigError(
        f"lab: expected the program {name}, which is not installed", hint=_install_hint([name])
    )


def need(names: Sequence[str], where: str) -> None:
    """Raise ConfigError, with the command that installs them, if some of these programs are not
    installed.
    """
    missing = [name for name in names if not _is_installed(name)]
    if missing:
        raise ConfigError(
            f"not installed: {', '.join(missing)}", where=where, hint=_install_hint(missing)
        )


def run(argv: Sequence[str], *, text: str = "", timeout_s: float = 30.0) -> str:
    """Run a program of this machine and return its stdout. Raises RunError with its output if it
    fails.
    """
    done = subprocess.run(
        argv, input=text, text=True, capture_output=True, timeout=timeout_s, check=False
    )
    if done.returncode:
        output = (done.stderr or done.stdout).strip()[-500:]
        raise RunError(
            f"exit status {done.returncode}: {output}",
            kind="node_unfit",
            where=f"lab: {' '.join(argv)[:200]}",
        )
    return done.stdout


def choose_kind(requested: str | None) -> tuple[Kind, list[str]]:
    """Return the kind of lab to build, and the reason against each better kind.

    Raises ConfigError if the requested kind, or with None every kind, is impossible on this
    machine.
    """
    if requested is not None and requested not in _NEEDED:
        raise ConfigError(f"lab kind: expected one of {', '.join(KINDS)}, got {requested!r}")
    reasons: list[str] = []
    for kind in KINDS if requested is None else [requested]:
        obstacle = _obstacle(kind)
        if not obstacle:
            return kind, reasons
        reasons.append(f"{kind}: {obstacle}")
    raise ConfigError("no lab can be built on this machine. " + "; ".join(reasons))


def _obstacle(kind: Kind) -> str:
    """Return the reason why this kind of lab is impossible on this machine; empty if it is
    possible.
    """
    missing = [name for name in _NEEDED[kind] if not _is_installed(name)]
    if kind in ("namespaces", "machines"):
        if os.geteuid():
            return "needs root"
        return _missing(missing) or _namespaces_obstacle()
    if kind == "loopback":
        return _missing(missing) or (_root_sshd_obstacle() if os.geteuid() == 0 else "")
    if importlib.util.find_spec("asyncssh"):
        return ""
    return "needs the Python package asyncssh (pip install asyncssh)"


def _is_installed(name: str) -> bool:
    try:
        return bool(find(name))
    except ConfigError:
        return False


def _missing(names: Sequence[str]) -> str:
    if not names:
        return ""
    return f"missing {', '.join(names)} ({_install_hint(names)})"


def _install_hint(names: Sequence[str]) -> str:
    packages = sorted({_PACKAGES.get(name, name) for name in names})
    return f"apt-get install --no-install-recommends {' '.join(packages)}"


def _namespaces_obstacle() -> str:
    """Return the error of a trial, or an empty text: in containers, root often may not make
    namespaces.
    """
    flags = ["--net", "--mount", "--uts", "--ipc", "--pid", "--fork"]
    try:
        run([find("unshare"), *flags, find("ip"), "link", "add", "orch0", "type", "bridge"])
    except RunError as error:
        return (
            f"root is not allowed to create namespaces or bridges on this machine: {error.message}"
        )
    return ""


def _root_sshd_obstacle() -> str:
    """Return the machine-wide setting that is missing for sshd as root, or an empty text; a lab
    changes no such setting.
    """
    if not Path("/run/sshd").is_dir():
        return "sshd as root needs the directory /run/sshd (mkdir /run/sshd)"
    shadow = Path("/etc/shadow")
    lines = shadow.read_text(encoding="utf-8").splitlines() if shadow.exists() else []
    if any(line.startswith("root:!") for line in lines):
        return "the root account is locked, sshd refuses it"
    return ""
