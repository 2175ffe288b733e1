"""Commands and benches in pods, by the real kubectl and a stand-in for a cluster, judged from outside:
in pods that are there, and in jobs that a bench asks for, whatever ends them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator import lab as labs
from orchestrator.engines.kubernetes import client
from orchestrator.engines.kubernetes.hosts import INDEX
from orchestrator.lab import cgroups, namespaces
from orchestrator.lab import pods as podlab
from orchestrator.procs import cmdline, descendants, live_pid, snapshot
from orchestrator.record.journal import Event
from tests.e2e.rig import LONG, QUICK, Controller, running
from tests.support import faults, hashing, judge, node_groups
from tests.support.features import needs
from tests.support.pods import no_pods

pytestmark = [
    pytest.mark.skipif(bool(no_pods()), reason=no_pods()),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    folder = tmp_path_factory.mktemp("pods")
    lab = labs.up(folder / "lab", nodes=2, gpus_per_node=0, pods=True, say=lambda _: None)
    (folder / "project").mkdir()
    made = Controller(lab, folder / "project")
    yield made
    made.let_go()
    labs.down(lab.directory)
    assert not lab.directory.exists()


SUITE = """\
title: hashing
stages:
  - {name: checks, checks: all, framework: hashing, run: 5s}
  - {name: hashing, bench: hashing, choices: {repeats: 3, expect: "rate >= 1"}, run: 9s, needs: [checks]}
