"""What kubectl prints about the stand-in for a cluster: rights."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator

import pytest

from orchestrator.engines.kubernetes import client
from tests.contract.podserver import PodServer
from tests.support.judge import LIMIT_S
from tests.support.pods import no_pods

pytestmark = pytest.mark.skipif(bool(no_pods()), reason=no_pods())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PodServer]:
    with PodServer(tmp_path_factory.mktemp("pods") / "server") as made:
        yield made


def kubectl(server: PodServer, *words: str) -> subprocess.CompletedProcess[str]:
    own = {"KUBECONFIG": str(server.kubeconfig), "KUBECACHEDIR": str(server.directory / "cache")}
    return subprocess.run(
        [client.program(), *words], env=os.environ | own, capture_output=True, text=True,
        timeout=LIMIT_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ("create pods --subresource=exec", {"lab"}),
        ("get pods --subresource=exec", {"lab"}),
        ("create jobs.batch", {"lab"}),
        ("delete pods/some", {"lab"}),
        ("patch pods --subresource=status", {"lab"}),
        ("list pods", {"lab", "viewer"}),
        ("get jobs", {"lab", "viewer"}),
        ("get /version", {"lab", "viewer", "stranger"}),
        ("create pods", set()),
        ("delete nodes", set()),
        ("* *", set()),
    ],
)
def test_can_i_says_yes_to_what_the_server_allows_and_no_to_the_rest(
    server: PodServer, asked: str, allowed: set[str]
) -> None:
    for context in ("lab", "viewer", "stranger"):
        done = kubectl(server, "auth", "can-i", *asked.split(), f"--context={context}")
        expected = "yes\n" if context in allowed else "no\n"
        assert (done.stdout, done.returncode) == (expected, int(expected == "no\n")), done


def test_a_command_that_can_i_refuses_is_forbidden(server: PodServer) -> None:
    for context, words in (("viewer", ["delete", "pod"]), ("stranger", ["get", "pod"])):
        done = kubectl(server, *words, server.pod, f"--context={context}")
        assert done.returncode == 1 and "(Forbidden)" in done.stderr, done
    assert kubectl(server, "get", "pod", server.pod, "--context=viewer").returncode == 0
