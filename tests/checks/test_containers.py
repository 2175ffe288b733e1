"""Checks of the container in which runs start: on nodes that have what a run needs there, and on
others.
"""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.checks.containers import container_checks
from orchestrator.checks.cross_node import unlike
from orchestrator.checks.differences import sentences
from orchestrator.checks.facts import node_facts
from orchestrator.checks.host import host_checks
from orchestrator.inventory import Host
from orchestrator.plan.folders import open_framework
from tests.support.node_facts import healthy, known

HOST = Host("gpu01", "10.11.0.2", gpus=2, vars={"data_dir": "/data"})
DIGEST = "sha256:" + "ab" * 32


def inside(**changes: Any) -> dict[str, Any]:
    container = {
        "engine": "docker", "image": "pt:1", "what": "a container of docker, image pt:1", "python": "3.10.12", "workdir": True,
        "devices": {"nvidia": 8, "infiniband": 2, "amd": 0}, "nccl": "2.21.5", "digest": DIGEST,
    }  # fmt: skip
    return {key: value for key, value in (container | changes).items() if value is not None}


def judged(left: Any = (), **changes: Any) -> list[tuple[str, str, str]]:
    facts = healthy() | {"container": inside(**changes), "containers_left": left}
    return [
        (check.name, check.verdict, check.found)
        for check in container_checks(HOST, node_facts(facts))
    ]


def test_a_host_without_a_container_has_no_such_check() -> None:
    assert container_checks(HOST, node_facts(healthy())) == []


def test_a_container_that_has_all_is_named_with_its_image() -> None:
    found = "a container of docker, image pt:1, sha256:abababababab, Python 3.10.12, NCCL 2.21.5"
    assert judged() == [("container", "ok", found)]


NO_FOLDER = (
    'unable to start container process: chdir to cwd ("/w") set in config.json failed: no such file or directory: unknown',
    "crun: cannot chdir to `/w`: No such file or directory",
    'workdir "/w" does not exist on container trainer',
)


@pytest.mark.parametrize(
    ("changes", "verdict", "found"),
    [
        ({"error": "No such image: pt:1"}, "failed", "No such image: pt:1"),
        ({"same_user": False, "owner": 0}, "failed", "files made inside belong to user 0"),
        ({"workdir": False}, "failed", "no writable work directory inside"),
        *(
            ({"error": f"OCI runtime exec failed: {words}"}, "failed", "no /w inside")
            for words in NO_FOLDER
        ),
        ({"devices": {"nvidia": 0, "infiniband": 2}}, "failed", "0 GPUs inside"),
        ({"devices": {"nvidia": 8, "infiniband": 0}}, "warning", "no InfiniBand devices inside"),
        ({"devices": "odd"}, "failed", "0 GPUs inside"),
    ],
)
def test_what_a_run_would_miss_inside_is_said_before(
    changes: dict[str, Any], verdict: str, found: str
) -> None:
    assert judged(**changes) == [("container", verdict, found)]


def test_containers_of_earlier_runs_are_a_fault_if_they_run() -> None:
    assert judged([["orch-r1-0", "exited"]])[1] == ("leftovers", "warning", "orch-r1-0 (exited)")
    for state in ("running", "Up 2 minutes ago", "paused"):
        assert judged([["orch-r1-0", "exited"], ["orch-r2-0", state]])[1][:2] == (
            "leftovers",
            "failed",
        )


def test_a_container_that_does_not_start_is_one_fault_and_not_two() -> None:
    framework = open_framework("simulated").framework
    facts = healthy() | {"container": inside(error="no"), "framework": {"error": "not asked"}}
    assert [
        check.name
        for check in host_checks(HOST, node_facts(facts), framework)
        if check.verdict == "failed"
    ] == ["container"]
    facts = healthy() | {"container": inside(), "framework": {"error": "No module named 'torch'"}}
    (fault,) = [
        check
        for check in host_checks(HOST, node_facts(facts), framework)
        if check.verdict == "failed"
    ]
    assert fault.name == "simulated" and "container.python" in fault.hint


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (
            "Error: copying system image: potentially insufficient UIDs or GIDs available in user namespace",
            "add-subuids",
        ),
        (
            'Error: cannot find UID/GID for user u: no subuid ranges found for user "u" in /etc/subuid',
            "add-subuids",
        ),
        (
            "Error: running `/usr/bin/newuidmap 81 0 1000 1`: write to uid_map failed: Invalid argument",
            "add-subuids",
        ),
        (
            "Error: short-name resolution: manifest unknown",
            "get the image onto the node (podman pull)",
        ),
    ],
)
def test_what_to_do_follows_from_why_a_container_does_not_start(error: str, cure: str) -> None:
    framework = open_framework("simulated").framework
    facts = healthy() | {
        "container": inside(error=error, engine="podman"),
        "framework": {"error": "not asked"},
    }
    (fault,) = [
        check
        for check in host_checks(HOST, node_facts(facts), framework)
        if check.verdict == "failed"
    ]
    assert fault.found == error and cure in fault.hint


def test_nodes_with_different_images_are_refused() -> None:
    other = "sha256:" + "cd" * 32
    facts = {
        "n1": {"container": inside()},
        "n2": {"container": inside()},
        "n3": {"container": inside(digest=other)},
    }
    (check,) = unlike(known(facts))
    assert (check.host, check.name, check.verdict, check.found) == (
        "n3",
        "container",
        "failed",
        "image cdcdcdcdcdcd",
    )
    assert (
        unlike(
            known(
                {"n1": {"container": inside()}, "n2": {"container": inside(digest=None)}, "n3": {}}
            )
        )
        == []
    )
    assert "container.digest" in sentences(facts)[0]
