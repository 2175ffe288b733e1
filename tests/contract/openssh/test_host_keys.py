"""Host keys and host certificates: which are taken, which are refused, and what is said of them."""

from __future__ import annotations

import re
import subprocess
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import TransportError
from orchestrator.transport.connections import Connections
from tests.contract.openssh.connecting import refused
from tests.contract.rig import Rig
from tests.contract.sshd import Sshd, make_key
from tests.support.judge import LIMIT_S


def test_the_host_key_of_a_server_is_told(rig: Rig) -> None:
    one, other = rig.serve(), rig.serve(host_keys=[make_key(rig.directory / "other")])
    keys = [rig.connect(server).host_key for server in (one, other)]
    shown = [
        subprocess.run(
            ["ssh-keygen", "-lf", f"{key}.pub"], capture_output=True, text=True, check=True
        ).stdout.split()[1]
        for key in (rig.keys.server, rig.directory / "other")
    ]
    assert keys == shown


def test_an_unknown_key_is_refused_and_accept_new_stores_it_for_the_project_alone(rig: Rig) -> None:
    server = rig.serve(known=False)
    error = refused(rig, rig.host(server))
    assert error.kind == "host_key_unknown" and re.search(r"ssh-ed25519 SHA256:\S{43}", str(error))
    assert "--accept-new" in error.hint
    rig.connect(rig.host(server), accept_new=True)
    assert rig.known_hosts.read_text() == "" and rig.store.read_text() == server.known_hosts_lines()
    rig.connect(rig.host(server))


@pytest.mark.parametrize("accept_new", [False, True])
def test_a_changed_key_is_refused_with_the_place_of_the_old_one(rig: Rig, accept_new: bool) -> None:
    server = rig.serve()
    server.stop()
    server.host_keys = [make_key(rig.directory / "new")]
    server.start()
    error = refused(rig, rig.host(server), accept_new=accept_new)
    assert (
        error.kind == "host_key_changed"
        and f"{rig.known_hosts}:1 has another ED25519 key" in error.message
    )
    assert "may be an attack" in error.hint


def test_a_revoked_key_is_refused(rig: Rig) -> None:
    server = rig.serve()
    rig.known_hosts.write_text(
        "@revoked * " + server.known_hosts_lines().split(" ", 1)[1] + server.known_hosts_lines()
    )
    assert refused(rig, rig.host(server)).kind == "host_key_revoked"


def test_a_host_that_accepts_new_keys_is_not_answered_with_the_refusal_of_one_that_does_not(
    rig: Rig,
) -> None:
    jump = rig.serve(known=False)
    strict, trusting = (rig.behind(rig.serve(known=False), jump) for _ in range(2))
    trusting = replace(trusting, name="lab2", ssh=replace(trusting.ssh, host_keys="accept-new"))
    with closing(Connections(rig.trust())) as connections:
        with pytest.raises(TransportError) as caught:
            connections.connect(strict)
        assert caught.value.kind == "host_key_unknown" and jump.log.count("Accepted publickey") == 0
        assert connections.connect(trusting).run(["true"], timeout_s=LIMIT_S).code == 0


# Host certificates


def certified(rig: Rig, name: str, *options: str, known: str = "*") -> Sshd:
    """Start a server with a host certificate for ``name``; its authority is known for ``known``,
    and its key is not.
    """
    authority, key = (make_key(rig.directory / f"{word}-{name}") for word in ("authority", "host"))
    command = [
        "ssh-keygen",
        "-q",
        "-s",
        str(authority),
        "-I",
        "test",
        "-h",
        "-n",
        name,
        *options,
        f"{key}.pub",
    ]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    line = " ".join(Path(f"{authority}.pub").read_text().split()[:2])
    rig.known_hosts.write_text(f"@cert-authority {known} {line}\n")
    return rig.serve(f"HostCertificate {key}-cert.pub", host_keys=[key], known=False)


@pytest.mark.parametrize("named", ["openssh", "ssh"])
def test_a_host_certificate_is_verified_by_ssh_whichever_transport_is_named(
    rig: Rig, caplog: pytest.LogCaptureFixture, named: str
) -> None:
    server = certified(rig, "127.0.0.2")
    host = replace(rig.host(server), transport=named)
    with closing(Connections(rig.trust())) as connections:
        line = connections.prepare(host)()
        assert line.run(["echo", "certified"], timeout_s=LIMIT_S).stdout == b"certified\n"
        line.close()
        connections.connect(host).close()
    assert not rig.store.exists() and len(rig.known_hosts.read_text().splitlines()) == 1
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    words = "a certificate authority vouches for its key, which paramiko cannot verify; connecting through the program ssh"
    assert [words in message for message in said] == ([True] if named == "ssh" else [])


@pytest.mark.parametrize(
    ("name", "options", "known"),
    [
        ("127.0.0.3", (), "*"),
        ("127.0.0.2", ("-V", "20200101:20200102"), "*"),
        ("127.0.0.2", (), "127.0.0.9"),
    ],
    ids=["of another host", "expired", "of an authority for other hosts"],
)
def test_a_certificate_that_does_not_hold_is_refused(
    rig: Rig, name: str, options: tuple[str, ...], known: str
) -> None:
    server = certified(rig, name, *options, known=known)
    error = refused(rig, replace(rig.host(server), transport="ssh"))
    assert error.kind == "host_key_unknown", str(error)
    assert "Accepted" not in server.log and "\\x" not in str(error)
    # Of an authority for other hosts, paramiko, which asks for no certificate, sees a key that is
    # as unknown as any.
    advice = (
        f"have its authority ({rig.known_hosts}:1) sign the host key"
        if known == "*"
        else "accept it with"
    )
    assert advice in error.hint, str(error)


@pytest.mark.parametrize(
    "known", ["*", "127.0.0.9"], ids=["another authority", "an authority for other hosts"]
)
def test_the_authority_of_a_certificate_is_named_if_it_is_not_known(rig: Rig, known: str) -> None:
    server = certified(rig, "127.0.0.2", known=known)
    if known == "*":
        stranger = Path(f"{rig.keys.stranger}.pub").read_text().split()
        rig.known_hosts.write_text(f"@cert-authority * {stranger[0]} {stranger[1]}\n")
    error = refused(rig, rig.host(server))
    assert (
        f"its certificate is signed by {fingerprint(rig, '127.0.0.2')}, which no known-hosts file"
        in error.message
    ), str(error)
    assert "@cert-authority" in error.hint and "accept it with" not in error.hint


def fingerprint(rig: Rig, name: str) -> str:
    """Type and fingerprint of the authority of a certificate for ``name``, as ssh prints them."""
    key = rig.directory / f"authority-{name}.pub"
    return (
        "ssh-ed25519 "
        + subprocess.run(
            ["ssh-keygen", "-lf", key], capture_output=True, text=True, check=True
        ).stdout.split()[1]
    )
