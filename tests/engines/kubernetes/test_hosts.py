"""Pods as hosts: their order, their names, what they have, and what stands in the way of using them."""

from __future__ import annotations

import doctest
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator import yamlfile
from orchestrator.engines.kubernetes import hosts, pods
from orchestrator.engines.kubernetes.client import Namespace
from orchestrator.engines.kubernetes.hosts import (
    Pods,
    describe,
    find_gpus,
    inventory_text,
    one_for_each_machine,
    parse_source,
)
from orchestrator.errors import ConfigError
from orchestrator.inventory import open_inventory

PLACE = Namespace("bench", "east")


def pod(name: str, machine: str = "", phase: str = "Running", **labels: str) -> dict[str, Any]:
    container = {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "8", "cpu": "64"}}}
    return {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": machine or name, "containers": [{"name": "log"}, container]},
        "status": {"phase": phase, "podIP": "10.0.0.1"},
    }


def of_job(index: int, suffix: str, phase: str = "Running") -> dict[str, Any]:
    found = pod(f"train-{index}-{suffix}", phase=phase, **{hosts.JOB_LABEL: "train"})
    found["metadata"]["annotations"] = {hosts.INDEX: str(index)}
    return found


def list_hosts(
    monkeypatch: pytest.MonkeyPatch, *found: dict[str, Any], container: str = "main"
) -> list[hosts.PodHost]:
    monkeypatch.setattr(Namespace, "items", lambda *_, **__: list(found))
    return Pods("app=x", PLACE, container).list_hosts()[0]


def test_the_pods_of_a_job_are_named_after_their_index_and_others_after_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = list_hosts(monkeypatch, of_job(10, "ab12c"), of_job(9, "zz9yx"), of_job(0, "q8w7e"))
    assert [(one.name, one.pod) for one in found] == [
        ("train-0", "train-0-q8w7e"),
        ("train-9", "train-9-zz9yx"),
        ("train-10", "train-10-ab12c"),
    ]
    found = list_hosts(monkeypatch, pod("web-10"), pod("web-2"))
    assert [one.name for one in found] == ["web-2", "web-10"]
    assert {one.gpus for one in found} == {8}


CASES = Path(__file__).parent / "pods"


