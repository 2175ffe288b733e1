"""What kubectl prints about the stand-in for a cluster: rights, and tables."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from typing import Any

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


def words(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_pods_have_the_columns_of_a_real_server(server: PodServer) -> None:
    done = kubectl(server, "get", "pods")
    assert words(done.stdout)[0] == ["NAME", "READY", "STATUS", "RESTARTS", "AGE"], done
    ((*cells, age),) = words(done.stdout)[1:]
    assert cells == [server.pod, "1/1", "Running", "0"] and age[:-1].isalnum()
    wide = kubectl(server, "get", "pod", server.pod, "-o", "wide", "--show-labels")
    assert words(wide.stdout)[0][5:] == ["IP", "NODE", "LABELS"], wide
    assert words(wide.stdout)[1][5:] == [server.address, server.pod, "app=lab"]
    assert kubectl(server, "get", "pods", "-o", "name").stdout == f"pod/{server.pod}\n"
    none = kubectl(server, "get", "pods", "-l", "app=other")
    assert "No resources found" in none.stderr and not none.stdout, none


@pytest.mark.parametrize(
    ("name", "queue", "container", "job_cells", "pod_status"),
    [
        ("queued", "full", {"image": "lab"}, ["Suspended", "0/2"], ""),
        ("large", "lab", {"image": "lab", "resources": {"limits": {"cpu": 9}}}, ["Running", "0/2"], "Pending"),
        ("unknown", "lab", {"image": "no-such"}, ["Running", "0/2"], "ImagePullBackOff"),
    ],
)  # fmt: skip
def test_jobs_and_pods_that_do_not_run_show_why(
    server: PodServer,
    name: str,
    queue: str,
    container: dict[str, Any],
    job_cells: list[str],
    pod_status: str,
) -> None:
    path = server.directory / f"{name}.json"
    template = {"spec": {"containers": [{"name": "main", **container}]}}
    labels = {"kueue.x-k8s.io/queue-name": queue}
    job = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"completions": 2, "template": template},
    }
    path.write_text(json.dumps(job))
    url = "/apis/batch/v1/namespaces/default/jobs"
    assert kubectl(server, "create", "--raw", url, "-f", str(path)).returncode == 0
    both = kubectl(server, "get", "jobs,pods")
    assert ["NAME", "STATUS", "COMPLETIONS", "DURATION", "AGE"] in words(both.stdout), both
    (row,) = [row for row in words(both.stdout) if row and row[0] == f"job.batch/{name}"]
    # A job that has not started has no duration.
    assert row[1:3] == job_cells and len(row) == 4 + (queue == "lab"), both
    pods = [row for row in words(both.stdout) if row and row[0].startswith(f"pod/{name}-")]
    # The only machine has room for the first pod of the unknown image, none for the second.
    expected = {
        "": [],
        "Pending": ["Pending"] * 2,
        "ImagePullBackOff": ["ImagePullBackOff", "Pending"],
    }
    assert [pod[1:4] for pod in pods] == [["0/1", s, "0"] for s in expected[pod_status]], both
    assert kubectl(server, "delete", "--raw", f"{url}/{name}").returncode == 0
    assert words(kubectl(server, "get", "jobs").stdout) == []
