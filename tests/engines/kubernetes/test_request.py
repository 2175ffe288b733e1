"""What --kubernetes asks for, as data: the Job, its template, and words that are refused."""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines.kubernetes import request
from orchestrator.engines.kubernetes.engine import KubernetesEngine
from orchestrator.engines.kubernetes.request import (
    PodsWanted,
    lost_fields,
    parse_pods,
    read_template,
)
from orchestrator.errors import ConfigError
from tests.support.judge import LIMIT_S

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
    assert "namespace" not in job["metadata"]  # that of the kubeconfig
    elsewhere = parse_pods("image=torch:2,namespace=team-a", 4)
    shown = KubernetesEngine().describe(elsewhere, BENCH)
    assert json.loads(shown)["metadata"]["namespace"] == "team-a"
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
    template["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": "gpu"}
    first, second = pod_of(parse_pods("pod.yaml", 2), template)["spec"]["containers"]
    assert "command" in second and "command" not in first, "ranks run where kubectl enters"
    with pytest.raises(ConfigError, match="expected the container other in the template"):
        pod_of(parse_pods("pod.yaml,container=other", 2), template)


def test_a_template_is_taken_out_of_what_holds_it() -> None:
    pod = {"spec": {"containers": [{"name": "a", "image": "x"}]}}
    holders = [
        pod,
        {"kind": "PodTemplate", "template": pod},
        {"kind": "Job", "spec": {"template": pod}},
    ]
    for document in holders:
        assert read_template(document, "pod.yaml")["spec"] == pod["spec"]


def test_fields_that_the_server_dropped_are_named_and_those_it_wrote_otherwise_are_not() -> None:
    sent = {"containers": [{"name": "a", "imagePullPolicyy": "Never", "env": [], "tty": False}]}
    kept = {"containers": [{"name": "a", "resources": {}}], "dnsPolicy": "Default"}
    assert lost_fields({"spec": sent}, {"spec": kept}) == ["spec.containers[0].imagePullPolicyy"]
    amounts = {"limits": {"cpu": "0.5"}}
    assert lost_fields(amounts, {"limits": {"cpu": "500m"}}) == []


