"""What a deploy left on each node and found there, remembered in the project, and the quick look whether that still holds.

The look is one short shell command: the digests of all files of a set at once, the boot, the GPUs' driver, and inode, size
and times of the interpreter and of the folders in which it finds its packages. Where all of it is as it was, nothing has to be
sent, and the facts are those of before. They are shown by `orch deploy` and decide nothing: a bench captures its own.
"""

from __future__ import annotations

import hashlib
import json
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.checks import same_machine
from orchestrator.errors import Faults, OrchError
from orchestrator.inventory import Host
from orchestrator.nodes.cluster import Cluster
from orchestrator.nodes.fanout import each_or_raise
from orchestrator.nodes.node import Node, Upload
from orchestrator.nodes.preflight import capture
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.framework import payload_path
from orchestrator.record.project import keep

__all__ = ["Deployed", "Memory", "deploy", "stage_payload"]

_LOOK_S = 30.0


@dataclass(frozen=True, slots=True)
class Deployed:
    """One node after a deploy.

    ``key`` stands for the host as the inventory has it and for the frameworks that were deployed; ``root`` is the absolute
    work directory; ``sets`` are, by the digest of each payload set, those of its files by name; ``machine`` and ``paths``
    are what the node runner said that its facts rest on; ``facts`` are by framework; ``at`` is the time in seconds since 1970.
    """

    key: str
    root: str
    sets: Mapping[str, Mapping[str, str]]
    machine: str
    paths: Mapping[str, str]
    facts: Mapping[str, Mapping[str, Any]]
    at: float

    @property
    def question(self) -> str:
        """The shell's command that prints `answer` where nothing has changed."""
        machine = "cat /proc/sys/kernel/random/boot_id /proc/driver/nvidia/version 2>/dev/null"
        # Into each set and out again: a subshell, or a digest of the digests, would be a process more on every node.
        sets = [
            f"cd ./{payload_path('', digest)} && sha256sum -- {_words(files)} && cd ../.."
            for digest, files in self.sets.items()
        ]
        paths = f"stat -L -c '%n %i %s %Y %Z' -- {_words(self.paths)}"
        return f"cd -- {shlex.quote(self.root)} && {machine}; " + " && ".join([*sets, paths])

    @property
    def answer(self) -> bytes:
        """What `question` prints where nothing has changed, after whatever a login shell says."""
        lines = [f"{digest}  {name}" for files in self.sets.values() for name, digest in files.items()]
        lines += [f"{path} {state}" for path, state in self.paths.items()]
        return (self.machine + "".join(f"{line}\n" for line in lines)).encode("utf-8", "surrogateescape")

    def holds(self, node: Node) -> bool:
        """Look whether all of it is still so. A node without these programs, or one that says anything else, has changed."""
        try:
            done = node.transport.run(["sh", "-c", self.question], timeout_s=_LOOK_S)
        except OrchError:
            return False  # whoever asks it next says why
        return done.code == 0 and done.stdout.endswith(self.answer)


class Memory:
    """What a project remembers of deploys of these frameworks; a lost or damaged memory costs one whole deploy."""

    def __init__(self, path: Path, folders: Sequence[FrameworkFolder]) -> None:
        self.path = path
        self._folders = folders
        self._sets = {folder.payload_digest: folder.payload_digests for folder in folders}
        self._all: dict[str, Any] = {}
        try:
            self._all = dict(json.loads(path.read_text(encoding="utf-8"))["hosts"])
        except (OSError, ValueError, KeyError, TypeError):
            return

    def of(self, host: Host) -> Deployed | None:
        """Return what is remembered of a host as it is in the inventory now; None where there is nothing."""
        try:
            found = Deployed(**self._all[host.name])
        except (KeyError, TypeError):
            return None
        return found if found.key == self._key(host) and found.sets == self._sets else None

    def note(self, host: Host, facts: Mapping[str, Mapping[str, Any]], standing: Mapping[str, Any]) -> None:
        """Remember a host after a whole deploy: its ``facts`` by framework, and what they rest on."""
        root = str(next(iter(facts.values()))["workdir"])
        machine, paths = str(standing["machine"]), dict(standing["paths"])
        self._all[host.name] = asdict(Deployed(self._key(host), root, self._sets, machine, paths, facts, time.time()))

    def save(self) -> None:
        """Write it down. Raises ConfigError where the project cannot be written."""
        keep(self.path, {"schema": 1, "hosts": self._all})

    def _key(self, host: Host) -> str:
        parts = [asdict(host), [(each.framework.name, each.framework.digest) for each in self._folders]]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def deploy(
    cluster: Cluster, folders: Sequence[FrameworkFolder], memory: Memory
) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, Any]], dict[str, float]]:
    """Bring payloads to every node that lacks them and capture its facts; what stands as it was left is only looked at.

    Returns (bytes sent, facts), each by framework and host, and when the facts of the nodes were captured on which nothing has
    changed. Raises Faults where a node does not answer, or two names are one machine.
    """
    hosts = {host.name: host for host in cluster.hosts}
    known = {name: found for name, host in hosts.items() if (found := memory.of(host))}
    stands = each_or_raise(known, lambda name: known[name].holds(cluster.nodes[name]))
    kept = {name: known[name] for name, same in stands.items() if same}
    changed = [name for name in hosts if name not in kept]
    sent: dict[str, dict[str, int]] = {}
    facts: dict[str, dict[str, Any]] = {}
    for folder in folders:
        name = folder.framework.name
        fresh = each_or_raise(changed, lambda host, folder=folder: stage_payload(cluster.nodes[host], folder))  # type: ignore[misc]
        new, errors = capture(cluster, folder.framework, names=changed, briefly=True)
        facts[name] = {host: new[host] if host in new else kept[host].facts[name] for host in hosts if host not in errors}
        sent[name] = {host: fresh.get(host, 0) for host in hosts}
        if wrong := [*errors.values(), *same_machine(facts[name])]:
            raise Faults(wrong)
    for host in changed:
        standing = [by_host[host].pop("standing") for by_host in facts.values()][-1]
        lasting = {name: {**by_host[host], "held_by": None} for name, by_host in facts.items()}
        memory.note(hosts[host], lasting, standing)
    if changed:
        memory.save()
    return sent, facts, {host: found.at for host, found in kept.items()}


def stage_payload(node: Node, folder: FrameworkFolder) -> int:
    """Bring the wrapper of ranks and the framework's payload to a node as one set, named by its digest.

    Returns the bytes that had to be sent: what the node holds of it in another set is copied there.
    """
    digest = folder.payload_digest
    files = [
        Upload(payload_path(name, digest), content, elsewhere=payload_path(name, "*"))
        for name, content in folder.payload.items()
    ]
    return node.put(files, timeout_s=60)


def _words(texts: Iterable[str]) -> str:
    """Return texts as words of a shell's command."""
    return " ".join(map(shlex.quote, texts))