"""


@needs("audit")
def test_an_audit_tells_what_separates_a_pod_from_other_tenants(controller: Controller) -> None:
    def found(context: str) -> dict[str, tuple[str, str]]:
        hosts = f"pods:app=lab,context={context}"
        only = "pod_rights,pod_admission,pod_network,pod_token"
        done = controller.orch(
            "check", "-f", "simulated", "--only", only, "--hosts", hosts, "--json"
        )
        assert done.code == 0, done
        checks = done.json["checks"]
        assert sorted(check["host"] for check in checks) == ["node1"] * 4 + ["node2"] * 4
        return {check["name"]: (check["verdict"], check["found"]) for check in checks}

    of_admin = found("lab")
    assert of_admin["pod_rights"] == ("warning", "may list secrets in all namespaces")
    assert of_admin["pod_network"] == ("warning", "no NetworkPolicy")
    assert of_admin["pod_token"][0] == of_admin["pod_admission"][0] == "ok"
    level = "pod-security.kubernetes.io/enforce"
    labelled = {"metadata": {"name": "default", "labels": {level: "restricted"}}}
    policies = "/apis/networking.k8s.io/v1/namespaces/default/networkpolicies"
    policy = {"metadata": {"name": "own"}, "spec": {"podSelector": {}}}
    for verb, path, body in (
        ("replace", "/api/v1/namespaces/default", labelled),
        ("create", policies, policy),
    ):
        file = controller.project / "object.json"
        file.write_text(json.dumps(body))
        kubectl(controller, verb, "--raw", path, "-f", str(file))
    of_tenant = found("tenant")
    assert {verdict for verdict, _ in of_tenant.values()} == {"ok"}
    assert of_tenant["pod_rights"][1] == "none in other namespaces"
    assert of_tenant["pod_admission"][1] == f"{level}=restricted"
    assert of_tenant["pod_network"][1] == "own"


def test_every_command_with_pods_that_are_there(controller: Controller) -> None:
    hashing.write(controller.project)
    (controller.project / "suites").mkdir()
    (controller.project / "suites" / "small.yaml").write_text(SUITE)
    hosts = ("--hosts", "pods:app=lab")
    checked = controller.orch("check", "-f", "simulated", *hosts)
    assert checked.code == 0 and "pods: node[1-2], no GPU each" in checked.err, checked
    assert "UseDNS" not in checked.out + checked.err

    process = starting(controller)
    follower = controller.start("attach")
    pod = f"orch-{controller.bench.name}-1"
    stacks = controller.orch("stacks")
    assert stacks.code == 0 and f"rank 1  {pod}  pid" in stacks.out, stacks
    logs = controller.orch("logs", "--rank", "1")
    assert logs.out.startswith(f"{pod} rank-1.out: orch rank=1"), logs
    cancelled = controller.orch("cancel", controller.bench.name)
    assert cancelled.code == 0, cancelled
    for ended in (process, follower):
        done = controller.end(ended, 60)
        assert done.code in (1, 143), done
    assert_nothing_is_left(controller)

    accepted = controller.orch("accept", "small", *hosts, "--json", timeout_s=200)
    assert accepted.code == 0, accepted
    assert [node["host"] for node in accepted.json["nodes"]] == ["node1", "node2"]
    done = controller.orch("bench", *QUICK, "--nodes", "2", *hosts)
    assert done.code == 0, done
    controller.assert_all_bytes_are_home("node1", "node2")
    for words, expected in (
        (("collect",), "already complete"),
        (("verify", accepted.json["archive"]), "node2"),
        (("history",), "2n1g"),
        (("site", "pages"), ""),
        (("undeploy", *hosts, "--force"), "node2"),
    ):
        said = controller.orch(*words)
        assert said.code == 0 and expected in said.out, said
    assert (controller.project / "pages" / "index.html").exists()
    judge.wait_until_clean(controller.lab, 70)
    secrets = (controller.lab.pods_folder / "tokens.json").read_text().split('"')
    for path in controller.project.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(len(word) > 20 and word.encode() in data for word in secrets), path


def test_a_check_of_a_pod_says_what_its_template_lacks(controller: Controller) -> None:
    node = controller.lab.node("node2")
    inside = ["nsenter", f"--mount=/proc/{node.pid}/ns/mnt", "--"]
    small = ["mount", "-t", "tmpfs", "-o", "size=64m", "none", "/dev/shm"]
    subprocess.run([*inside, *small], check=True)
    try:
        words = ("check", "--only", "shm", "--hosts", "pods:app=lab")
        done = controller.orch(*words, timeout_s=120)
    finally:
        subprocess.run([*inside, "umount", "/dev/shm"], check=True)
    assert "/dev/shm of 64 MiB" in done.out, done
    assert "volumes: [{name: shm, emptyDir: {medium: Memory}}]" in " ".join(done.out.split()), done


def test_a_pod_whose_machine_is_gone_is_a_lost_node_and_another_bench_runs_later(
    controller: Controller,
) -> None:
    process = running(controller, "--hosts", "pods:app=lab", nodes=2)
    faults.crash(controller.lab, "node2")
    done = controller.end(process, 60)
    assert done.code == 3 and judge.names_lost_node(
        "node2", "pod node2 in namespace default was deleted", done.err
    ), done
    judge.wait_until_clean(controller.lab, 70)
    faults.boot(controller.lab, "node2")
    again = controller.orch("bench", *QUICK, "--nodes", "2", "--hosts", "pods:app=lab")
    assert again.code == 0, again


IMAGE = ("--kubernetes", "image=lab,cpus=1")
"""A pod of this takes all of a machine."""
JOBS = "/apis/batch/v1/namespaces/default/jobs"


def kubectl(controller: Controller, *words: str) -> str:
    program = [client.program(), *words]
    done = controller.end(controller.start(program=program), 60)
    assert done.code == 0, done
    return done.out


def pods(controller: Controller) -> dict[str, dict[str, Any]]:
    """Return the pods of jobs by index."""
    listed = kubectl(controller, "get", "--raw", "/api/v1/namespaces/default/pods")
    found = json.loads(listed)["items"]
    return {
        pod["metadata"]["annotations"][INDEX]: pod
        for pod in found
        if INDEX in pod["metadata"].get("annotations", {})
    }


def jobs(controller: Controller) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(kubectl(controller, "get", "--raw", JOBS))["items"]
    return found


def assert_nothing_is_left(controller: Controller) -> None:
    """No pod, no job, no record of one, and no process on any node."""
    assert pods(controller) == {}
    assert jobs(controller) == []
    assert not list(controller.project.glob(".orch/jobs/*"))
    judge.wait_until_clean(controller.lab, 5)


def submit(controller: Controller, name: str, **container: Any) -> None:
    """Create a job of one pod, without orch."""
    main = {"name": "main", "image": "lab", **container}
    template = {"spec": {"containers": [main], "terminationGracePeriodSeconds": 600}}
    spec = {"completions": 1, "backoffLimit": 0, "template": template}
    path = controller.project / f"{name}.json"
    path.write_text(json.dumps({"metadata": {"name": name}, "spec": spec}))
    kubectl(controller, "create", "--raw", JOBS, "-f", str(path))


FAILED = ("--subresource=status", "--type=merge", "-p", '{"status": {"phase": "Failed"}}')
RUNS = ("1/1 Running", "Running 0/1")
"""What kubectl shows of the pod and of the job."""


def wait_for_rows(controller: Controller, name: str, pod: str, job: str) -> str:
    """Wait until kubectl shows these cells of a job and of its pod, and return the pod's name."""

    def rows(kind: str) -> list[list[str]]:
        lines = kubectl(controller, "get", kind).splitlines()
        return [line.split() for line in lines if line.startswith(name)]

    def cells() -> list[str]:
        return [" ".join(row[1:3]) for row in (*rows("pods"), *rows("jobs"))]

    judge.wait_for(lambda: cells() == [pod, job], 60, f"{name} is not {pod} and {job}")
    return rows("pods")[0][0]


