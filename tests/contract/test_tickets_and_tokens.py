"""Log-ins that only the program ssh can do: with a ticket of Kerberos (GSSAPI), and with a security
key (FIDO).
"""

from __future__ import annotations

import logging
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.errors import TransportError
from orchestrator.transport.connections import Connections
from tests.contract.kerberos import Realm, needs_kerberos
from tests.contract.rig import Rig
from tests.support.judge import LIMIT_S

BOTH = pytest.mark.parametrize("transport", ["openssh", "ssh"])
"""Named in the inventory, and taken by itself where paramiko cannot log in."""


@pytest.fixture
def realm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Realm]:
    folder = tmp_path / "realm"
    folder.mkdir()
    made = Realm(folder)
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    yield made
    made.close()


@needs_kerberos
@BOTH
def test_a_ticket_of_kerberos_lets_in_and_without_one_the_error_says_what_the_host_takes(
    rig: Rig, realm: Realm, caplog: pytest.LogCaptureFixture
) -> None:
    server = rig.serve(
        "GSSAPIAuthentication yes", "GSSAPIStrictAcceptorCheck no", "PubkeyAuthentication no"
    )
    realm.serves(server.address)
    rig.configure(f"Host {server.address}\nGSSAPIAuthentication yes")
    host = rig.host(server)
    realm.log_in()
    with (
        closing(Connections(rig.trust())) as connections,
        caplog.at_level(logging.WARNING, "orchestrator.transport"),
    ):
        line = connections.connect(host)
        assert line.run(["echo", "through"], timeout_s=LIMIT_S).stdout == b"through\n"
        line.close()
    assert (
        "Accepted gssapi-with-mic" in server.log
        and f"host/{server.address}@ORCH.TEST" in realm.tickets()
    )
    assert ("gssapi-with-mic" in caplog.text) is (rig.transport == "ssh")
    realm.log_out()
    with pytest.raises(TransportError) as caught, closing(Connections(rig.trust())) as connections:
        connections.connect(host)
    assert caught.value.kind == "auth_failed" and caught.value.message.endswith("gssapi-with-mic")
    assert "kinit" in caught.value.hint


@BOTH
def test_a_security_key_lets_in(rig: Rig, tmp_path: Path) -> None:
    provider, source = tmp_path / "key.so", Path(__file__).parents[1] / "support" / "security_key.c"
    words = [
        "-shared",
        "-fPIC",
        "-Wno-deprecated-declarations",
        "-o",
        str(provider),
        str(source),
        "-lcrypto",
    ]
    if (
        not shutil.which("cc")
        or subprocess.run(["cc", *words], capture_output=True, check=False).returncode
    ):
        pytest.skip("needs a C compiler and libssl-dev")
    token = tmp_path / "id_ecdsa_sk"
    made = subprocess.run(
        ["ssh-keygen", "-q", "-t", "ecdsa-sk", "-w", str(provider), "-N", "", "-f", str(token)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if made.returncode:
        pytest.skip(f"this OpenSSH takes no such security key: {made.stderr}")
    server = rig.serve(authorized=[token])
    rig.configure(f"Host {server.address}\nSecurityKeyProvider {provider}")
    host = rig.host(server)
    with closing(Connections(rig.trust())) as connections:
        line = connections.connect(replace(host, ssh=replace(host.ssh, key=str(token))))
        assert line.run(["echo", "through"], timeout_s=LIMIT_S).stdout == b"through\n"
        line.close()
    assert "Accepted publickey" in server.log and "ECDSA-SK" in server.log
