"""Pods and jobs on the nodes of a lab: `Cluster` plays scheduler, Job controller, kubelet and Kueue.

It does so where that matters to an orchestrator: a pod of a job has a process namespace and a home
of its own, and all of its processes end with it; pods survive the server of the API.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.files import write_atomic
from orchestrator.lab import cgroups, loopback, machine, namespaces
from orchestrator.lab.identity import session_environment
from orchestrator.lab.podtables import Object, timestamp
from orchestrator.lab.state import Lab, LabNode
from orchestrator.procs import is_same_process, start_ticks

NAMESPACE, LABEL, QUEUE = "default", "lab", "lab"
"""Where the pods are, the label ``app`` of those that are the nodes themselves, and the one queue
of Kueue that admits jobs.
"""
GPU, CPU = "nvidia.com/gpu", "cpu"
_JOB_NAME, _INDEX = "job-name", "batch.kubernetes.io/job-completion-index"
_KUEUE = "kueue.x-k8s.io/queue-name"


def _quantity(text: object) -> float:
    digits = str(text)
    return float(digits[:-1]) / 1000 if digits.endswith("m") else float(digits)


def _requests(pod: Object) -> dict[str, float]:
    """Return the CPUs and GPUs that the first container of a pod requests."""
    given = pod["spec"]["containers"][0].get("resources", {})
    asked = {**given.get("limits", {}), **given.get("requests", {})}
    return {name: _quantity(asked[name]) for name in (GPU, CPU) if name in asked}


class Cluster:
    """The objects of the cluster. ``capacity`` is for each node. All that must survive the server is
    written to ``path`` after each change.
    """

    def __init__(self, lab: Lab, path: Path) -> None:
        self.lab = lab
        self.path = path
        kept = json.loads(path.read_text(encoding="utf-8"))
        self.capacity: dict[str, float] = kept["capacity"]
        self.pods: dict[str, Object] = kept.get("pods", {})
        self.jobs: dict[str, Object] = kept.get("jobs", {})
        self.events: list[Object] = kept.get("events", [])
        self.mains: dict[str, list[int]] = kept.get("mains", {})
        self._tasks: set[asyncio.Task[None]] = set()

    def keep(self) -> None:
        """Write the objects."""
        names = ("capacity", "pods", "jobs", "events", "mains")
        write_atomic(self.path, json.dumps({name: getattr(self, name) for name in names}).encode())

    def begin(self) -> None:
        """Go on with the pods that an earlier server left."""
        for name in list(self.mains):
            self._spawn(self._attend(name))
        self.settle()

    def every_pod(self) -> dict[str, Object]:
        """Return the pods of jobs, and one for each node that is up."""
        nodes = {node.name: self._node_pod(node) for node in self.lab.nodes if node.pid}
        return {**nodes, **self.pods}

    def _node_pod(self, node: LabNode) -> Object:
        start = timestamp((node.folder / "pid").stat().st_mtime)
        meta = {"name": node.name, "namespace": NAMESPACE, "uid": f"{self.lab.marker}-{node.name}"}
        container: Object = {"name": "main", "image": "lab"}
        if gpus := self.capacity.get(GPU):
            container["resources"] = {"limits": {GPU: str(int(gpus))}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**meta, "creationTimestamp": start, "labels": {"app": LABEL}},
            "spec": {"nodeName": node.name, "containers": [container]},
            "status": _running(node.address, container["name"], start),
        }

    def event(self, pod: str, reason: str, message: str) -> None:
        """Record what happened to a pod."""
        about = {"kind": "Pod", "name": pod, "namespace": NAMESPACE}
        found = {"involvedObject": about, "reason": reason, "message": message}
        self.events.append({**found, "lastTimestamp": timestamp()})

    def settle(self) -> None:
        """Make the pods that jobs lack, place those that wait, and write everything."""
        for job in self.jobs.values():
            self._fill(job)
        # Not job by job, as a scheduler may take pods: two jobs can have half of what each needs.
        for pod in sorted(
            self.pods.values(), key=lambda pod: pod["metadata"]["annotations"][_INDEX]
        ):
            if "nodeName" not in pod["spec"] and "deletionTimestamp" not in pod["metadata"]:
                self._place(pod)
        self.keep()

    def _fill(self, job: Object) -> None:
        """Make a pod for each index of a job that has neither succeeded nor has one."""
        name, spec, status = job["metadata"]["name"], job["spec"], job["status"]
        queue = job["metadata"].get("labels", {}).get(_KUEUE, QUEUE)
        spec["suspend"] = queue != QUEUE
        if spec["suspend"] or status.get("conditions") or "deletionTimestamp" in job["metadata"]:
            return
        status.setdefault("startTime", timestamp())
        mine = [p for p in self.pods.values() if p["metadata"]["labels"].get(_JOB_NAME) == name]
        phases = {"Succeeded": set[str](), "Failed": set[str](), "": set[str]()}
        for pod in mine:
            phase = pod["status"]["phase"]
            index = pod["metadata"]["annotations"][_INDEX]
            phases[phase if phase in phases else ""].add(index)
        status["failed"] = sum(pod["status"]["phase"] == "Failed" for pod in mine)
        status["succeeded"] = len(phases["Succeeded"])
        ended = status["succeeded"] == spec["completions"]
        if ended or status["failed"] > spec.get("backoffLimit", 6):
            kind = "Complete" if ended else "Failed"
            status["conditions"] = [{"type": kind, "status": "True"}]
            status |= {"completionTime": timestamp()} if ended else {}
            return
        for index in map(str, range(spec["completions"])):
            if index not in phases["Succeeded"] | phases[""]:
                self._make(job, index)

    def _make(self, job: Object, index: str) -> None:
        name, template = job["metadata"]["name"], job["spec"]["template"]
        pod = f"{name}-{index}-{secrets.token_hex(3)[:5]}"
        given = template.get("metadata", {})
        labels = {**given.get("labels", {}), _JOB_NAME: name}
        meta = {"name": pod, "namespace": NAMESPACE, "uid": secrets.token_hex(8), "labels": labels}
        self.pods[pod] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                **meta,
                "creationTimestamp": timestamp(),
                "annotations": {_INDEX: index},
            },
            "spec": {**json.loads(json.dumps(template["spec"])), "hostname": f"{name}-{index}"},
            "status": {"phase": "Pending"},
        }

    def _place(self, pod: Object) -> None:
        """Start a pod on the first node with room for it, or say why it waits."""
        wanted, image = _requests(pod), pod["spec"]["containers"][0]["image"]
        lacking: dict[str, int] = {}
        for node in self.lab.nodes:
            if why := self._obstacle(pod, node, wanted):
                lacking[why] = lacking.get(why, 0) + 1
                continue
            pod["spec"]["nodeName"] = node.name
            if image.startswith("no-such"):
                waiting = {"reason": "ImagePullBackOff", "message": f"Back-off pulling {image!r}"}
                status = {"name": pod["spec"]["containers"][0]["name"], "ready": False}
                pod["status"]["containerStatuses"] = [{**status, "state": {"waiting": waiting}}]
            else:
                self._spawn(self._run(pod, node))
            return
        total = len(self.lab.nodes)
        reasons = ", ".join(f"{count} {why}" for why, count in lacking.items())
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
        message = f"0/{total} nodes are available: {reasons}."
        pod["status"]["conditions"] = [{**condition, "message": message}]

    def _obstacle(self, pod: Object, node: LabNode, wanted: Mapping[str, float]) -> str:
        if not node.pid:
            return "node(s) were not ready"
        here = [
            other
            for other in self.pods.values()
            if other["spec"].get("nodeName") == node.name
            and other["status"]["phase"] in ("Pending", "Running")
        ]
        job = pod["metadata"]["labels"][_JOB_NAME]
        if any(other["metadata"]["labels"][_JOB_NAME] == job for other in here):
            return "node(s) didn't match pod anti-affinity rules"
        for name, count in wanted.items():
            used = sum(_requests(other).get(name, 0) for other in here)
            if used + count > self.capacity.get(name, 0):
                return f"Insufficient {name}"
        return ""

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, pod: Object, node: LabNode) -> None:
        """Start the first process of a pod, in a process namespace of its own, and attend to it."""
        name, container = pod["metadata"]["name"], pod["spec"]["containers"][0]
        home, status = self._home(pod), self.path.with_name(f"{name}.status")
        own = ["unshare", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child"]
        group = self._limit(pod)
        bind = f"mount --bind {group} {cgroups.hierarchy_of(group)} && " if group else ""
        begin = ["sh", "-c", bind + 'mkdir -p "$HOME" && cd "$HOME" && exec "$@"', "sh"]
        words = [*container["command"], *container.get("args", [])]
        command = [*self._entering(name, node, node.pid), *own, "--", *begin, *words]
        keep = f'"$@"; echo $? >{status}.part; mv {status}.part {status}'
        log = self.path.with_name(f"{name}.log").open("wb")
        process = await asyncio.create_subprocess_exec(
            "sh", "-c", keep, "sh", *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
            env=self.environment(pod, home), start_new_session=True,
        )  # fmt: skip
        log.close()
        # sh, nsenter, unshare, and the first process of the namespace
        while len(chain := _chain(process.pid)) < 4 and not status.exists():
            await asyncio.sleep(0.005)
        pids = [process.pid, chain[min(3, len(chain) - 1)]]
        self.mains[name] = [word for pid in pids for word in (pid, start_ticks(pid))]
        pod["status"] = _running(node.address, container["name"], timestamp())
        self.keep()
        await self._attend(name)

    def _limit(self, pod: Object) -> Path | None:
        """Make the group that limits the CPUs of a pod; return None if there is none to make."""
        limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
        group = cgroups.pod_group(self.lab, pod["metadata"]["name"])
        if CPU not in limits or group is None:
            return None
        with contextlib.suppress(OSError):
            group.mkdir(exist_ok=True)
            quota_us = round(_quantity(limits[CPU]) * cgroups.PERIOD_US)
            cgroups.limit_group(group, max(quota_us, cgroups.LEAST_QUOTA_US))
            return group
        return None

    def _entering(self, name: str, node: LabNode, pid: int) -> list[str]:
        """Return the argv prefix that enters a process on a node, and a pod's group if it has one."""
        group = cgroups.pod_group(self.lab, name)
        start = cgroups.starting_in(group) if group and group.is_dir() else []
        return [*start, *namespaces.entering(node, pid)]

    async def _attend(self, name: str) -> None:
        """Wait for the end of a pod's first process, and record it."""
        outer, ticks, _, _ = self.mains[name]
        with contextlib.suppress(ProcessLookupError):
            descriptor = os.pidfd_open(outer)
            ended = asyncio.Event()
            asyncio.get_running_loop().add_reader(descriptor, ended.set)
            if is_same_process(outer, ticks):
                await ended.wait()
            asyncio.get_running_loop().remove_reader(descriptor)
            os.close(descriptor)
        status, pod = self.path.with_name(f"{name}.status"), self.pods[name]
        code = int(status.read_text()) if status.exists() else 137
        del self.mains[name]
        if group := cgroups.pod_group(self.lab, name):
            cgroups.dissolve_all(group)
        node = self.lab.node(pod["spec"]["nodeName"])
        if node.pid:
            shutil.rmtree(f"/proc/{node.pid}/root{self._home(pod)}", ignore_errors=True)
        if pod["status"]["phase"] == "Running":
            pod["status"]["phase"] = "Failed" if code else "Succeeded"
            ending: Object = {"exitCode": code, "reason": "Error" if code else "Completed"}
            if code:  # as its policy FallbackToLogsOnError says
                log = self.path.with_name(f"{name}.log").read_text(errors="replace")
                ending["message"] = log[-2048:]
            pod["status"]["containerStatuses"][0].update(state={"terminated": ending}, ready=False)
        if "deletionTimestamp" in pod["metadata"]:
            self._forget(name)
        self.settle()

    def _forget(self, name: str) -> None:
        self.pods.pop(name, None)
        for job in [job for job in self.jobs.values() if "deletionTimestamp" in job["metadata"]]:
            mine = (pod["metadata"]["labels"][_JOB_NAME] for pod in self.pods.values())
            if job["metadata"]["name"] not in mine:
                del self.jobs[job["metadata"]["name"]]

    def delete_pod(self, name: str, reason: str = "", message: str = "") -> None:
        """Let a pod end: SIGTERM for its first process, SIGKILL after its grace period."""
        self.event(name, "Killing", message or "Stopping container main")
        if name not in self.pods:  # it is a node
            os.kill(self.lab.node(name).pid, signal.SIGKILL)
            return
        pod = self.pods[name]
        pod["metadata"].setdefault("deletionTimestamp", timestamp())
        if reason:
            target = {"type": "DisruptionTarget", "status": "True", "reason": reason}
            pod["status"]["conditions"] = [{**target, "message": message}]
        if name in self.mains:
            self.kill_main(name, signal.SIGTERM)
            grace_s = pod["spec"].get("terminationGracePeriodSeconds", 30)
            pod["metadata"]["deletionGracePeriodSeconds"] = grace_s
            loop = asyncio.get_running_loop()
            loop.call_later(grace_s, self.kill_main, name, signal.SIGKILL)
        else:
            self._forget(name)

    def kill_main(self, name: str, number: int) -> None:
        """Signal the first process of a pod, with which all of its processes end."""
        if name in self.mains:
            _, _, inner, ticks = self.mains[name]
            if is_same_process(inner, ticks):
                os.kill(inner, number)

    def delete_job(self, name: str) -> None:
        """Let a job and its pods end."""
        self.jobs[name]["metadata"]["deletionTimestamp"] = timestamp()
        pods = [p for p, o in self.pods.items() if o["metadata"]["labels"][_JOB_NAME] == name]
        for pod in pods:
            self.delete_pod(pod)
        if not pods:
            del self.jobs[name]

    def _home(self, pod: Object) -> str:
        return f"/tmp/pod-{pod['metadata']['uid']}"

    def environment(self, pod: Object, home: str) -> dict[str, str]:
        """Return the variables of a container, as its image and its pod set them."""
        container = pod["spec"]["containers"][0]
        own = {item["name"]: item.get("value", "") for item in container.get("env", [])}
        node = self.lab.node(pod["spec"]["nodeName"])
        python = str(Path(self.lab.python).parent)
        path = f"{python}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        fixed = {"PATH": path, "HOME": home, "HOSTNAME": pod["metadata"]["name"]}
        return {**fixed, **session_environment(self.lab, node), **own}

    def entering(self, pod: Object) -> tuple[list[str], dict[str, str]]:
        """Return the argv prefix and the environment of a command in a pod."""
        name, node = pod["metadata"]["name"], self.lab.node(pod["spec"]["nodeName"])
        if self.lab.kind != "namespaces":
            return loopback.on_node(self.lab, node), self.environment(pod, str(node.home))
        if name in self.mains:
            home = self._home(pod)
            enter = self._entering(name, node, self.mains[name][2])
        else:
            home = machine.HOME
            enter = namespaces.entering(node, node.pid)
        return [*enter, "env", "-C", home], self.environment(pod, home)


def _chain(pid: int) -> list[int]:
    """Return a process and the first child of each, down to the last."""
    found = [pid]
    with contextlib.suppress(OSError, IndexError):
        while True:
            path = Path(f"/proc/{found[-1]}/task/{found[-1]}/children")
            found.append(int(path.read_text(encoding="ascii").split()[0]))
    return found


def _running(address: str, container: str, start: str) -> Object:
    state = {"name": container, "ready": True, "state": {"running": {"startedAt": start}}}
    ready = [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]
    found = {"phase": "Running", "podIP": address, "hostIP": address}
    return {**found, "conditions": ready, "containerStatuses": [state]}