@pytest.mark.parametrize("path", sorted(CASES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_pods_that_a_controller_makes_are_hosts_in_its_order(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, path: Path
) -> None:
    """``pods`` are as the controller writes them; the API returns them in no order of theirs."""
    case: dict[str, Any] = yamlfile.load(path).value
    found = list_hosts(monkeypatch, *case["pods"], container="")
    hosts, said = one_for_each_machine(found)
    got = [f"{host.name} {host.address} {host.gpus}" for host in hosts]
    assert (got, said) == (case["hosts"], case.get("said", []))
    text = inventory_text(Pods("app=x", PLACE), hosts, "")
    (tmp_path / "pods.yaml").write_text(text)
    read = open_inventory(str(tmp_path / "pods.yaml")).hosts
    assert [f"{host.name} {host.address} {host.gpus}" for host in read] == got


@pytest.mark.parametrize(
    ("devices", "count"),
    [
        ("nvidia0 nvidia1 nvidia10 nvidiactl nvidia-uvm", 3),
        ("kfd dri/renderD128 dri/renderD136 dri/card0", 2),
        ("dri/renderD128 dri/card0", 0),
    ],
    ids=["NVIDIA", "AMD", "a display alone"],
)
def test_a_pod_that_requests_no_gpus_is_asked_for_those_that_it_has(
    monkeypatch: pytest.MonkeyPatch, devices: str, count: int
) -> None:
    """The shell of the pod has a file system of its own in place of /dev."""
    if os.geteuid():
        pytest.skip("needs root")
    make = f"mount -t tmpfs none /dev; mkdir /dev/dri; cd /dev; touch {devices}\n"
    argv = ["unshare", "--mount", "sh", "-c"]

    def run(_: Namespace, name: str, container: str, script: str) -> str:
        assert (name, container) == ("b", "main")
        return subprocess.run([*argv, make + script], check=False, stdout=-1, text=True).stdout

    monkeypatch.setattr(Namespace, "run", run)
    bare = pod("b")
    del bare["spec"]["containers"][1]["resources"]
    source = Pods("app=x", PLACE)
    listed = list_hosts(monkeypatch, pod("a"), bare)
    assert [host.gpus for host in find_gpus(source, listed, ())] == [8, count]
    assert [host.gpus for host in find_gpus(source, listed, {"b"})] == [8, 0]


def test_a_pod_that_has_ended_gives_its_place_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = of_job(0, "ccccc")
    gone["metadata"]["deletionTimestamp"] = "2026-11-29T10:00:00Z"
    (only,) = list_hosts(monkeypatch, of_job(0, "aaaaa", "Failed"), of_job(0, "bbbbb"), gone)
    assert only.pod == "train-0-bbbbb"


def test_pods_that_do_not_run_are_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = of_job(1, "aaaaa", "Pending")
    state = {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}}
    waiting["status"]["containerStatuses"] = [{"name": "main", "state": state}]
    words = "train-1-aaaaa is Pending: ImagePullBackOff, Back-off pulling image"
    with pytest.raises(ConfigError, match=words):
        list_hosts(monkeypatch, waiting)
    (only,) = list_hosts(monkeypatch, of_job(0, "aaaaa"), waiting)
    source = Pods("app=x", PLACE, "main")
    assert source.list_hosts({"train-0"}) == ([only], [words])
    with pytest.raises(ConfigError, match=words):  # a bench has it
        source.list_hosts({"train-0", "train-1"})
    with pytest.raises(ConfigError, match="expected pods that run, got none"):
        list_hosts(monkeypatch)
    assert doctest.testmod(pods).failed == 0


def test_two_pods_of_a_machine_are_one_node_and_that_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = list_hosts(monkeypatch, pod("a", "gpu1"), pod("b", "gpu1"), pod("c", "gpu2"))
    kept, said = one_for_each_machine(found)
    assert [one.name for one in kept] == ["a", "c"]
    assert said == ["b is left out: it is on gpu1, as a, and one machine is one node"]
    assert describe(kept) == "a,c, 8 GPUs each"


@pytest.mark.parametrize("based", [False, True])
def test_the_inventory_has_what_a_connection_needs_and_stands_on_the_projects_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, based: bool
) -> None:
    base = tmp_path / "cluster.yaml"
    base.write_text("schema: 1\nhosts: {train-0: {vars: {python: /opt/py}, address: 9.9.9.9}}\n")
    found = list_hosts(monkeypatch, of_job(0, "aaaaa"))
    path = tmp_path / "pods.yaml"
    source = Pods("app=x", PLACE, "main")
    path.write_text(inventory_text(source, found, str(base) if based else ""))
    (host,) = open_inventory(str(path)).hosts
    assert (host.name, host.address, host.gpus, host.transport) == (
        "train-0",
        "10.0.0.1",
        8,
        "kubectl",
    )
    assert host.vars.get("python") == ("/opt/py" if based else None)
    expected = {"pod": "train-0-aaaaa", "pod_namespace": "bench", "pod_container": "main"}
    expected |= {"pod_node": "train-0-aaaaa", "kube_context": "east"}
    assert {name: host.vars[name] for name in expected} == expected


@pytest.mark.parametrize(
    "text",
    ["", "namespace=x", "app", "app=x,;rm", "app=x,tier", "app=x,namspace=y", "app=x,containr=y"],
)
def test_a_source_without_labels_or_with_other_words_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--hosts pods:"):
        parse_source(text)


def test_a_source_names_labels_namespace_context_and_container() -> None:
    text = "app=x,namespace=bench,kueue.x-k8s.io/queue-name=q,context=east,container=main"
    assert parse_source(text) == Pods("app=x,kueue.x-k8s.io/queue-name=q", PLACE, "main")