def end(controller: Controller, *pods: str) -> None:
    """Kill pods that are being deleted, and wait until all jobs are gone."""
    for pod in pods:
        kubectl(controller, "patch", "pod", pod, *FAILED)
    judge.wait_for(lambda: jobs(controller) == [], 60, "a job stays")


def test_kubectl_shows_how_pods_and_jobs_are(controller: Controller) -> None:
    wait = ["sh", "-c", "until [ -e go ]; do sleep 0.1; done"]
    submit(controller, "whole", command=wait)
    pod = wait_for_rows(controller, "whole", *RUNS)
    kubectl(controller, "exec", pod, "--", "touch", "go")
    wait_for_rows(controller, "whole", "0/1 Completed", "Complete 1/1")
    submit(controller, "broken", command=["false"])
    wait_for_rows(controller, "broken", "0/1 Error", "Failed 0/1")
    # The first process of a process namespace has no default action for SIGTERM.
    submit(controller, "slow", command=["sleep", "600"])
    pod = wait_for_rows(controller, "slow", *RUNS)
    for name in ("whole", "broken", "slow"):
        kubectl(controller, "delete", "--raw", f"{JOBS}/{name}")
    wait_for_rows(controller, "slow", "1/1 Terminating", "Terminating 0/1")
    end(controller, pod)
    assert_nothing_is_left(controller)


@pytest.mark.skipif(bool(node_groups.obstacle("cpu")), reason=node_groups.obstacle("cpu"))
def test_a_pod_has_the_cpus_of_its_limit_and_no_more(controller: Controller) -> None:
    half = {"limits": {"cpu": "500m"}}
    submit(controller, "half", command=["sleep", "600"], resources=half)
    pod = wait_for_rows(controller, "half", *RUNS)
    parent, is_unified = cgroups.parent_group("cpu")
    top = cgroups.hierarchy_of(parent / "of-a-pod")
    names = ["cpu.max"] if is_unified else ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
    shown = kubectl(controller, "exec", pod, "--", "cat", *(f"{top}/{name}" for name in names))
    assert shown.split() == ["50000", "100000"]
    members = f"grep -x 1 {top}/cgroup.procs && grep -x $$ {top}/cgroup.procs"
    kubectl(controller, "exec", pod, "--", "sh", "-c", members)
    checked = controller.orch("check", "--only", "limits", "--hosts", "pods:job-name=half")
    assert "cpus 0.5" in checked.out, checked
    # As for a kubelet, a limit below what the kernel takes is the least that it takes.
    submit(controller, "least", command=["sleep", "600"], resources={"limits": {"cpu": "1m"}})
    small = wait_for_rows(controller, "least", *RUNS)
    group = parent / cgroups.group_name(controller.lab, small)
    assert (group / names[0]).read_text().split()[0] == "1000"
    for name in ("half", "least"):
        kubectl(controller, "delete", "--raw", f"{JOBS}/{name}")
    end(controller, pod, small)
    assert not list(parent.glob(cgroups.group_name(controller.lab, "*")))
    assert_nothing_is_left(controller)


