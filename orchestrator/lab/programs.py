"""Which programs of this machine a lab can use, and therefore which kind of lab it can be.

Programs are looked up in ``PATH`` and then in the system folders that a user's ``PATH`` often lacks.
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

__all__ = ["choose_kind", "find", "run"]

_SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin", "/usr/bin", "/bin")
_PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
}
_NEEDED: dict[Kind, tuple[str, ...]] = {
    "namespaces": ("ip", "nsenter", "unshare", "sshd"),
    "loopback": ("sshd",),
    "asyncssh": (),
}


def find(name: str) -> str:
    """Return the path of a program; raises ConfigError with the line that installs it."""
    if path := shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM_FOLDERS])):
        return str(Path(path).absolute())
    raise ConfigError(f"lab: expected the program {name}, it is not installed", hint=_install_hint([name]))


def run(argv: Sequence[str], *, text: str = "", timeout_s: float = 30.0) -> str:
    """Run a program of this machine and return its stdout; raises RunError with what it said when it fails."""
    done = subprocess.run(argv, input=text, text=True, capture_output=True, timeout=timeout_s, check=False)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()[-500:]
        raise RunError(f"exit status {done.returncode}: {said}", kind="node_unfit", where=f"lab: {' '.join(argv)[:200]}")
    return done.stdout


def choose_kind(wanted: str | None) -> tuple[Kind, list[str]]:
    """Return the kind of lab to build, and why each better kind was passed over.

    Raises ConfigError where the wanted kind, or every kind, is impossible here.
    """
    if wanted is not None and wanted not in KINDS:
        raise ConfigError(f"lab kind: expected one of {', '.join(KINDS)}, got {wanted!r}")
    passed_over: list[str] = []
    for kind in KINDS:
        if wanted not in (None, kind):
            continue
        if not (obstacle := _obstacle(kind)):
            return kind, passed_over
        passed_over.append(f"{kind}: {obstacle}")
    raise ConfigError("no lab can be built here. " + "; ".join(passed_over))


def _obstacle(kind: Kind) -> str:
    """Say why this kind of lab is impossible on this machine; empty where it is possible."""
    missing = [name for name in _NEEDED[kind] if not _is_there(name)]
    if kind == "namespaces":
        if os.geteuid():
            return "needs root"
        return _missing(missing) or _namespaces_obstacle()
    if kind == "loopback":
        return _missing(missing) or (_root_sshd_obstacle() if os.geteuid() == 0 else "")
    return "" if importlib.util.find_spec("asyncssh") else "needs the Python package asyncssh (pip install asyncssh)"


def _is_there(name: str) -> bool:
    try:
        return bool(find(name))
    except ConfigError:
        return False


def _missing(names: Sequence[str]) -> str:
    return f"missing {', '.join(names)} ({_install_hint(names)})" if names else ""


def _install_hint(names: Sequence[str]) -> str:
    packages = sorted({_PACKAGES.get(name, name) for name in names})
    return f"apt-get install --no-install-recommends {' '.join(packages)}"


def _namespaces_obstacle() -> str:
    """Root in a container often may not make namespaces: only trying tells."""
    flags = ["--net", "--mount", "--uts", "--ipc", "--pid", "--fork"]
    try:
        run([find("unshare"), *flags, find("ip"), "link", "add", "orch0", "type", "bridge"])
    except RunError as error:
        return f"this root may not make namespaces or bridges: {error.message}"
    return ""


def _root_sshd_obstacle() -> str:
    """A root sshd wants things of the whole machine, and a lab leaves no trace on the machine."""
    if not Path("/run/sshd").is_dir():
        return "sshd as root wants the directory /run/sshd (mkdir /run/sshd)"
    shadow = Path("/etc/shadow")
    lines = shadow.read_text(encoding="utf-8").splitlines() if shadow.exists() else []
    return "the root account is locked, sshd refuses it" if any(line.startswith("root:!") for line in lines) else ""
