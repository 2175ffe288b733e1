"""Whom a connection trusts: unknown, changed, revoked and odd host keys, first contacts, weak
algorithms.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from orchestrator.errors import DataError, OrchError, TransportError
from orchestrator.transport import Trust
from orchestrator.transport.protocols import OtherTransportNeeded
from orchestrator.transport.ssh import connect
from orchestrator.transport.ssh.config import Endpoint, resolve
from orchestrator.transport.ssh.hostkeys import judge, read_known_keys
from orchestrator.transport.trust import HostKey
from tests.contract.rig import Keys, Rig
from tests.contract.sshd import Sshd, make_key

ATTEMPT = re.compile(r"userauth-request|Accepted|Failed|invalid user", re.IGNORECASE)


def public(key: Path) -> HostKey:
    kind, blob = Path(f"{key}.pub").read_text().split()[:2]
    return HostKey(kind, base64.b64decode(blob))


def fingerprint(key: Path) -> str:
    listing = subprocess.run(
        ["ssh-keygen", "-lf", f"{key}.pub"], capture_output=True, text=True, check=True
    )
    return listing.stdout.split()[1]


def refusal(rig: Rig, server: Sshd, kind: str, *, accept_new: bool = False) -> str:
    """Connect, expect a refusal of this kind, prove that no log-in was tried, and return what is
    said.
    """
    with pytest.raises(TransportError) as caught:
        rig.connect(server, accept_new=accept_new)
    assert (caught.value.kind, caught.value.host, caught.value.exit_code) == (kind, "lab1", 3)
    assert not ATTEMPT.search(server.log)
    return str(caught.value)


def test_an_unknown_key_is_refused_with_fingerprint_type_and_remedy(rig: Rig) -> None:
    server = rig.serve("LogLevel DEBUG1", known=False)
    text = refusal(rig, server, "host_key_unknown")
    assert f"ssh-ed25519 {fingerprint(rig.keys.server)}" in text
    assert f"ssh-keyscan -p {server.port} -t ed25519 127.0.0.2 | ssh-keygen -lf -" in text
    assert "orch deploy --accept-new" in text
    assert not rig.store.exists()


def test_accept_new_stores_the_key_once_and_for_later(rig: Rig) -> None:
    server = rig.serve(known=False)
    before = rig.known_hosts.read_text()
    for accept_new in (True, True, False):
        rig.connect(server, accept_new=accept_new).close()
    assert rig.store.read_text() == server.known_hosts_lines()
    assert rig.store.stat().st_mode & 0o777 == 0o600
    assert rig.known_hosts.read_text() == before


def test_accept_new_of_the_inventory_counts_like_that_of_the_command_line(rig: Rig) -> None:
    server = rig.serve(known=False)
    rig.connect(rig.host(server, host_keys="accept-new"))
    assert rig.store.read_text() == server.known_hosts_lines()


@pytest.mark.parametrize("accept_new", [False, True])
@pytest.mark.parametrize("where", ["known_hosts", "store"])
def test_a_changed_key_is_refused_with_both_fingerprints_and_the_old_line(
    rig: Rig, accept_new: bool, where: str
) -> None:
    server = rig.serve("LogLevel DEBUG1", known=False)
    kind, blob = Path(f"{rig.keys.stranger}.pub").read_text().split()[:2]
    file = rig.known_hosts if where == "known_hosts" else rig.store
    file.write_text(f"# a comment\n{server.known_as} {kind} {blob}\n")
    text = refusal(rig, server, "host_key_changed", accept_new=accept_new)
    assert f"{file}:2 has ssh-ed25519 {fingerprint(rig.keys.stranger)}" in text
    assert f"the host offers ssh-ed25519 {fingerprint(rig.keys.server)}" in text


def test_a_known_key_is_asked_for_first_and_no_other_type_will_do(rig: Rig) -> None:
    ecdsa = make_key(rig.directory / "ecdsa", type="ecdsa")
    both = rig.serve(host_keys=[rig.keys.server, ecdsa], known=False)
    kind, blob = Path(f"{ecdsa}.pub").read_text().split()[:2]
    rig.known_hosts.write_text(f"{both.known_as} {kind} {blob}\n")
    assert rig.connect(both).host_key == fingerprint(ecdsa)
    other = rig.serve("LogLevel DEBUG1", known=False)
    rig.known_hosts.write_text(f"{other.known_as} {kind} {blob}\n")
    text = refusal(rig, other, "host_key_changed", accept_new=True)
    assert "a different type" in text
    assert fingerprint(ecdsa) in text


def test_an_rsa_key_is_known_by_its_type_whatever_it_signs_with(rig: Rig) -> None:
    rsa = make_key(rig.directory / "rsa", type="rsa", bits=2048)
    server = rig.serve(host_keys=[rig.keys.server, rsa], known=False)
    kind, blob = Path(f"{rsa}.pub").read_text().split()[:2]
    rig.known_hosts.write_text(f"{server.known_as} {kind} {blob}\n")
    assert rig.connect(server).host_key == fingerprint(rsa)


def hashed(name: str) -> str:
    salt = b"0123456789abcdefghij"
    mac = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(mac).decode()}"


NAME = "[127.0.0.9]:2222"
LINES = {
    "plain": ("{name} {key}", None),
    "with a comment": ("{name} {key} root@lab1", None),
    "one of several names": ("a,{name},b {key}", None),
    "hashed": ("{hashed} {key}", None),
    "wildcard": ("[127.0.0.?]:* {key}", None),
    "bare address vouches for another port": ("127.0.0.9 {key}", None),
    "several keys of one type": ("{name} {other}\n{name} {key}", None),
    "other hosts' damage": ("lab7 ssh-ed25519 AAAA\nlab8\n{name} {key}", None),
    "authority of others": ("@cert-authority *.example.org {other}\n{name} {key}", None),
    "revoked key of others": ("@revoked lab7 {key}\n{name} {key}", None),
    "revoked other key": ("@revoked * {other}\n{name} {key}", None),
    "nothing": ("", "host_key_unknown"),
    "comment": ("# {name} {key}", "host_key_unknown"),
    "negated": ("!{name},[127.0.0.9]:* {key}", "host_key_unknown"),
    "hashed other name": ("{hashed_other} {key}", "host_key_unknown"),
    "bare address with another key": ("127.0.0.9 {other}", "host_key_unknown"),
    "damaged line of this host": (
        "{name} ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAA",
        "host_key_unknown",
    ),
    "type that the key is not": ("{name} ssh-rsa {blob}", "host_key_unknown"),
    "authority of this host, and its key": ("@cert-authority {name} {other}\n{name} {key}", None),
    "authority of all": ("@cert-authority * {other}", "host_key_unknown"),
    "authority with the host's own key": ("@cert-authority {name} {key}", "host_key_unknown"),
    "unheard-of mark": ("@maybe {name} {key}", "host_key_unknown"),
    "changed": ("{name} {other}", "host_key_changed"),
    "changed, hashed": ("{hashed} {other}", "host_key_changed"),
    "revoked": ("@revoked {name} {key}", "host_key_revoked"),
    "revoked though known": ("{name} {key}\n@revoked * {key}", "host_key_revoked"),
    "revoked under the bare address": (
        "@revoked 127.0.0.9 {key}\n127.0.0.9 {key}",
        "host_key_revoked",
    ),
    "damaged revocation": ("{name} {key}\n@revoked {name} ssh-ed25519 AAAA", "host_key_revoked"),
}


@pytest.fixture
def endpoint(rig: Rig, keys: Keys) -> Endpoint:
    """An address nobody serves: these tests judge keys without a connection."""
    server = Sshd(rig.directory / "never-started", "127.0.0.9", port=2222, host_keys=[keys.server])
    return resolve(rig.host(server))


@pytest.mark.parametrize("case", LINES)
def test_every_form_of_known_hosts_line_is_judged(rig: Rig, endpoint: Endpoint, case: str) -> None:
    lines, kind = LINES[case]
    key, other = (
        " ".join(Path(f"{path}.pub").read_text().split()[:2])
        for path in (rig.keys.server, rig.keys.stranger)
    )
    values = {"name": NAME, "key": key, "other": other, "blob": key.split()[1]}
    rig.known_hosts.write_text(
        lines.format(**values, hashed=hashed(NAME), hashed_other=hashed("[127.0.0.9]:22")) + "\n"
    )
    if kind is None:
        judge(endpoint, rig.trust(), public(rig.keys.server))
        return
    with pytest.raises(TransportError) as caught:
        judge(endpoint, rig.trust(), public(rig.keys.server))
    assert caught.value.kind == kind
    if "authority" in case:
        assert isinstance(caught.value, OtherTransportNeeded) and f"{rig.known_hosts}:1" in str(
            caught.value
        )
    if "damaged" in case:
        assert str(rig.known_hosts) in str(caught.value)


def test_ssh_keygen_hashes_are_understood(rig: Rig, endpoint: Endpoint) -> None:
    key = " ".join(Path(f"{rig.keys.server}.pub").read_text().split()[:2])
    rig.known_hosts.write_text(f"lab7 {key}\n{NAME} {key}\n")
    subprocess.run(
        ["ssh-keygen", "-q", "-H", "-f", str(rig.known_hosts)],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    assert "127.0.0.9" not in rig.known_hosts.read_text()
    judge(endpoint, rig.trust(), public(rig.keys.server))


def test_damaged_lines_are_named_when_a_key_is_missed(rig: Rig, endpoint: Endpoint) -> None:
    rig.known_hosts.write_text("lab7 ssh-ed25519 AAAA\n[127.0.0.9\n")
    with pytest.raises(TransportError, match=f"damaged lines: {rig.known_hosts}:2"):
        judge(endpoint, rig.trust(), public(rig.keys.server))


@pytest.mark.parametrize("line", ["@revoked {} {}\n", "@maybe {} {}\n"])
def test_marks_refuse_a_real_connection_before_any_log_in(rig: Rig, line: str) -> None:
    server = rig.serve("LogLevel DEBUG1", known="maybe" not in line)
    blob = " ".join(Path(f"{rig.keys.server}.pub").read_text().split()[:2])
    with rig.known_hosts.open("a") as stream:
        stream.write(line.format(server.known_as, blob))
    refusal(
        rig,
        server,
        "host_key_revoked" if "revoked" in line else "host_key_unknown",
        accept_new=True,
    )


def test_an_alias_names_the_host_in_known_hosts_files(rig: Rig) -> None:
    server = rig.serve(known=False)
    blob = " ".join(Path(f"{rig.keys.server}.pub").read_text().split()[:2])
    rig.known_hosts.write_text(f"lab-one {blob}\n")
    with pytest.raises(TransportError):
        rig.connect(server)
    rig.configure("HostKeyAlias lab-one")
    rig.connect(server)


def test_the_inventory_may_name_its_own_known_hosts_file(rig: Rig) -> None:
    server = rig.serve(known=False)
    own = rig.directory / "own"
    own.write_text(server.known_hosts_lines())
    rig.connect(rig.host(server, known_hosts=str(own)))


FIRST_CONTACT = """
import sys, threading
from pathlib import Path
from dataclasses import replace
from orchestrator.inventory.hosts import Host, SshSettings
from orchestrator.transport.ssh.hostkeys import judge
from orchestrator.transport.ssh.config import resolve
from orchestrator.transport.trust import HostKey, Trust
store, known, config, rounds = sys.argv[1:]
endpoint = resolve(Host("lab1", "127.0.0.9", ssh=SshSettings(config=config)))
blob = bytes([0, 0, 0, 11]) + b"ssh-ed25519" + bytes([0, 0, 0, 32])
for number in range(int(rounds)):
    trust = Trust(Path(f"{store}{number}"), accept_new=True)
    def meet(host):
        judge(replace(endpoint, known_as=f"host{host}"), trust, HostKey("ssh-ed25519", blob + bytes([host] * 32)))
    threads = [threading.Thread(target=meet, args=(host,)) for host in range(16)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
"""


def test_first_contacts_of_two_processes_lose_and_tear_no_line(rig: Rig) -> None:
    rounds = 20
    command = [
        sys.executable,
        "-c",
        FIRST_CONTACT,
        str(rig.store),
        str(rig.known_hosts),
        str(rig.config),
        str(rounds),
    ]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait() for process in processes] == [0, 0]
    for number in range(rounds):
        store = Path(f"{rig.store}{number}")
        assert sorted(line.split()[0] for line in store.read_text().splitlines()) == sorted(
            f"host{n}" for n in range(16)
        )
        assert all(
            read_known_keys([store], f"host{host}").types() == ("ssh-ed25519",)
            for host in range(16)
        )
        assert read_known_keys([store], "nobody").torn == ()
        assert store.stat().st_mode & 0o777 == 0o600
    assert not list(rig.directory.glob(".*.part"))


def test_sixteen_servers_are_met_at_once(rig: Rig) -> None:
    servers = [rig.serve(known=False) for _ in range(16)]
    failed: list[OrchError] = []

    def meet(server: Sshd) -> None:
        try:
            connect(rig.host(server), rig.trust(accept_new=True)).close()
        except OrchError as error:
            failed.append(error)

    threads = [threading.Thread(target=meet, args=(server,)) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sorted(rig.store.read_text().splitlines(True)) == sorted(
        server.known_hosts_lines() for server in servers
    )


def test_a_first_contact_that_somebody_else_made_with_another_key_is_a_change(
    rig: Rig, endpoint: Endpoint
) -> None:
    trust = Trust(rig.store, accept_new=True)
    judge(endpoint, trust, public(rig.keys.server))
    with pytest.raises(TransportError) as caught:
        judge(endpoint, trust, public(rig.keys.stranger))
    assert caught.value.kind == "host_key_changed"


def test_a_server_that_was_confirmed_by_its_bare_address_cannot_return_as_a_new_one(
    rig: Rig,
) -> None:
    """A key under the bare address confirms a server on another port, and a different one does not
    refute it.
    """
    server = rig.serve(known=False)
    rig.known_hosts.write_text(f"{server.address} {Path(f'{rig.keys.server}.pub').read_text()}")
    host, trust = rig.host(server, known_hosts=str(rig.known_hosts)), rig.trust(accept_new=True)
    connect(host, trust).close()
    with pytest.raises(TransportError) as caught:
        judge(resolve(host), trust, public(rig.keys.stranger))
    assert caught.value.kind == "host_key_changed" and not rig.store.exists()


def test_a_store_without_a_last_newline_keeps_its_last_line(rig: Rig, endpoint: Endpoint) -> None:
    rig.store.write_text("lab7 ssh-ed25519 AAAA")
    judge(endpoint, rig.trust(accept_new=True), public(rig.keys.server))
    assert [line.split()[0] for line in rig.store.read_text().splitlines()] == ["lab7", NAME]


def test_a_store_that_is_a_link_is_not_followed(rig: Rig, endpoint: Endpoint) -> None:
    target = rig.directory / "target"
    target.write_text("")
    rig.store.symlink_to(target)
    with pytest.raises(OrchError, match="link"):
        judge(endpoint, rig.trust(accept_new=True), public(rig.keys.server))
    assert target.read_text() == ""


def test_a_store_that_cannot_be_written_is_named_with_what_to_do(
    rig: Rig, endpoint: Endpoint
) -> None:
    lock = Path(f"{rig.store}.lock")
    lock.mkdir()
    with pytest.raises(DataError) as caught:
        judge(endpoint, rig.trust(accept_new=True), public(rig.keys.server))
    assert caught.value.where == str(lock) and "ORCH_PROJECT" in caught.value.hint


WEAK = {
    "a cipher": (
        "Ciphers 3des-cbc,aes128-cbc",
        "no safe ciphers in common: the host offers 3des-cbc, aes128-cbc",
    ),
    "a MAC": (
        "MACs hmac-md5,hmac-sha1",
        "no safe MACs in common: the host offers hmac-md5, hmac-sha1",
    ),
    "a key exchange": (
        "KexAlgorithms diffie-hellman-group14-sha1,diffie-hellman-group1-sha1",
        "no safe kex in common: the host offers diffie-hellman-group14-sha1, diffie-hellman-group1-sha1",
    ),
    "a host key signature": (
        "HostKeyAlgorithms ssh-rsa",
        "no safe host keys in common: the host offers ssh-rsa",
    ),
}


@pytest.mark.parametrize("weak", WEAK)
def test_a_host_with_only_weak_algorithms_is_refused_and_what_it_offers_is_named(
    rig: Rig, weak: str
) -> None:
    option, message = WEAK[weak]
    rsa = make_key(rig.directory / "rsa", type="rsa", bits=2048)
    server = rig.serve(option, "LogLevel DEBUG1", host_keys=[rsa])
    assert message in refusal(rig, server, "algorithm_refused")


def test_the_best_algorithms_are_agreed_on_with_strict_key_exchange(rig: Rig) -> None:
    server = rig.serve("LogLevel DEBUG3")
    wire = rig.connect(server)._line.client.wire
    assert "kex: algorithm: curve25519-sha256 " in server.log
    assert "kex: host key algorithm: ssh-ed25519" in server.log
    assert "cipher: aes128-gcm@openssh.com" in server.log
    if (
        "kex-strict-s-v00@openssh.com" in server.log
    ):  # sshd since 9.6, or an older one that was mended
        assert wire.agreed_on_strict_kex