def starting(controller: Controller, *words: str, nodes: int = 2) -> subprocess.Popen[str]:
    """Start a bench that lasts in a job of its own, and return once its ranks do steps."""
    known = set(controller.project.glob("runs/*/events.jsonl"))
    process = controller.start("bench", *LONG, "--nodes", str(nodes), "--gpus", "1", *IMAGE, *words)
    judge.wait_for(
        lambda: set(controller.project.glob("runs/*/events.jsonl")) > known, 60, "no bench begins"
    )
    controller.wait_for_starts(1, within_s=60)
    return process


def test_a_bench_in_a_job_of_its_own_leaves_nothing_and_shows_no_secret_of_its_template(
    controller: Controller, tmp_path: Path
) -> None:
    secret = "hunter2-and-more"
    path = tmp_path / "pod.yaml"
    container = {"name": "main", "image": "lab", "env": [{"name": "LICENSE", "value": secret}]}
    path.write_text(json.dumps({"spec": {"containers": [container]}}))
    words = ("bench", *QUICK, "--nodes", "1,2", "--kubernetes", f"{path},cpus=1")
    dry = controller.orch(*words, "--dry-run")
    assert dry.code == 0 and '"name": "LICENSE"' in dry.out and secret not in dry.out + dry.err
    done = controller.orch(*words, timeout_s=120)
    assert done.code == 0 and secret not in done.out + done.err, done
    job = f"orch-{controller.bench.name}"
    assert f"kubernetes: job {job} is deleted, and none of its pods is left" in done.err
    assert f"started on {job}-[0-1]" in done.err
    for written in controller.project.rglob("*"):
        assert not written.is_file() or secret.encode() not in written.read_bytes(), written
    assert_nothing_is_left(controller)


def test_pods_that_cannot_be_placed_are_named_with_the_reason_and_let_go(
    controller: Controller,
) -> None:
    words = ("bench", *QUICK, "--nodes", "2", "--kubernetes")
    done = controller.orch(*words, "image=lab,cpus=9,wait=1s", timeout_s=60)
    assert done.code == 1, done
    assert "0 of 2 pods run, without index 0, 1;" in done.err, done
    assert "0/2 nodes are available: 2 Insufficient cpu" in done.err
    assert "has not all of its hosts within 1s; it is being ended" in done.err
    assert_nothing_is_left(controller)
    done = controller.orch(*words, "image=no-such,wait=1s", timeout_s=60)
    assert done.code == 1 and "ImagePullBackOff, Back-off pulling" in done.err, done
    done = controller.orch(*words, "image=lab,queue=full,wait=1s", timeout_s=60)
    assert done.code == 1 and "the queue full has not admitted it" in done.err, done
    done = controller.orch(*words, "image=lab,context=viewer", timeout_s=60)
    assert done.code == 2 and "expected the right to create jobs" in done.err, done
    assert "{apiGroups: [batch], resources: [jobs], verbs: [create, get, delete]}" in done.err
    words = ("bench", *QUICK, "--nodes", "2", "--hosts")
    done = controller.orch(*words, "pods:app=lab,context=viewer", timeout_s=60)
    assert done.code and "expected the right to create pods/exec" in done.err, done
    done = controller.orch(*words, "pods:app=lab,context=stranger", timeout_s=60)
    assert done.code and "resources: [pods, events], verbs: [get, list]" in done.err, done
    assert_nothing_is_left(controller)