def test_rdma_and_shared_memory_are_given_with_what_they_need() -> None:
    spec = pod_of(parse_pods("image=torch:2,rdma=rdma/hca:2,shm=16Gi", 2))["spec"]
    (container,) = spec["containers"]
    assert container["resources"]["limits"] == {"rdma/hca": "2"}
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    (volume,), (mount,) = spec["volumes"], container["volumeMounts"]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "16Gi"}
    assert mount == {"name": volume["name"], "mountPath": "/dev/shm"}
    own = {"name": "x", "mountPath": "/dev/shm"}
    near = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}
    allowed = {"runAsUser": 0, "capabilities": {"add": ["SYS_PTRACE"]}}
    container = {"name": "a", "image": "x", "volumeMounts": [own], "securityContext": allowed}
    template = {"spec": {"containers": [container], "affinity": near, "nodeSelector": {"a": "b"}}}
    spec = pod_of(parse_pods("pod.yaml,rdma=rdma/hca:1", 2), template)["spec"]
    assert spec["containers"][0]["securityContext"]["capabilities"]["add"] == [
        "SYS_PTRACE",
        "IPC_LOCK",
    ]
    assert set(spec["affinity"]) == {"podAntiAffinity", "nodeAffinity"}
    assert spec["nodeSelector"] == {"a": "b"} and "volumes" not in spec
    with pytest.raises(ConfigError, match="either shm= or a /dev/shm in the template, got both"):
        pod_of(parse_pods("pod.yaml,shm=1Gi", 2), template)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2]", "pod.yaml: expected an object"),
        ("kind: Job\nspec: {template: {spec: {containers: 1}}}", "containers: expected a list"),
        ("spec: {containers: []}", "pod.yaml: spec.containers: expected a container, got none"),
        ("spec: {containers: {name: a}}", "spec.containers: expected a list of objects, got"),
        ("spec: {containers: [a]}", r"expected a list of objects, got \['a'\]"),
        ("spec: {containers: [{name: 5, image: x}]}", r"containers\[0\].name: expected text, got 5"),
        ("spec: {containers: [{name: a}]}", r"containers\[0\].image: expected text, it is missing"),
        ("spec: {containers: [{name: a, image: x, env: [A=1]}]}", r"\[0\].env: expected a list of objects"),
        ("spec: {containers: [{name: a, image: x, env: }]}", "env: expected a list of objects"),
        ("spec: {containers: [{name: a, image: x, resources: {limits: [8]}}]}", "limits: expected"),
        (
            "spec: {containers: [{name: a, image: x, resources: {limits: {nvidia.com/gpu: many}}}]}",
            "container a: resources.limits: expected a whole number for nvidia.com/gpu, got 'many'",
        ),
        ("spec: {containers: [{name: a, image: x}], affinity: none}", "spec.affinity: expected"),
        ("spec: {containers: [{name: a, image: x, securityContext: {capabilities: {add: ALL}}}]}",
         r"securityContext.capabilities.add: expected a list of texts, got 'ALL'"),
        ("spec: {containers: [}", "pod.yaml"),
        ("kind: MPIJob\nspec: {mpiReplicaSpecs: {}}", "pod.yaml: expected a Pod, or an object with a template .*, got MPIJob"),
        ("kind: List\nitems: []", "got List. write the template of its pods"),
        ("spec: {containers: [{name: a, image: {{ .Values.image }}}]}", "a template with {{ }}: .*pass what helm"),
        ("spec: {containers: [{name: a, image: x, resources: {requests: {nvidia.com/gpu: 8}}}]}",
         "container a of the template: expected limits for GPUs, got requests. .* under resources.limits"),
        ("spec: {containers: [{name: a, image: x}, {name: b, image: x, resources: {limits: {amd.com/gpu: 8}}}]}",
         "container a of the template: expected GPUs, but b has them. .*container=b"),
        ("spec: !!python/object:os.system {}", "pod.yaml"),
    ],
)  # fmt: skip
def test_a_template_with_a_fault_is_refused_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("pod.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        KubernetesEngine().request("pod.yaml,rdma=rdma/hca:1", 2, 0)
    assert re.search(words, str(error.value))


def test_gpus_of_a_template_are_those_of_its_container_and_resource(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    limits = {"resources": {"limits": {"amd.com/gpu": "8"}}}
    containers = [{"name": "a", "image": "x"}, {"name": "b", "image": "x", **limits}]
    Path("pod.yaml").write_text(json.dumps({"spec": {"containers": containers}}))

    def gpus(text: str) -> set[int | None]:
        return {host.gpus for host in KubernetesEngine().request(text, 2, 0).hosts}

    assert gpus("pod.yaml,container=b") == {8}
    assert gpus("pod.yaml,container=a") == {0}
    assert gpus("pod.yaml,container=b,gpus=4,gpu=amd.com/gpu") == {4}
    with pytest.raises(ConfigError, match="expected GPUs of one resource, got two"):
        gpus("pod.yaml,container=b,gpus=4")


def test_a_template_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="none.yaml"):
        KubernetesEngine().request("none.yaml", 2, 0)


@pytest.mark.parametrize(
    ("text", "nodes", "words"),
    [
        ("image=x,rdma=hca:1", 4, "expected a resource and a count for rdma"),
        ("image=x,rdma=rdma/hca", 4, "expected a resource and a count for rdma"),
        ("gpus=8", 4, "expected either an image or a pod template"),
        ("pod.yaml,image=x", 4, "expected either an image or a pod template"),
        ("image=x,gpu-count=8", 4, "expected a known option, got 'gpu-count'"),
        ("image=x,gpu-count", 4, "expected OPTION=VALUE,…, got 'gpu-count'"),
        ("image=x,gpus", 4, "expected a value for gpus, got none"),
        ("image=", 4, "expected a value for image, got none"),
        ("image=x,cpus=0", 4, "expected a whole number, at least 1, for cpus, got '0'"),
        ("image=x,shm=lots", 4, "expected a size for shm, such as 16Gi, got 'lots'"),
        ("image=x,memory=1GB", 4, "expected a size for memory, such as 16Gi, got '1GB'"),
        ("image=x,gpus=many", 4, "expected a whole number for gpus, got 'many'"),
        ("image=x,image=y", 4, "image is set twice"),
        ("image=x,gpu=8", 4, "expected the name of a resource, .*got '8'. did you mean gpus=8"),
        ("image=x y", 4, "expected an image for image, got 'x y'"),
        ("image=x,namespace=My_Team", 4, "for namespace, got 'My_Team'"),
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
    assert subprocess.run([*own, quick], check=False, timeout=LIMIT_S).returncode == 0
    begin = time.monotonic()
    busy = quick.replace("trap", "sleep 3 &\ntrap", 1)
    assert subprocess.run([*own, busy], check=False, timeout=LIMIT_S).returncode == 0
    assert time.monotonic() - begin >= 3, "a process runs"
    assert "$$" not in quick, "of which Kubernetes makes one $"
    beside = "unshare --mount sleep infinity &\n"
    assert subprocess.run([*own, beside + quick], check=False, timeout=LIMIT_S).returncode == 0


def test_a_pod_has_half_a_minute_to_end_whatever_its_template_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    engine = KubernetesEngine()
    for given_s, seconds, said in ((20, 20, False), (300, 30, True)):
        spec = {"containers": [{"name": "a", "image": "x"}], request.GRACE: given_s}
        Path("pod.yaml").write_text(json.dumps({"spec": spec}))
        wanted = engine.request("pod.yaml", 2, 0)
        assert f'"{request.GRACE}": {seconds},' in engine.describe(wanted, BENCH)
        assert ("of the template, 300, becomes 30" in engine.caution(wanted)) is said
    assert pod_of(parse_pods("image=x", 2))["spec"][request.GRACE] == 5
    assert engine.caution(parse_pods("image=x", 2)) == ""
