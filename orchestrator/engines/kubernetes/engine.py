"""Kubernetes as an engine: one Job with an index for each pod, and pods as hosts."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orchestrator import yamlfile
from orchestrator.engines.kubernetes import client
from orchestrator.engines.kubernetes.hosts import (
    INDEX,
    JOB_LABEL,
    WORD,
    Pods,
    describe,
    find_gpus,
    inventory_text,
    one_for_each_machine,
    parse_source,
)
from orchestrator.engines.kubernetes.pods import ending, last_event, obstacle
from orchestrator.engines.kubernetes.request import (
    GRACE,
    LONGEST_GRACE_S,
    PodsWanted,
    job_name,
    lost_fields,
    parse_pods,
    read_template,
)
from orchestrator.engines.protocol import Base, JobState, Say
from orchestrator.errors import ConfigError, Interrupted, RunError
from orchestrator.files import PROJECT_HINT, write_atomic
from orchestrator.inventory import fold, open_inventory
from orchestrator.record import Project

_FAILURES = 2
"""From this many on, a pod that fails has a cause that another try does not mend."""
_NOT_ENDED = "status.phase!=Succeeded,status.phase!=Failed"
_REFUSED = re.compile(r"\((?:Invalid|BadRequest|Forbidden|AlreadyExists|NotFound|Unauthorized)\)")


class KubernetesEngine:
    """Jobs of Kubernetes by kubectl."""

    name = "kubernetes"
    logs_go_with_job = True

    def request(self, text: str, nodes: int, spares: int) -> PodsWanted:
        """Return the pods that the option asks for; a template is read, so that its faults are
        told before anything is submitted.
        """
        wanted = parse_pods(text, nodes, spares)
        template = _template(wanted)
        gpus = wanted.template_gpus_of(template) if template else 0
        return replace(wanted, template_gpus=gpus)

    def recall(self, options: Sequence[str]) -> PodsWanted:
        """Return the request with these options."""
        return PodsWanted(tuple(options))

    def describe(self, request: PodsWanted, bench_id: str) -> str:
        """Return the Job, without the values of variables, which may be secret."""
        job = request.job(bench_id, _template(request))
        for container in job["spec"]["template"]["spec"]["containers"]:
            for variable in container.get("env", []):
                if "value" in variable:
                    variable["value"] = "(not shown)"
        return json.dumps(job, indent=1) + "\n"

    def caution(self, request: PodsWanted) -> str:
        """Say that pods have less time to end than their template gives them."""
        given_s = _template(request).get("spec", {}).get(GRACE, 0)
        text = f"kubernetes: {GRACE} of the template, {given_s}, becomes {LONGEST_GRACE_S}"
        return (
            f"{text}, so that the end of a bench is that of its pods"
            if given_s > LONGEST_GRACE_S
            else ""
        )

    def check(self, request: PodsWanted) -> None:
        """Check kubectl, and the rights of its user."""
        client.check_version()
        namespace = request.namespace()
        for verb, *resource in (
            ("create", "jobs"),
            ("get", "jobs"),
            ("delete", "jobs"),
            ("list", "pods"),
            ("create", "pods", "exec"),
        ):
            namespace.check_right(verb, *resource)

    def submit(self, request: PodsWanted, bench_id: str) -> str:
        """Create the Job of a bench."""
        job = request.job(bench_id, _template(request))
        try:
            created = request.namespace().create("jobs", job)
        except Interrupted:
            raise
        except RunError as error:
            if not _REFUSED.search(error.message):
                raise RunError(error.message, kind="not_verified", where=error.where) from error
            message = f"expected a job that Kubernetes accepts: {error.message}"
            raise ConfigError(message, where="--kubernetes") from error
        if lost := lost_fields(job["spec"]["template"], created["spec"]["template"]):
            message = (
                f"expected fields of a pod, got {', '.join(lost[:8])}, which Kubernetes dropped"
            )
            hint = "kubectl explain pod.spec lists them; the job is deleted"
            raise RunError(message, kind="not_verified", where="--kubernetes", hint=hint)
        return job_name(bench_id)

    def look(self, request: PodsWanted, job: str) -> JobState | None:
        """Return how many pods of a job run, and what each other one waits for."""
        namespace = request.namespace()
        found = namespace.get(f"jobs/{job}")
        if found is None:
            return None
        pods, container = request.pods(job, namespace).items(), request.get("container")
        running, waiting = _ready(pods, container)
        ended = _ended(pods, container)
        if "deletionTimestamp" in found["metadata"]:
            return JobState("; ".join(["being deleted", *waiting[:4]]), is_over=True)
        for condition in found.get("status", {}).get("conditions", ()):
            if condition["type"] in ("Complete", "Failed") and condition["status"] == "True":
                told = [condition["type"], condition.get("reason"), condition.get("message")]
                return JobState(", ".join(filter(None, [*told, *ended[:4]])), is_over=True)
        if len(running) == request.count:
            return JobState("RUNNING", is_ready=True)
        if ended:
            return JobState("; ".join(["over", *ended[:4]]), is_over=True)
        missing = [str(index) for index in range(request.count) if str(index) not in running]
        words = f"waiting: {len(running)} of {request.count} pods run, without index {', '.join(missing)}"
        if found["spec"].get("suspend"):
            queue = request.get("queue")
            waiting = [f"the queue {queue} has not admitted it" if queue else "it is suspended"]
        elif not waiting:
            waiting = last_event(namespace, job)
        return JobState("; ".join([words, *waiting[:4]]))

    def rival(self, request: PodsWanted, job: str) -> str:
        """Return an older job of a bench in this namespace of whose pods only a part have a machine.

        Jobs are named after the time of their bench, so that all benches agree which is older.
        """
        namespace = request.namespace()
        placed = Counter[str](
            pod["metadata"]["labels"][JOB_LABEL]
            for pod in namespace.items(f"pods?labelSelector={JOB_LABEL}&fieldSelector={_NOT_ENDED}")
            if pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
        )
        for name in sorted(placed):
            if job_name("") <= name < job:
                found = namespace.get(f"jobs/{name}")
                if found and placed[name] < found["spec"]["completions"]:
                    return name
        return ""

    def find(self, request: PodsWanted, bench_id: str) -> list[str]:
        """Return the job of a bench, if it is there."""
        name = job_name(bench_id)
        return [name] if request.namespace().get(f"jobs/{name}") else []

    def cancel(self, request: PodsWanted, job: str) -> None:
        """Delete a job with its pods."""
        request.namespace().delete(f"jobs/{job}")

    def find_rest(self, request: PodsWanted, job: str) -> str:
        """Return the pods of a job that are still there."""
        namespace = request.namespace()
        if pods := request.pods(job, namespace).items():
            of = request.get("container")
            told = [f"{pod['metadata']['name']} {obstacle(pod, of) or 'runs'}" for pod in pods[:4]]
            return f"there: {'; '.join(told)}"
        return "there" if namespace.get(f"jobs/{job}") else ""

    def ending(self, request: PodsWanted, job: str) -> str:
        """Say that it is gone."""
        return "deleted, and none of its pods is left"

    def source(self, request: PodsWanted, job: str) -> str:
        """Return the selector of the job's pods."""
        namespace = request.namespace()
        place = {"namespace": namespace.name, "context": namespace.context}
        place["container"] = request.get("container")
        words = [f"{name}={value}" for name, value in place.items() if value]
        return f"{WORD}:{','.join([request.pods(job, namespace).selector, *words])}"

    def source_here(self, hosts: Sequence[str]) -> str:
        """Return nothing: a pod that orch runs in has no others."""
        return ""

    def write_hosts(
        self, project: Project, source: str, bench_id: str, base: Base, say: Say
    ) -> tuple[str, str]:
        """Write the pods of a source."""
        client.check_version()
        pods = parse_source(source.partition(":")[2])
        name = bench_id or re.sub("[^A-Za-z0-9]+", "-", pods.selector)
        return _write(pods, project.root / ".orch" / f"{WORD}-{name}.yaml", project, base, say)

    def renew(self, project: Project, inventory: str, base: Base, say: Say) -> None:
        """List the pods of an inventory anew: others may have their places by now."""
        path = Path(inventory)
        if not path.name.startswith(f"{WORD}-") or not path.exists():
            return
        hosts = open_inventory(inventory).hosts
        known = hosts[0].vars
        namespace = client.Namespace.of(
            str(known.get("pod_namespace", "")), str(known.get("kube_context", ""))
        )
        pods = Pods(str(known["pod_labels"]), namespace, str(known.get("pod_container", "")))
        _write(pods, path, project, base, say, [host.name for host in hosts])


