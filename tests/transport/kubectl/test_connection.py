"""What kubectl needs is checked before a pod is used, each with its cure; pods that end are named."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.engines.kubernetes import client
from orchestrator.errors import ConfigError, TransportError
from orchestrator.inventory import Host
from orchestrator.transport.kubectl import KubectlConnector
from tests.contract.podserver import PodServer
from tests.support.judge import LIMIT_S
from tests.support.pods import no_pods

pytestmark = pytest.mark.skipif(bool(no_pods()), reason=no_pods())


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PodServer]:
    with PodServer(tmp_path / "server") as made:
        monkeypatch.setenv("KUBECONFIG", str(made.kubeconfig))
        monkeypatch.setenv("KUBECACHEDIR", str(tmp_path / "cache"))
        yield made


def host(server: PodServer, **variables: str) -> Host:
    known = {"pod": server.pod, **variables}
    return Host("gpu1", server.address, transport="kubectl", vars=known)


def test_a_user_who_may_run_no_commands_is_told_which_right_is_missing(server: PodServer) -> None:
    with pytest.raises(ConfigError, match="expected the right to create pods/exec") as caught:
        KubectlConnector().connect(host(server, kube_context="viewer"))
    said = "kubectl auth can-i create pods --subresource=exec --namespace=default"
    assert said in caught.value.hint


def test_a_pod_a_context_and_a_server_that_do_not_exist_are_named(server: PodServer) -> None:
    connector = KubectlConnector()
    with pytest.raises(
        TransportError, match="pod other in namespace default was deleted, or"
    ) as caught:
        connector.connect(host(server, pod="other"))
    assert caught.value.kind == "host_gone"
    with pytest.raises(ConfigError, match="west"):
        connector.connect(host(server, kube_context="west"))
    server.stop()
    with pytest.raises(TransportError, match="Kubernetes does not answer: .*refused") as caught:
        connector.connect(host(server))
    assert caught.value.kind == "host_unreachable"
    server.kill_connections()


def test_the_token_is_in_no_command_line_and_no_error(server: PodServer) -> None:
    token = next(iter(client.json.loads((server.lab.pods_folder / "tokens.json").read_text())))
    transport = KubectlConnector().connect(replace(host(server)))
    channel = transport.popen(["cat"], timeout_s=LIMIT_S)
    channel.send(b"x")
    assert channel.recv(LIMIT_S) == b"x"
    argv = Path(f"/proc/{channel._process.pid}/cmdline").read_bytes()
    assert b"exec" in argv and token.encode() not in argv
    os.kill(channel._process.pid, 9)
    with pytest.raises(TransportError, match="kubectl was ended by SIGKILL") as caught:
        channel.recv(LIMIT_S)
    assert token not in str(caught.value)
    transport.close()


def test_kubectl_that_is_missing_or_too_old_is_named_with_where_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client.sys, "executable", str(tmp_path / "bin" / "python"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    old = tmp_path / "kubectl"
    old.write_text('#!/bin/sh\necho \'{"clientVersion": {"gitVersion": "v1.20.2"}}\'\n')
    old.chmod(0o755)
    with pytest.raises(ConfigError, match=r"expected kubectl 1\.31 or newer, got 1\.20") as caught:
        client.check_version()
    assert "pip install 'orch-bench[pods]'" in caught.value.hint
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(ConfigError, match="expected the program kubectl"):
        client.check_version()
