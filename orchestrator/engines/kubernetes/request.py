"""The Job that ``orch bench --kubernetes`` asks for, as data: its pods hold their machines.

The pods do nothing with their machines. Each ends when no process but its own has run in it for a
while: then the controller is gone, and all runs that it left have ended.

>>> wanted = parse_pods("image=pytorch:2,gpus=8,time=1h", nodes=4)
>>> wanted.options
('image=pytorch:2', 'gpus=8', 'time=1h', 'nodes=4')
>>> wanted.job("20261124-120000-ab12", {})["spec"]["activeDeadlineSeconds"]
3600
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from orchestrator.documents import Invalid, document_field, read
from orchestrator.engines.kubernetes.client import Namespace
from orchestrator.engines.kubernetes.hosts import JOB_LABEL, Pods, gpus_of
from orchestrator.engines.kubernetes.pods import container_name
from orchestrator.errors import ConfigError, nearest
from orchestrator.inventory import Host
from orchestrator.plan.option_values import seconds

IDLE_S = 120
"""Seconds without a process after which a pod ends."""

NVIDIA = "nvidia.com/gpu"
"""The resource of GPUs where no other is named."""

GRACE, LONGEST_GRACE_S = "terminationGracePeriodSeconds", 30
"""How long a pod may take to end: its job is deleted when the bench is over, and is waited for."""

QUEUE = "kueue.x-k8s.io/queue-name"
_OPTIONS = {
    "image": "the image of the container",
    "template": "a file with a pod template, which may also stand first, without a name",
    "gpus": "GPUs of a pod",
    "gpu": "the name of the resource, nvidia.com/gpu by default",
    "cpus": "CPUs of a pod",
    "memory": "memory of a pod, such as 64Gi",
    "shm": "shared memory of a pod, such as 16Gi; all of its machine's by default with an image",
    "rdma": "RDMA devices of a pod by the name of their resource, such as rdma/hca:1",
    "nodes": "the number of pods",
    "queue": "the name of a queue of Kueue",
    "namespace": "the namespace, by default the one of the kubeconfig",
    "context": "the context of the kubeconfig",
    "container": "the container of the template in which ranks run, the first by default",
    "time": "after which Kubernetes ends the job",
    "wait": "how long to wait for all pods, 10m by default",
}
_WHOLE = {"gpus": 0, "cpus": 1, "nodes": 1}
"""Options that are whole numbers, with the least."""
_SIZES = ("memory", "shm")
_SIZE = re.compile(r"[1-9][0-9]*([kMGTPE]|[KMGTPE]i)?")
_RESOURCE = r"[a-z0-9.-]+/[A-Za-z0-9._-]+"
_FORMS = {
    "image": (r"\S+", "an image"),
    "gpu": (_RESOURCE, "the name of a resource, such as amd.com/gpu,"),
    "namespace": ("[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", "small letters, digits and '-'"),
    "container": ("[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?", "small letters, digits and '-'"),
}
"""What a value has to be, as a pattern and in words."""
_HOLDERS = "a Pod, or an object with a template of pods, such as a Job"
_WAIT_S = 600.0
_SCRIPT = f"""# Holds the machine for a bench of orch, and lets it go when nothing has run here for {IDLE_S} s.
# Processes of other containers, which may show in /proc, have other mounts.
trap 'exit 0' TERM
idle=0
while [ "$idle" -lt {IDLE_S} ]; do
    sleep 5 & wait $!
    idle=$((idle + 5)); count=0
    for process in /proc/[0-9]*; do
        if [ "$process/ns/mnt" -ef /proc/self/ns/mnt ]; then count=$((count + 1)); fi
    done
    if [ "$count" -ne 1 ]; then idle=0; fi
