"""What the engine says of a job whose pods do not all run."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.engines.kubernetes.client import Namespace
from orchestrator.engines.kubernetes.engine import KubernetesEngine
from orchestrator.engines.kubernetes.hosts import INDEX
from orchestrator.engines.kubernetes.request import parse_pods
from orchestrator.errors import RunError

WANTED = parse_pods("image=pytorch:2,namespace=bench,context=east", nodes=2)


def words_of(monkeypatch: pytest.MonkeyPatch, items: dict[str, Any]) -> str:
    """Return the state of a job; ``items`` are lists by resource, or the error of one."""

    def listed(_: Namespace, path: str) -> Any:
        found = items[path.partition("?")[0]]
        if isinstance(found, RunError):
            raise found
        return found

    monkeypatch.setattr(Namespace, "get", lambda *_: {"spec": {}, "status": {}})
    monkeypatch.setattr(Namespace, "items", listed)
    state = KubernetesEngine().look(WANTED, "orch-1")
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
