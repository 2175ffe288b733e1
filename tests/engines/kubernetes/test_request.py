"""What --kubernetes asks for, as data: the Job, its template, and words that are refused."""

from __future__ import annotations

import doctest
import os
import subprocess
import time
from typing import Any

import pytest

from orchestrator.engines.kubernetes import request
from orchestrator.engines.kubernetes.request import PodsWanted, parse_pods, read_template
from orchestrator.errors import ConfigError

BENCH = "20261124-120000-ab12"
TEMPLATE = {
    "spec": {"containers": [{"name": "log", "image": "log"}, {"name": "gpu", "image": "x"}]}
}


def pod_of(wanted: PodsWanted, template: Any = None) -> dict[str, Any]:
    found: dict[str, Any] = wanted.job(BENCH, template or {})["spec"]["template"]
    return found


def test_a_job_has_a_pod_for_each_node_and_spare_on_machines_of_their_own() -> None:
    assert doctest.testmod(request).failed == 0
    wanted = parse_pods("image=torch:2,gpus=8,cpus=64,memory=1Ti,queue=team", 4, spares=1)
    job = wanted.job(BENCH, {})
    assert (job["spec"]["completions"], job["spec"]["parallelism"]) == (5, 5)
    assert job["metadata"]["labels"][request.QUEUE] == "team" and job["spec"]["suspend"] is True
    spec = pod_of(wanted)["spec"]
    (container,) = spec["containers"]
    limits, requests = {"nvidia.com/gpu": "8"}, {"cpu": "64", "memory": "1Ti"}
    assert container["resources"] == {"limits": limits, "requests": requests}
    (apart,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert [(host.name, host.gpus) for host in wanted.hosts][-1] == ("pod-4", 8)
    assert wanted.on(["a", "b"]).count == 2


def test_a_template_keeps_what_it_says_and_gets_what_a_bench_needs() -> None:
    document = {"kind": "Pod", "metadata": {"name": "x", "labels": {"team": "a"}}, **TEMPLATE}
    template = read_template({"template": document}, "pod.yaml")
    wanted = parse_pods("pod.yaml,container=gpu,gpus=2,gpu=amd.com/gpu", 2)
    pod = pod_of(wanted, template)
    assert pod["metadata"] == {"labels": {"team": "a"}}
    first, second = pod["spec"]["containers"]
    assert first == {"name": "log", "image": "log"}
    assert (
        second["resources"]["limits"] == {"amd.com/gpu": "2"} and second["command"][0] == "/bin/sh"
    )
    assert pod["spec"]["restartPolicy"] == "Never"
    assert "command" not in TEMPLATE["spec"]["containers"][1], "the template is not changed"
    with pytest.raises(ConfigError, match="expected the container other in the template"):
        pod_of(parse_pods("pod.yaml,container=other", 2), template)
    with pytest.raises(ConfigError, match="pod.yaml: expected a pod template with spec"):
        read_template({"spec": {}}, "pod.yaml")


@pytest.mark.parametrize(
    ("text", "nodes", "words"),
    [
        ("gpus=8", 4, "expected either an image or a pod template"),
        ("pod.yaml,image=x", 4, "expected either an image or a pod template"),
        ("image=x,gpu-count=8", 4, "expected OPTION=VALUE,…, got 'gpu-count=8'"),
        ("image=x,gpus", 4, "expected OPTION=VALUE,…, got 'gpus'"),
        ("image=x,gpus=many", 4, "expected a whole number for gpus, got 'many'"),
        ("image=x,image=y", 4, "image is set twice"),
        ("image=x,wait=soon", 4, "--kubernetes wait: expected a time"),
        ("image=x", 0, "expected the number of nodes"),
        ("image=x,nodes=2", 4, "expected pods for the largest run and its spares, 4, got nodes=2"),
    ],
)
def test_words_that_mean_nothing_are_refused(text: str, nodes: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_pods(text, nodes)


def test_a_pod_ends_when_nothing_has_run_in_it_for_a_while() -> None:
    """In a process namespace, as a container has one; with a limit and a pause that are shorter."""
    if os.geteuid():
        pytest.skip("needs root")
    quick = request._SCRIPT.replace(f"-lt {request.IDLE_S}", "-lt 10").replace(
        "sleep 5", "sleep 0.1"
    )
    own = ["unshare", "--pid", "--mount-proc", "--fork", "--kill-child", "sh", "-c"]
    assert subprocess.run([*own, quick], check=False, timeout=60).returncode == 0
    begin = time.monotonic()
    busy = quick.replace("trap", "sleep 3 &\ntrap", 1)
    assert subprocess.run([*own, busy], check=False, timeout=60).returncode == 0
    assert time.monotonic() - begin >= 3, "a process runs"