done
"""


@dataclass(frozen=True, slots=True)
class _Named:
    """A variable, a volume or what is mounted."""

    name: str


@dataclass(frozen=True, slots=True)
class _Resources:
    limits: Mapping[str, str | int | float] = field(default_factory=dict)
    requests: Mapping[str, str | int | float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Capabilities:
    add: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Security:
    capabilities: _Capabilities = _Capabilities()


@dataclass(frozen=True, slots=True)
class _Container:
    name: str
    image: str
    env: tuple[_Named, ...] = ()
    mounts: Annotated[tuple[_Named, ...], document_field(key="volumeMounts")] = ()
    resources: _Resources = _Resources()
    security: Annotated[_Security, document_field(key="securityContext")] = _Security()


@dataclass(frozen=True, slots=True)
class _Spec:
    containers: tuple[_Container, ...]
    volumes: tuple[_Named, ...] = ()
    affinity: Mapping[str, Any] = field(default_factory=dict)
    grace_s: Annotated[int, document_field(key=GRACE)] = 0


@dataclass(frozen=True, slots=True)
class _Template:
    """What orch reads or changes of a template; the API server checks the rest."""

    spec: _Spec
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PodsWanted:
    """``options`` as ``NAME=VALUE``; the file of a template is read when the job is submitted, and
    kept in no record. ``template_gpus`` are those that it requests.
    """

    options: tuple[str, ...]
    template_gpus: int = 0

    def get(self, name: str, default: str = "") -> str:
        """Return the value of an option."""
        given = dict(option.split("=", 1) for option in self.options)
        return str(given.get(name, default))

    @property
    def text(self) -> str:
        """The options as ``--kubernetes`` takes them."""
        return ",".join(self.options)

    @property
    def words(self) -> str:
        """The options for people."""
        return self.text

    @property
    def count(self) -> int:
        """The number of pods."""
        return int(self.get("nodes"))

    @property
    def wait_s(self) -> float:
        """The longest wait for all pods to run; then all are let go, so that two benches with half
        of their pods each do not wait for each other for ever.
        """
        return seconds(self.get("wait"), "--kubernetes wait") if self.get("wait") else _WAIT_S

    @property
    def hosts(self) -> tuple[Host, ...]:
        """Hosts in place of the pods."""
        gpus = int(self.get("gpus", str(self.template_gpus)))
        names = [f"pod-{index}" for index in range(self.count)]
        return tuple(Host(name, name, gpus=gpus, transport="kubectl") for name in names)

    @property
    def host_names(self) -> list[str]:
        """None: Kubernetes names pods."""
        return []

    def possible_hosts(
        self, listed: Sequence[Host], *, devices_known: bool = True
    ) -> Iterator[tuple[Host, ...]]:
        """Yield what the pods may be as hosts."""
        yield self.hosts

    def on(self, hosts: Sequence[str]) -> PodsWanted:
        """Return the same request for as many pods, which have the same names as hosts."""
        kept = [option for option in self.options if not option.startswith("nodes=")]
        return PodsWanted((*kept, f"nodes={len(hosts)}"))

    def namespace(self) -> Namespace:
        """Return the namespace of the job."""
        return Namespace.of(self.get("namespace"), self.get("context"))

    def pods(self, job: str, namespace: Namespace) -> Pods:
        """Return the pods of a job."""
        return Pods(f"{JOB_LABEL}={job}", namespace, self.get("container"))

    def job(self, bench_id: str, template: Mapping[str, Any]) -> dict[str, Any]:
        """Return the Job of a bench. ``template`` is the pod template of the user, empty without."""
        name = job_name(bench_id)
        pod: dict[str, Any] = json.loads(json.dumps(template)) or {"spec": self._spec()}
        spec = pod["spec"]
        main = self.container(pod)
        self._ask(main)
        if not template or self.get("shm"):
            self._share_memory(spec, main)
        main.setdefault("command", ["/bin/sh", "-c", _SCRIPT])
        # The last line of a command that fails then stands in the pod, without a right to read logs.
        main.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
        spec["restartPolicy"] = "Never"
        spec[GRACE] = min(spec.get(GRACE, 5), LONGEST_GRACE_S)
        # One machine is one node: two pods of a job do not share one.
        labels = {"matchLabels": {JOB_LABEL: name}}
        apart = {"topologyKey": "kubernetes.io/hostname", "labelSelector": labels}
        key = "requiredDuringSchedulingIgnoredDuringExecution"
        spec["affinity"] = {"podAntiAffinity": {key: [apart]}, **spec.get("affinity", {})}
        job: dict[str, Any] = {
            "completionMode": "Indexed",
            "completions": self.count,
            "parallelism": self.count,
            "template": {"metadata": pod.get("metadata", {}), "spec": spec},
        }
        own = {"app.kubernetes.io/managed-by": "orch"}
        if self.get("time"):
            job["activeDeadlineSeconds"] = round(seconds(self.get("time"), "--kubernetes time"))
        if self.get("queue"):
            own[QUEUE] = self.get("queue")
            job["suspend"] = True  # until Kueue admits it
        meta: dict[str, Any] = {"name": name, "labels": own}
        if self.get("namespace"):
            meta["namespace"] = self.get("namespace")
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": job}

    def container(self, template: Mapping[str, Any]) -> dict[str, Any]:
        """Return the container of a template in which ranks run. Raises ConfigError if there is
        none.
        """
        wanted = container_name(template, self.get("container"))
        named = [one for one in template["spec"]["containers"] if one["name"] == wanted]
        if not named:
            message = f"expected the container {wanted} in the template, found none"
            raise ConfigError(message, where="--kubernetes")
        main: dict[str, Any] = named[0]
        return main

    def template_gpus_of(self, template: Mapping[str, Any]) -> int:
        """Return the GPUs that ranks have by a template alone.

        Raises ConfigError if Kubernetes or the options take them for others: requested without a
        limit, of a container in which no rank runs, or beside those of ``gpus=``.
        """
        main = self.container(template)
        gpus = gpus_of(main)
        where = f"--kubernetes: container {main['name']} of the template"
        if gpus and self.get("gpus") and self.get("gpu", NVIDIA) not in main["resources"]["limits"]:
            hint = "name its resource, as in gpu=amd.com/gpu, or leave gpus= out"
            raise ConfigError("expected GPUs of one resource, got two", where=where, hint=hint)
        if gpus or self.get("gpus"):
            return gpus
        if gpus_of(main, "requests"):
            hint = "Kubernetes wants a limit for GPUs: write them under resources.limits"
            raise ConfigError("expected limits for GPUs, got requests", where=where, hint=hint)
        others = [one["name"] for one in template["spec"]["containers"] if gpus_of(one)]
        if others and not self.get("container"):
            hint = f"choose the container in which ranks run: container={others[0]}"
            message = f"expected GPUs, but {others[0]} has them"
            raise ConfigError(message, where=where, hint=hint)
        return 0

    def _ask(self, main: dict[str, Any]) -> None:
        limits = {self.get("gpu", NVIDIA): self.get("gpus")} if self.get("gpus") else {}
        if rdma := self.get("rdma"):
            name, _, count = rdma.partition(":")
            limits[name] = count
            # Verbs lock memory, of which a container may lock little, whatever its template says.
            allowed = main.setdefault("securityContext", {}).setdefault("capabilities", {})
            allowed["add"] = [*allowed.get("add", []), "IPC_LOCK"]
        asked = {name: self.get(f"{name}s", self.get(name)) for name in ("cpu", "memory")}
        requests = {name: value for name, value in asked.items() if value}
        for key, values in (("limits", limits), ("requests", requests)):
            if values:
                main.setdefault("resources", {}).setdefault(key, {}).update(values)

    def _share_memory(self, spec: dict[str, Any], main: dict[str, Any]) -> None:
        """Give a pod the shared memory that NCCL and data loaders need, in place of 64 MiB."""
        mounts = main.setdefault("volumeMounts", [])
        if any(mount.get("mountPath") == "/dev/shm" for mount in mounts):
            message = "expected either shm= or a /dev/shm in the template, got both"
            raise ConfigError(message, where="--kubernetes")
        mounts.append({"name": "orch-shm", "mountPath": "/dev/shm"})
        size = {"sizeLimit": self.get("shm")} if self.get("shm") else {}
        volume = {"name": "orch-shm", "emptyDir": {"medium": "Memory", **size}}
        spec.setdefault("volumes", []).append(volume)

    def _spec(self) -> dict[str, Any]:
        return {"containers": [{"name": "main", "image": self.get("image")}]}


def job_name(bench_id: str) -> str:
    """Return the name of a bench's job."""
    return f"orch-{bench_id}"


