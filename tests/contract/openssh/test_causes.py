"""The errors of ssh in orch's kinds, what is tried before one of them, and what is told of each
step.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from contextlib import closing
from dataclasses import replace

import pytest

from orchestrator.errors import TransportError
from orchestrator.inventory.hosts import Host
from orchestrator.transport.connections import Connections
from tests.contract.openssh.connecting import refused
from tests.contract.rig import Rig
from tests.contract.sshd import Sshd
from tests.support.ports import free_port


def test_each_cause_has_its_kind_and_words(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    server, shut, weak = (
        rig.serve(),
        rig.serve("AllowTcpForwarding no"),
        rig.serve("KexAlgorithms diffie-hellman-group1-sha1"),
    )
    closed = rig.host(server, port=free_port(server.address))
    nowhere = Host("lab1", "no-such-host.invalid", ssh=rig.host(server).ssh, transport="openssh")
    stranger = rig.host(server, key=str(rig.keys.stranger))
    down = Sshd(rig.directory / "down", "127.0.0.77", port=free_port("127.0.0.77"))
    cases = [
        (closed, "host_unreachable", f"connection refused on port {closed.ssh.port}"),
        (nowhere, "host_unreachable", "does not resolve"),
        (
            stranger,
            "auth_failed",
            f"refused user {server.user}; it accepts publickey; offered keys: {rig.keys.stranger} SHA256:",
        ),
        (
            rig.host(weak),
            "algorithm_refused",
            "no key exchange method in common: the host offers diffie-hellman-group1-sha1",
        ),
        (
            rig.behind(server, shut),
            "host_unreachable",
            f"jump host {shut.address} refuses to forward connections to port {server.port}",
        ),
        (
            rig.behind(down, server),
            "host_unreachable",
            f"jump host {server.address} cannot reach it on port {down.port} (connect failed: Connection refused)",
        ),
        (rig.behind(server, down), "host_unreachable", "connection refused"),
    ]
    for host, kind, words in cases:
        error = refused(rig, host)
        assert (error.kind, words in error.message) == (kind, True), (str(error), words)
    assert "jump host 127.0.0.77" in str(refused(rig, cases[-1][0]))


def test_a_silent_listener_is_given_up_in_time(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    server = rig.serve()
    for process in (server.pid,):
        os.kill(process, signal.SIGSTOP)
    try:
        error = refused(rig, rig.host(server, connect_timeout_s=1.0))
        assert error.kind == "host_unreachable", str(error)
    finally:
        os.kill(server.pid, signal.SIGCONT)


# The transport that a host takes by itself


def test_a_server_that_takes_no_keys_is_reached_by_ssh_and_that_is_said_once(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    servers = [
        rig.serve("AuthenticationMethods hostbased", "HostbasedAuthentication yes")
        for _ in range(2)
    ]
    with closing(Connections(rig.trust())) as connections:
        for server in servers:
            with pytest.raises(TransportError) as caught:
                connections.connect(replace(rig.host(server), transport="ssh"))
            assert (
                caught.value.kind == "auth_failed"
                and "it accepts hostbased" in caught.value.message
            )
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == [
        f"lab1: the host accepts no keys from user {servers[0].user}, only hostbased; connecting through the program ssh "
        "(transport: openssh)"
    ]


def test_without_the_program_ssh_the_cause_is_the_error(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = rig.serve("AuthenticationMethods hostbased", "HostbasedAuthentication yes")
    monkeypatch.setattr("shutil.which", lambda *_, **__: None)
    error = refused(rig, replace(rig.host(server), transport="ssh"))
    assert (
        "accepts no keys" in error.message
        and error.hint == "allow PubkeyAuthentication in its sshd_config"
    )


def test_each_step_of_a_log_in_is_told_to_whoever_debugs_it(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    jump, server = rig.serve(), rig.serve()
    key = subprocess.run(
        ["ssh-keygen", "-lf", f"{rig.keys.server}.pub"], capture_output=True, text=True, check=True
    ).stdout.split()[1]
    for transport in ("ssh", "openssh"):
        caplog.clear()
        with (
            caplog.at_level("DEBUG", "orchestrator.transport"),
            closing(Connections(rig.trust())) as connections,
        ):
            connections.connect(replace(rig.behind(server, jump), transport=transport)).close()
        told = [record.getMessage() for record in caplog.records]
        for where in (f"lab1 (jump host {jump.address}): ", "lab1: "):
            steps = "\n".join(line.removeprefix(where) for line in told if line.startswith(where))
            assert re.search(rf" port {jump.port if 'jump' in where else server.port}", steps), (
                steps
            )
            assert key in steps and re.search(rf"{rig.known_hosts}:\d", steps), steps
            assert re.search(rf"offering .*{rig.keys.client}", steps, re.IGNORECASE), steps
            assert re.search("logged in as|Entering interactive session", steps), steps
    assert "PRIVATE" not in caplog.text
