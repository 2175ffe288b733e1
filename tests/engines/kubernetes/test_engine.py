"""What the engine says of a job whose pods do not all run."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.engines.kubernetes.client import Namespace
from orchestrator.engines.kubernetes.engine import KubernetesEngine
from orchestrator.engines.kubernetes.hosts import INDEX
from orchestrator.engines.kubernetes.request import parse_pods
from orchestrator.engines.protocol import JobState
from orchestrator.errors import RunError

WANTED = parse_pods("image=pytorch:2,namespace=bench,context=east", nodes=2)


def state_of(
    monkeypatch: pytest.MonkeyPatch, items: dict[str, Any], **meta: str
) -> JobState | None:
    """Return the state of a job; ``items`` are lists by resource, or the error of one."""

    def listed(_: Namespace, path: str) -> Any:
        found = items[path.partition("?")[0]]
        if isinstance(found, RunError):
            raise found
        return found

    monkeypatch.setattr(Namespace, "get", lambda *_: {"metadata": meta, "spec": {}, "status": {}})
    monkeypatch.setattr(Namespace, "items", listed)
    return KubernetesEngine().look(WANTED, "orch-1")


def words_of(monkeypatch: pytest.MonkeyPatch, items: dict[str, Any]) -> str:
    """Return what a job waits for."""
    state = state_of(monkeypatch, items)
    assert state is not None and not state.is_ready and not state.is_over
    return state.words


def test_a_job_that_may_make_no_pod_is_told_with_its_last_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    event = {"reason": "FailedCreate", "message": "exceeded quota: small"}
    words = words_of(monkeypatch, {"pods": [], "events": [event]})
    assert words.endswith("without index 0, 1; FailedCreate, exceeded quota: small")
    refused = RunError("(Forbidden)", kind="node_unfit", where="Kubernetes")
    assert words_of(monkeypatch, {"pods": [], "events": refused}).endswith("without index 0, 1")


def test_pods_without_an_index_are_told_with_the_version_that_they_need(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pod = {"metadata": {"name": "orch-1-x7k2p"}, "status": {"phase": "Running"}}
    words = words_of(monkeypatch, {"pods": [pod], "events": []})
    assert "0 of 2 pods run" in words
    assert "orch-1-x7k2p has no index, which needs Kubernetes 1.22 or newer" in words
    pod["metadata"] = {"name": "orch-1-0-x7k2p", "annotations": {INDEX: "0"}}  # type: ignore[dict-item]
    assert "1 of 2 pods run" in words_of(monkeypatch, {"pods": [pod], "events": []})


def a_pod(index: int, phase: str, code: int | None = None) -> dict[str, Any]:
    """Return a pod with a second container, which runs; the first has ended if ``code`` is given."""
    ended = {"terminated": {"exitCode": code, "reason": "Error", "message": "a\nno license\n"}}
    main = {"running": {}} if code is None else ended
    states = [{"name": "aside", "state": {"running": {}}}, {"name": "main", "state": main}]
    return {
        "metadata": {"name": f"orch-1-{index}-x7k2p", "annotations": {INDEX: str(index)}},
        "spec": {"containers": [{"name": "main"}, {"name": "aside"}]},
        "status": {"phase": phase, "containerStatuses": states},
    }


def test_a_job_is_over_when_a_command_has_ended_for_which_no_other_one_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for phase in ("Running", "Succeeded"):
        state = state_of(monkeypatch, {"pods": [a_pod(0, "Running"), a_pod(1, phase, 0)]})
        assert state and state.is_over, state
        words = "over; the command of orch-1-1-x7k2p has ended, main exited with 0: no license"
        assert state.words == words
    both = [a_pod(0, "Running"), a_pod(1, "Running")]
    assert state_of(monkeypatch, {"pods": both}) == JobState("RUNNING", is_ready=True)


def test_a_job_whose_command_fails_is_over_when_it_fails_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failed = [a_pod(0, "Failed", 3), a_pod(1, "Failed", 3)]
    assert "main exited with 3" in words_of(monkeypatch, {"pods": failed})
    state = state_of(monkeypatch, {"pods": [*failed, a_pod(1, "Failed", 4)]})
    assert state and state.is_over
    words = "the command of index 1 has ended 2 times, main exited with 4: no license"
    assert state.words == f"over; {words}; it must keep running"
    evicted = a_pod(1, "Failed", 137)
    evicted["status"]["reason"] = "Evicted"
    assert words_of(monkeypatch, {"pods": [*failed, evicted]})


def test_a_job_that_is_being_deleted_says_how_long_its_pods_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pod = a_pod(0, "Running")
    pod["metadata"] |= {"deletionTimestamp": "now", "deletionGracePeriodSeconds": 300}
    state = state_of(monkeypatch, {"pods": [pod]}, deletionTimestamp="now")
    words = "orch-1-0-x7k2p is being deleted: grace period 300 s"
    assert state == JobState(f"being deleted; {words}", is_over=True)
    left = KubernetesEngine().find_rest(WANTED, "orch-1")
    assert left == f"there: {words}"


def test_a_job_gives_way_to_an_older_one_with_a_part_of_its_machines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def pod(job: str, node: str = "", **meta: str) -> dict[str, Any]:
        spec = {"nodeName": node} if node else {}
        return {"metadata": {"labels": {"job-name": job}, **meta}, "spec": spec}

    def rival(*pods: dict[str, Any]) -> str:
        monkeypatch.setattr(Namespace, "get", lambda *_: {"spec": {"completions": 2}})
        monkeypatch.setattr(Namespace, "items", lambda *_: list(pods))
        return KubernetesEngine().rival(WANTED, "orch-5")

    assert rival(pod("orch-3", "a"), pod("orch-3"), pod("orch-5", "b")) == "orch-3"
    assert rival(pod("orch-5", "a"), pod("orch-7", "b")) == ""
    assert rival(pod("orch-3", "a"), pod("orch-3", "b")) == ""
    assert rival(pod("orch-3"), pod("orch-3")) == ""
    assert rival(pod("orch-3", "a", deletionTimestamp="now"), pod("orch-3")) == ""
    assert rival(pod("mine", "a"), pod("alien", "b")) == ""