def read_template(value: object, where: str) -> dict[str, Any]:
    """Return a pod template from a document: a Pod, or what stands under ``template`` of a PodTemplate,
    or under ``spec.template`` of a Job, a StatefulSet and others.
    """
    document: Any = value
    for holder in (document, document.get("spec") if isinstance(document, dict) else None):
        if isinstance(holder, dict) and isinstance(holder.get("template"), dict):
            document = holder["template"]
            break
    kind = document.get("kind", "Pod") if isinstance(document, dict) else "Pod"
    if document is value and kind != "Pod":
        hint = "write the template of its pods into a file of its own"
        message = f"expected {_HOLDERS}, got {str(kind)[:60]}"
        raise ConfigError(message, where=where, hint=hint)
    hint = "kubectl explain pod.spec lists its fields"
    try:
        read(_Template, document)
    except Invalid as error:
        raise ConfigError(str(error), where=where, hint=hint) from None
    if not document["spec"]["containers"]:
        message = "expected a container, got none"
        raise ConfigError(message, where=f"{where}: spec.containers", hint=hint)
    meta = document.get("metadata", {})
    kept = {key: meta[key] for key in ("labels", "annotations") if key in meta}
    return {"metadata": kept, "spec": document["spec"]}


def lost_fields(sent: Any, kept: Any, path: str = "") -> list[str]:
    """Return the fields of an object that the API server has not kept: it drops unknown ones without
    a word, such as a misspelt nodeSelector. Empty values are no loss.

    >>> lost_fields({"spec": {"nodeSelectr": {"a": "b"}, "volumes": []}}, {"spec": {}})
    ['spec.nodeSelectr']
    """
    if isinstance(sent, dict) and isinstance(kept, dict):
        inner = [(value, kept.get(name), f"{path}.{name}") for name, value in sent.items()]
    elif isinstance(sent, list) and isinstance(kept, list) and len(sent) == len(kept):
        pairs = zip(sent, kept, strict=True)
        inner = [(one, other, f"{path}[{place}]") for place, (one, other) in enumerate(pairs)]
    else:
        return [path.removeprefix(".")] if sent and kept is None else []
    return [lost for one, other, where in inner for lost in lost_fields(one, other, where)]


