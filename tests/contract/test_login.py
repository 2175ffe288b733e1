"""Logging in: only with the configured key, without prompts, and with a message of its own for each
thing that goes wrong.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncssh
import pytest

from orchestrator.errors import TransportError
from orchestrator.inventory.hosts import Host, SshSettings
from orchestrator.transport.ssh import identity
from tests.contract.rig import Rig
from tests.contract.sshd import make_key
from tests.support.judge import LIMIT_S


def refused(rig: Rig, host: Host, kind: str = "auth_failed") -> str:
    with pytest.raises(TransportError) as caught:
        rig.connect(host)
    assert (caught.value.kind, caught.value.host) == (kind, "lab1")
    assert caught.value.hint
    return str(caught.value)


@contextmanager
def agent(directory: Path, *keys: Path) -> Iterator[str]:
    """Run an agent that holds these keys, and yield the path of its socket."""
    path = str(directory / "agent")
    process = subprocess.Popen(
        ["ssh-agent", "-D", "-a", path], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not Path(path).exists():
            time.sleep(0.01)
        environment = {
            **os.environ,
            "SSH_AUTH_SOCK": path,
            "SSH_ASKPASS": "/bin/cat",
            "SSH_ASKPASS_REQUIRE": "never",
        }
        for key in keys:
            subprocess.run(
                ["ssh-add", "-q", str(key)], env=environment, check=True, stdin=subprocess.DEVNULL
            )
        yield path
    finally:
        process.terminate()
        process.wait()


@pytest.mark.parametrize(
    ("type", "bits"), [("ed25519", None), ("ecdsa", 256), ("ecdsa", 521), ("rsa", 2048)]
)
def test_every_usual_type_of_key_logs_in(rig: Rig, type: str, bits: int | None) -> None:
    key = make_key(rig.directory / "key", type=type, bits=bits)
    server = rig.serve(authorized=[key])
    assert rig.connect(rig.host(server, key=str(key))).run(["true"], timeout_s=LIMIT_S).code == 0


def test_a_key_in_the_old_pem_form_logs_in(rig: Rig) -> None:
    key = make_key(rig.directory / "key", type="rsa", bits=2048)
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-m", "PEM", "-N", "", "-f", str(key)],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    assert "BEGIN RSA" in key.read_text()
    rig.connect(rig.host(rig.serve(authorized=[key]), key=str(key)))


def test_a_wrong_key_is_refused_and_no_second_one_is_tried(rig: Rig) -> None:
    server = rig.serve("LogLevel DEBUG1")
    with agent(rig.directory, rig.keys.client) as path:
        rig.configure(f"IdentityAgent {path}\nIdentityFile {rig.keys.client}")
        text = refused(rig, rig.host(server, key=str(rig.keys.stranger)))
    assert f"the host refused key {rig.keys.stranger} for user {server.user}" in text
    assert "authorized_keys" in text
    assert server.log.count("method publickey") == 1
    assert "method password" not in server.log
    assert "method keyboard-interactive" not in server.log


def test_a_key_with_a_passphrase_asks_nobody(rig: Rig) -> None:
    key = make_key(rig.directory / "locked", passphrase="secret")
    server = rig.serve("LogLevel DEBUG1", authorized=[key])
    text = refused(rig, rig.host(server, key=str(key)))
    assert f"key file {key} has a passphrase" in text and f"ssh-add {key}" in text
    assert "Connection from" not in server.log


def test_a_key_with_a_passphrase_may_come_from_the_agent_and_no_other_does(rig: Rig) -> None:
    key = make_key(rig.directory / "key")
    server = rig.serve("LogLevel DEBUG1", authorized=[key])
    with agent(rig.directory, rig.keys.stranger, key) as path:
        subprocess.run(
            ["ssh-keygen", "-q", "-p", "-N", "secret", "-f", str(key)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        rig.configure(f"IdentityAgent {path}")
        rig.connect(rig.host(server, key=str(key)))
    assert server.log.count("method publickey") == 1


def test_a_key_that_others_may_read_is_refused(rig: Rig) -> None:
    key = make_key(rig.directory / "open")
    key.chmod(0o644)
    text = refused(rig, rig.host(rig.serve(authorized=[key]), key=str(key)))
    assert text == f"key file {key} can be read by others (mode 0644). chmod 600 {key}"


def test_a_missing_key_file_is_named(rig: Rig) -> None:
    text = refused(rig, rig.host(rig.serve(), key="/nowhere/id_ed25519"))
    assert "key file /nowhere/id_ed25519: no such file" in text


@pytest.mark.parametrize(
    "content",
    [
        "",
        "nonsense\n",
        "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n",
    ],
)
def test_a_file_that_is_no_key_is_named(rig: Rig, content: str) -> None:
    key = rig.directory / "nokey"
    key.write_text(content)
    key.chmod(0o600)
    assert f"key file {key} contains no usable private key" in refused(
        rig, rig.host(rig.serve(), key=str(key))
    )


def test_the_public_half_given_as_key_is_named(rig: Rig) -> None:
    half = rig.directory / "half.pub"
    half.write_text(Path(f"{rig.keys.client}.pub").read_text())
    half.chmod(0o600)
    assert "make sure that this is not the public half" in refused(
        rig, rig.host(rig.serve(), key=str(half))
    )


def test_a_server_that_takes_no_keys_is_named(rig: Rig) -> None:
    options = ("PubkeyAuthentication no", "PasswordAuthentication yes")
    text = refused(rig, rig.host(rig.serve(*options)))
    assert "accepts no keys" in text
    assert "password" in text


def test_a_server_that_wants_more_than_the_key_is_named(rig: Rig) -> None:
    options = ("AuthenticationMethods publickey,password", "PasswordAuthentication yes")
    assert "also requires password" in refused(rig, rig.host(rig.serve(*options)))


class _Slow(asyncssh.SSHServer):
    async def begin_auth(self, username: str) -> bool:
        await asyncio.sleep(60)
        return True


def test_an_authentication_that_hangs_ends_in_time(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "AUTH_TIMEOUT_S", 1.0)
    loop = asyncio.new_event_loop()
    listening = asyncssh.listen(
        "127.0.0.1", 0, server_host_keys=[str(rig.keys.server)], server_factory=_Slow
    )
    server = loop.run_until_complete(listening)
    port = server.get_port()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        kind, blob = Path(f"{rig.keys.server}.pub").read_text().split()[:2]
        rig.known_hosts.write_text(f"[127.0.0.1]:{port} {kind} {blob}\n")
        ssh = SshSettings(
            user="anyone", port=port, key=str(rig.keys.client), config=str(rig.config)
        )
        text = refused(rig, Host("lab1", "127.0.0.1", ssh=ssh))
        assert "no answer to the authentication within 1 s" in text
    finally:

        async def end() -> None:
            server.close()
            for task in asyncio.all_tasks() - {asyncio.current_task()}:
                task.cancel()
            await asyncio.sleep(0.05)
            loop.stop()

        asyncio.run_coroutine_threadsafe(end(), loop)
        thread.join()
        loop.close()


def test_without_a_configured_key_the_agent_is_asked(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = rig.serve()
    with agent(rig.directory, rig.keys.stranger, rig.keys.client) as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", path)
        rig.configure("IdentityAgent SSH_AUTH_SOCK")
        rig.connect(rig.host(server, key=None))


@pytest.mark.parametrize(
    "words", ["IdentitiesOnly yes\nIdentityAgent SSH_AUTH_SOCK", "IdentityAgent none"]
)
def test_an_agent_that_must_not_be_asked_is_not(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    server = rig.serve("LogLevel DEBUG1")
    with agent(rig.directory, rig.keys.client) as path:
        monkeypatch.setenv("SSH_AUTH_SOCK", path)
        rig.configure(f"{words}\nIdentityFile none")
        assert "no usable key" in refused(rig, rig.host(server, key=None))
    assert "method publickey" not in server.log


def test_a_dead_agent_is_no_agent(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", str(rig.directory / "nobody"))
    rig.configure("IdentityAgent SSH_AUTH_SOCK\nIdentityFile none")
    assert "no usable key" in refused(rig, rig.host(rig.serve(), key=None))


def test_the_key_of_the_ssh_configuration_is_used(rig: Rig) -> None:
    server = rig.serve()
    rig.configure(
        f"IdentityFile {rig.directory}/missing\nIdentityFile {rig.directory}/%%or-%u\nIdentityFile {rig.keys.client}"
    )
    rig.connect(rig.host(server, key=None))


def test_a_certificate_beside_the_key_logs_in(rig: Rig) -> None:
    authority, key = make_key(rig.directory / "ca"), make_key(rig.directory / "key")
    user = rig.host(rig.serve()).ssh.user or ""
    command = ["ssh-keygen", "-q", "-s", str(authority), "-I", "test", "-n", user, f"{key}.pub"]
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    server = rig.serve(f"TrustedUserCAKeys {authority}.pub", authorized=[])
    rig.connect(rig.host(server, key=str(key)))


def test_each_fault_has_words_of_its_own(rig: Rig) -> None:
    locked = make_key(rig.directory / "locked", passphrase="secret")
    readable = make_key(rig.directory / "readable")
    readable.chmod(0o640)
    server = rig.serve()
    faults = {
        refused(rig, rig.host(server, key=str(key)))
        for key in (rig.keys.stranger, locked, readable, "/nowhere")
    }
    assert len({text.partition(". ")[2] for text in faults}) == 4
