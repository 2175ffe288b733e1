"""Login keys, host keys, ``sshd_config`` and ``ssh_config`` of a lab.

One login key is valid on all nodes. Each node has its own host key, listed in ``known_hosts``
beforehand, so that host keys can be verified strictly from the first connection on.
"""

from __future__ import annotations

import datetime
import getpass
import ipaddress
import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from orchestrator.lab.state import Lab, LabNode

_SFTP_SERVERS = (
    "/usr/lib/openssh/sftp-server",
    "/usr/libexec/openssh/sftp-server",
    "/usr/lib/ssh/sftp-server",
)


def login_user(lab: Lab) -> str:
    """Return the login user: root in a lab in namespaces, else the user who started the lab."""
    if lab.in_namespaces:
        return "root"
    return getpass.getuser()


def write_identity(lab: Lab) -> None:
    """Write all keys, ``known_hosts``, ``authorized_keys`` and the client's ``ssh_config``."""
    public = _write_key(lab.directory / "id_ed25519", "orch lab")
    (lab.directory / "authorized_keys").write_text(public + "\n", encoding="ascii")
    known_hosts = []
    for node in lab.nodes:
        node.home.mkdir(parents=True, mode=0o700)
        host_key = _write_key(node.folder / "host_key", node.name)
        names = (node.name, node.address) if node.port == 22 else (f"[{node.address}]:{node.port}",)
        known_hosts.append(f"{','.join(names)} {' '.join(host_key.split()[:2])}\n")
    (lab.directory / "known_hosts").write_text("".join(known_hosts), encoding="ascii")
    lab.ssh_config.write_text(_ssh_config(lab), encoding="utf-8")
    if lab.in_namespaces:
        for node in lab.nodes:
            _write_home_keys(lab, node)


def _write_key(path: Path, comment: str) -> str:
    """Write a new Ed25519 key to ``path`` and return its public line."""
    key = Ed25519PrivateKey.generate()
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    return f"{key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode('ascii')} {comment}"


def write_certificate(folder: Path, address: str) -> None:
    """Write ``server.key`` and ``server.crt``, a certificate of its own for the server at an address."""
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "orch lab")])
    now = datetime.datetime.now(datetime.timezone.utc)
    days = datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - days).not_valid_after(now + 365 * days)
    names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
    certificate = builder.add_extension(names, critical=False).sign(key, SHA256())
    path = folder / "server.key"
    path.touch(mode=0o600)
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / "server.crt").write_bytes(certificate.public_bytes(Encoding.PEM))


def _write_home_keys(lab: Lab, node: LabNode) -> None:
    """Let the nodes log in to each other, as on real clusters, for launchers such as mpirun."""
    folder = node.home / ".ssh"
    folder.mkdir(mode=0o700)
    for name in ("id_ed25519", "known_hosts", "authorized_keys"):
        (folder / name).touch(mode=0o600)
        (folder / name).write_bytes((lab.directory / name).read_bytes())


def _ssh_config(lab: Lab) -> str:
    """Return a client configuration that is independent of the user's own."""
    hosts = "".join(
        f"Host {n.name} {n.address}\n  HostName {n.address}\n  Port {n.port}\n" for n in lab.nodes
    )
    return f"""{hosts}Host *
  User {login_user(lab)}
  IdentityFile {_quote(lab.directory / "id_ed25519")}
  IdentityAgent none
  IdentitiesOnly yes
  UserKnownHostsFile {_quote(lab.directory / "known_hosts")}
  GlobalKnownHostsFile /dev/null
  StrictHostKeyChecking yes
  BatchMode yes
  ConnectTimeout 10
"""


def session_environment(lab: Lab, node: LabNode) -> dict[str, str]:
    """Return the environment variables that a session on a node gets in addition to sshd's own."""
    kept = {}
    if os.environ.get("LD_LIBRARY_PATH"):
        kept = {"LD_LIBRARY_PATH": os.environ["LD_LIBRARY_PATH"]}
    if lab.in_namespaces:
        if lab.slurm:
            return {**kept, "SLURM_CONF": str(lab.slurm_conf)}
        return kept
    return {"HOME": str(node.home), "ORCH_LAB": lab.marker, "ORCH_LAB_NODE": node.name, **kept}


def write_sshd_config(lab: Lab, node: LabNode, sshd: str) -> None:
    """Write a node's ``sshd_config``: login by key only, OpenSSH's defaults otherwise.

    StrictModes is off because a lab may be below a folder that everyone can write to, such as /tmp.
    """
    lines = [
        f"Port {node.port}",
        f"ListenAddress {node.address}",
        f"HostKey {_quote(node.folder / 'host_key')}",
        f"PidFile {_quote(node.folder / 'sshd.pid')}",
        f"AuthorizedKeysFile {_quote(lab.directory / 'authorized_keys')}",
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
    """Return the SetEnv line with all variables, because sshd uses only the first such line."""
    if not values:
        return []
    return ["SetEnv " + " ".join(f'"{name}={value}"' for name, value in values.items())]


def _own_home(node: LabNode) -> list[str]:
    """Return the lines that start sessions in the node's home; a non-root sshd would use the home
    in the user database.
    """
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
    """Return the paths of helper programs (separate since OpenSSH 9.8 and 10.0), which an unpacked
    sshd does not find.
    """
    lines = []
    for option, name in (("SshdSessionPath", "sshd-session"), ("SshdAuthPath", "sshd-auth")):
        unpacked = sshd.parent.parent / "lib" / "openssh" / name
        if unpacked.exists() and not (Path("/usr/lib/openssh") / name).exists():
            lines.append(f"{option} {_quote(unpacked)}")
    return lines


def _quote(path: Path) -> str:
    return f'"{path}"'