def _write(
    pods: Pods, path: Path, project: Project, base: Base, say: Say, needed: Sequence[str] = ()
) -> tuple[str, str]:
    found, others = pods.list_hosts(needed)
    hosts, notes = one_for_each_machine(found)
    for note in [*(f"left out: {words}" for words in others[:8]), *notes]:
        say(f"pods: {note}")
    names = [host.name for host in hosts]
    project.prepare()
    known = base(names)
    listed = open_inventory(known).hosts if known else ()
    given = {host.name for host in listed if host.gpus is not None}
    hosts = find_gpus(pods, hosts, given)
    text = inventory_text(pods, hosts, known, given)
    write_atomic(path, text.encode(), hint=PROJECT_HINT)
    say(f"pods: {describe(hosts)}, in namespace {pods.namespace.name}")
    return str(path), fold(names)


def _template(request: PodsWanted) -> dict[str, Any]:
    path = request.get("template")
    if not path:
        return {}
    text = yamlfile.read_text(Path(path))
    try:
        document = yamlfile.loads(text, path)
    except ConfigError as error:
        if not re.search(r"\{\{.*\}\}", text):
            raise
        hint = "pass what helm template prints, or write the values"
        raise ConfigError(
            f"expected YAML, got a template with {{{{ }}}}: {error.message}",
            where=error.where,
            hint=hint,
        ) from error
    return read_template(document.value, path)


def _ended(pods: Sequence[dict[str, Any]], container: str) -> list[str]:
    """Return how the pods have ended in whose place Kubernetes makes no other one, as beside a
    container that goes on, or would make another one in vain.
    """
    failed = Counter[str]()
    told = []
    for pod in pods:
        meta, phase, how = pod["metadata"], pod["status"].get("phase"), ending(pod, container)
        if not how or "deletionTimestamp" in meta or pod["status"].get("reason"):
            continue
        index = meta.get("annotations", {}).get(INDEX, "")
        failed[index] += phase == "Failed"
        if phase != "Failed":
            told.append(f"the command of {meta['name']} has ended, {how}")
        elif failed[index] == _FAILURES:
            words = f"the command of index {index} has ended {_FAILURES} times, {how}"
            told.append(f"{words}; it must keep running")
    return told


def _ready(pods: Sequence[dict[str, Any]], container: str) -> tuple[set[str], list[str]]:
    """Return the indexes of the pods that run, and the obstacles of the others."""
    running: set[str] = set()
    waiting: list[str] = []
    for pod in pods:
        meta = pod["metadata"]
        index = meta.get("annotations", {}).get(INDEX)
        if why := obstacle(pod, container):
            waiting.append(f"{meta['name']} {why}")
        elif index is None:
            waiting.append(f"{meta['name']} has no index, which needs Kubernetes 1.22 or newer")
        else:
            running.add(index)
    return running, waiting
