"""Keys, host keys, ``sshd_config`` and ``ssh_config`` of a lab: who may enter, and how everybody knows whom they speak to.

One key opens every node; each node has a host key of its own, which is known beforehand, so that host keys can be verified
strictly from the first connection on.
"""

from __future__ import annotations

import getpass
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from orchestrator.lab.state import Lab, LabNode

__all__ = ["login_user", "session_environment", "write_identity", "write_sshd_config"]

_SFTP_SERVERS = ("/usr/lib/openssh/sftp-server", "/usr/libexec/openssh/sftp-server", "/usr/lib/ssh/sftp-server")


def login_user(lab: Lab) -> str:
    """Return the user one logs in as: root in a namespace lab, else whoever started it."""
    return "root" if lab.kind == "namespaces" else getpass.getuser()


def write_identity(lab: Lab) -> None:
    """Write all keys, ``known_hosts``, ``authorized_keys`` and the client's ``ssh_config``."""
    public = _write_key(lab.directory / "id_ed25519", "orch lab")
    (lab.directory / "authorized_keys").write_text(public + "\n", encoding="ascii")
    known = []
    for node in lab.nodes:
        node.home.mkdir(parents=True, mode=0o700)
        host_key = _write_key(node.folder / "host_key", node.name)
        names = (node.name, node.address) if node.port == 22 else (f"[{node.address}]:{node.port}",)
        known.append(f"{','.join(names)} {' '.join(host_key.split()[:2])}\n")
    (lab.directory / "known_hosts").write_text("".join(known), encoding="ascii")
    lab.ssh_config.write_text(_ssh_config(lab), encoding="utf-8")
    if lab.kind == "namespaces":
        for node in lab.nodes:
            _write_home_keys(lab, node)


def _write_key(path: Path, comment: str) -> str:
    """Make an Ed25519 key at this path and return its public line."""
    key = Ed25519PrivateKey.generate()
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return f"{key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode('ascii')} {comment}"


def _write_home_keys(lab: Lab, node: LabNode) -> None:
    """Let nodes log in to each other as clusters do, for mpirun and its like."""
    folder = node.home / ".ssh"
    folder.mkdir(mode=0o700)
    for name in ("id_ed25519", "known_hosts", "authorized_keys"):
        (folder / name).touch(mode=0o600)
        (folder / name).write_bytes((lab.directory / name).read_bytes())


def _ssh_config(lab: Lab) -> str:
    """Return a client configuration that depends on nothing the user has configured."""
    hosts = "".join(f"Host {n.name} {n.address}\n  HostName {n.address}\n  Port {n.port}\n" for n in lab.nodes)
    return f"""{hosts}Host *
  User {login_user(lab)}
  IdentityFile {_quoted(lab.directory / "id_ed25519")}
  IdentityAgent none
  IdentitiesOnly yes
  UserKnownHostsFile {_quoted(lab.directory / "known_hosts")}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 10
"""


def session_environment(lab: Lab, node: LabNode) -> dict[str, str]:
    """Return what a session on a node finds in its environment beyond what sshd gives it by itself."""
    kept = {"LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"]} if os.environ.get("LD_LIBRARY_PATH") else {}
    if lab.kind == "namespaces":
        return kept
    return {"HOME": str(node.home), "ORCH_LAB": lab.marker, "ORCH_LAB_NODE": node.name, **kept}


def write_sshd_config(lab: Lab, node: LabNode, sshd: str) -> None:
    """Write a node's ``sshd_config``: key login only, everything else as OpenSSH delivers it.

    StrictModes is off because a lab may lie under a folder that everybody may write to, such as /tmp.
    """
    lines = [
        f"Port {node.port}",
        f"ListenAddress {node.address}",
        f"HostKey {_quoted(node.folder / 'host_key')}",
        f"PidFile {_quoted(node.folder / 'sshd.pid')}",
        f"AuthorizedKeysFile {_quoted(lab.directory / 'authorized_keys')}",
        "StrictModes no",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin prohibit-password",
        "PrintMotd no",
        "PrintLastLog no",
        "AcceptEnv LANG LC_*",
        *_set_env(session_environment(lab, node)),
        *_helper_paths(Path(sshd)),
        *(_own_home(node) if lab.kind == "loopback" else ["Subsystem sftp internal-sftp"]),
    ]
    (node.folder / "sshd_config").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _set_env(values: Mapping[str, str]) -> list[str]:
    """All on one line: sshd heeds only the first SetEnv."""
    return ["SetEnv " + " ".join(f'"{name}={value}"' for name, value in values.items())] if values else []


def _own_home(node: LabNode) -> list[str]:
    """Make sessions start in the node's home: a non-root sshd changes to the home that the user database names."""
    script = node.folder / "session.sh"
    script.write_text(_SESSION, encoding="ascii")
    sftp = [f"Subsystem sftp {path}" for path in _SFTP_SERVERS if Path(path).exists()]
    return [f"ForceCommand exec /bin/sh {shlex.quote(str(script))}", *sftp[:1]]


_SESSION = """\
cd "$HOME" || exit 255
command=$SSH_ORIGINAL_COMMAND
unset SSH_ORIGINAL_COMMAND
if [ -z "$command" ]; then exec "$SHELL"; fi
exec "$SHELL" -c "$command"
"""


def _helper_paths(sshd: Path) -> list[str]:
    """An sshd that was unpacked rather than installed does not find its own parts (split off in OpenSSH 9.8 and 10.0)."""
    found = []
    for option, name in (("SshdSessionPath", "sshd-session"), ("SshdAuthPath", "sshd-auth")):
        unpacked = sshd.parent.parent / "lib" / "openssh" / name
        if unpacked.exists() and not (Path("/usr/lib/openssh") / name).exists():
            found.append(f"{option} {_quoted(unpacked)}")
    return found


def _quoted(path: Path) -> str:
    return f'"{path}"'