def parse_pods(text: str, nodes: int, spares: int = 0) -> PodsWanted:
    """Return the pods that ``image=…,gpus=8,…`` or ``FILE.yaml,…`` asks for.

    ``nodes`` is the largest number of nodes of the bench, 0 if it is not given; ``spares`` are
    asked for beside them. Raises ConfigError.
    """
    options: dict[str, str] = {}
    for position, word in enumerate(part.strip() for part in text.split(",")):
        name, equals, value = word.partition("=")
        if not position and not equals and re.search(r"\.(ya?ml|json)$", word):
            name, value = "template", word
        if name in _OPTIONS and not value:
            raise ConfigError(f"expected a value for {name}, got none", where="--kubernetes")
        if name not in _OPTIONS:
            hint = f"known options: {', '.join(_OPTIONS)}{nearest(name, tuple(_OPTIONS))}"
            message = f"expected a known option, got {name[:60]!r}"
            if not equals:
                message = f"expected OPTION=VALUE,…, got {word[:60]!r}"
            raise ConfigError(message, where="--kubernetes", hint=hint)
        if name in options:
            raise ConfigError(f"{name} is set twice", where="--kubernetes")
        form, words = _FORMS.get(name, ("", ""))
        if form and not re.fullmatch(form, value):
            hint = f"did you mean gpus={value}?" if name == "gpu" and value.isdecimal() else ""
            message = f"expected {words} for {name}, got {value[:60]!r}"
            raise ConfigError(message, where="--kubernetes", hint=hint)
        if name == "rdma" and not re.fullmatch(rf"{_RESOURCE}:[1-9][0-9]*", value):
            hint = "kubectl describe node lists the resources of its device plugins"
            message = f"expected a resource and a count for rdma, as rdma/hca:1, got {value[:60]!r}"
            raise ConfigError(message, where="--kubernetes", hint=hint)
        if name in _WHOLE and not (value.isdecimal() and int(value) >= _WHOLE[name]):
            least = f", at least {_WHOLE[name]}," if _WHOLE[name] else ""
            message = f"expected a whole number{least} for {name}, got {value[:60]!r}"
            raise ConfigError(message, where="--kubernetes")
        if name in _SIZES and not _SIZE.fullmatch(value):
            message = f"expected a size for {name}, such as 16Gi, got {value[:60]!r}"
            raise ConfigError(message, where="--kubernetes")
        options[name] = value
    if ("image" in options) == ("template" in options):
        hint = "as in image=pytorch/pytorch:latest,gpus=8, or pod.yaml"
        message = "expected either an image or a pod template"
        raise ConfigError(message, where="--kubernetes", hint=hint)
    for name in ("time", "wait"):
        if name in options:
            seconds(options[name], f"--kubernetes {name}")
    fewest = (nodes or 1) + spares
    if "nodes" not in options and not nodes:
        hint = "add --nodes or --shape, or nodes=4 to --kubernetes"
        raise ConfigError("expected the number of nodes", where="--kubernetes", hint=hint)
    if int(options.setdefault("nodes", str(fewest))) < fewest:
        message = f"expected pods for the largest run and its spares, {fewest}, got nodes={options['nodes']}"
        raise ConfigError(message, where="--kubernetes")
    return PodsWanted(tuple(f"{name}={value}" for name, value in options.items()))