def test_of_two_benches_with_half_of_their_pods_each_the_younger_gives_way(
    controller: Controller,
) -> None:
    whole = {"requests": {"cpu": "1"}}
    for name in ("one", "other"):
        submit(controller, name, command=["sleep", "600"], resources=whole)
    held = [wait_for_rows(controller, name, *RUNS) for name in ("one", "other")]
    words = ("bench", *QUICK, "--nodes", "2", *IMAGE)
    rivals = [controller.start(*words) for _ in range(2)]
    judge.wait_for(lambda: len(jobs(controller)) == 4, 60, "they do not wait")
    for name, pod in zip(("one", "other"), held, strict=True):
        kubectl(controller, "delete", "--raw", f"{JOBS}/{name}")
        kubectl(controller, "patch", "pod", pod, *FAILED)
    done = [controller.end(process, 200) for process in rivals]
    assert [one.code for one in done] == [0, 0], done
    older, younger = sorted(done, key=lambda one: "gives way to" in one.err)
    assert "gives way to" not in older.err and "waits for hosts, too" in younger.err, done
    assert younger.err.count("is deleted, and none of its pods is left") == 2, younger
    assert_nothing_is_left(controller)


def test_a_template_whose_command_ends_is_told_with_its_last_line(
    controller: Controller, tmp_path: Path
) -> None:
    path = tmp_path / "pod.yaml"
    command = ["sh", "-c", "echo no such license >&2; exit 3"]
    container = {"name": "main", "image": "lab", "command": command}
    path.write_text(json.dumps({"spec": {"containers": [container]}}))
    done = controller.orch(
        "bench", *QUICK, "--nodes", "1", "--kubernetes", f"{path},wait=1h", timeout_s=120
    )
    assert done.code == 1, done
    words = "the command of index 0 has ended 2 times, main exited with 3: no such license"
    assert f"{words}; it must keep running" in done.err, done
    assert_nothing_is_left(controller)


def test_benches_whose_pods_wait_can_be_given_up(controller: Controller) -> None:
    words = ("bench", *QUICK, "--nodes", "2", "--kubernetes", "image=lab,cpus=9")
    benches, processes = list[str](), list[subprocess.Popen[str]]()
    for _ in range(3):
        processes.append(controller.start(*words))
        judge.wait_for(lambda: len(jobs(controller)) == len(processes), 60, "no pods wait")
        found = {path.stem for path in controller.project.glob(".orch/jobs/[0-9]*")}
        benches += found - set(benches)
    interrupted, cancelled, killed = processes
    interrupted.send_signal(signal.SIGINT)
    killed.kill()
    assert controller.end(killed, 60).code == -9
    listed = controller.orch("status")
    assert f"has no controller; to end it: orch cancel {benches[2]}" in listed.err, listed
    for bench in benches[1:]:
        done = controller.orch("cancel", bench, timeout_s=60)
        assert done.code == 0, done
    assert controller.end(interrupted, 60).code == 130
    assert controller.end(cancelled, 60).code == 143
    assert_nothing_is_left(controller)


def test_a_cancelled_bench_without_a_controller_has_its_logs_home_before_its_pods_go(
    controller: Controller,
) -> None:
    process = starting(controller)
    process.kill()
    controller.end(process, 60)
    done = controller.orch("cancel", controller.bench.name, timeout_s=90)
    assert done.code == 0 and "no orch processes left on" in done.out, done
    (run,) = controller.runs
    for name in ("rank-0.out", "rank-1.out"):
        (log,) = run.glob(f"logs/*/{name}")
        assert b"orch step=" in log.read_bytes() or name != "rank-0.out"
    assert len(list(run.glob("logs/*/exit.json"))) == 2
    assert_nothing_is_left(controller)
    again = controller.orch("cancel", controller.bench.name, timeout_s=90)
    assert again.code == 0 and "no orch processes left on" in again.out, again


def test_a_bench_whose_kubectls_and_whose_controller_are_killed_goes_on_in_its_pods(
    controller: Controller,
) -> None:
    process = starting(controller)
    own = descendants([process.pid], snapshot())
    killed = [pid for pid in own if b"kubectl" in cmdline(pid)]
    assert killed
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    bench = controller.bench.name
    names = [f"orch-{bench}-{index}" for index in range(2)]

    def reattached() -> list[str]:
        return sorted(e["host"] for e in controller.events() if e["event"] == "reattached")

    judge.wait_for(
        lambda: reattached() == names or process.poll() is not None, 60, "they are not reattached"
    )
    if process.poll() is not None:
        done = controller.end(process, 60)
        assert "no sign of life for" in done.err, done
        assert_nothing_is_left(controller)
        pytest.skip("the machine is too busy: silence was noticed before the connection was back")
    process.kill()
    controller.end(process, 60)
    known = {index: pod["metadata"]["name"] for index, pod in pods(controller).items()}
    again = controller.start("resume", bench)
    judge.wait_for(
        lambda: any(event["event"] == "taken_over" for event in controller.events()),
        60,
        "it is not taken over",
    )
    assert known == {index: pod["metadata"]["name"] for index, pod in pods(controller).items()}
    again.send_signal(signal.SIGINT)
    done = controller.end(again, 60)
    assert done.code == 130, done
    assert_nothing_is_left(controller)


@pytest.mark.parametrize("how", ["deleted", "evicted", "out of memory"])
def test_a_pod_that_is_taken_away_is_a_lost_node_with_the_reason(
    controller: Controller, how: str
) -> None:
    process = starting(controller)
    pod = pods(controller)["1"]["metadata"]["name"]
    path = f"/api/v1/namespaces/default/pods/{pod}"
    body = controller.project / "body.json"
    if how == "deleted":
        kubectl(controller, "delete", "--raw", path)
        words = "Killing, Stopping container main"
    elif how == "evicted":
        body.write_text("{}")
        kubectl(controller, "create", "--raw", f"{path}/eviction", "-f", str(body))
        words = "Eviction API: evicting"
    else:
        status = {"phase": "Failed", "reason": "Evicted", "message": "low on resource: memory"}
        patch = json.dumps({"status": status})
        kubectl(
            controller, "patch", "pod", pod, "--subresource=status", "--type=merge", "-p", patch
        )
        words = "is Failed: Evicted, low on resource: memory"
    done = controller.end(process, 60)
    assert done.code == 3 and f"pod {pod} in namespace default" in done.err, done
    assert words in done.err, done
    assert_nothing_is_left(controller)


def test_without_its_api_server_a_run_ends_and_goes_on_when_it_is_back(
    controller: Controller,
) -> None:
    process = starting(controller)
    server = live_pid(controller.lab.pods_folder / "pid")
    os.kill(server, signal.SIGKILL)
    # A controller on a busy machine counts only the silence to which it listened.
    ends = {Event.STOPPING, Event.LOST}
    judge.wait_for(
        lambda: ends & {event["event"] for event in controller.events()}, 60, "no node is lost"
    )
    podlab.start(controller.lab, namespaces.inside(controller.lab)).returncode = 0
    done = controller.end(process, 200)
    assert done.code == 3 and "no sign of life" in done.err, done
    assert f"job orch-{controller.bench.name} is deleted" in done.err, done
    assert_nothing_is_left(controller)


def test_two_benches_for_the_same_machines_run_one_after_the_other(controller: Controller) -> None:
    words = ("bench", *QUICK, "--nodes", "2", *IMAGE)
    both = [controller.start(*words) for _ in range(2)]
    for process in both:
        done = controller.end(process, 200)
        assert done.code == 0, done
    assert_nothing_is_left(controller)
