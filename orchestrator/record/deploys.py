"""What a project remembers of its deploys: the state of each node, by which the next deploy sees
quickly whether a node has changed since, and the facts that it showed.

The check is one short shell command: the digests of all files of a set, the boot id, the GPU
driver, and inode, size and times of the interpreter and of its package folders.
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

from orchestrator.devices.vendor import vendors
from orchestrator.errors import DataError
from orchestrator.inventory import Host
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.framework import payload_path
from orchestrator.record.project import keep
from orchestrator.record.state_file import read_json


@dataclass(frozen=True, slots=True)
class Deployed:
    """One node after a deploy.

    ``key`` identifies the host's inventory entry and the deployed frameworks; ``root`` is the
    absolute work directory; ``sets`` maps the digest of each payload set to the digests of its
    files by name; ``machine`` and ``paths`` are what the facts depend on, as reported by the node
    runner; ``facts`` are by framework; ``at`` is the time in seconds since 1970.
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
        """The shell command that prints `answer` if nothing has changed."""
        drivers = " ".join(vendor.driver for vendor in vendors() if vendor.driver)
        machine = f"cat /proc/sys/kernel/random/boot_id {drivers} 2>/dev/null"
        # Change into each set and back: a subshell, or a digest of the digests, would cost one more
        # process per node.
        sets = [
            f"cd ./{payload_path('', digest)} && sha256sum -- {_words(files)} && cd ../.."
            for digest, files in self.sets.items()
        ]
        paths = f"stat -L -c '%n %i %s %Y %Z' -- {_words(self.paths)}"
        return f"cd -- {shlex.quote(self.root)} && {machine}; " + " && ".join([*sets, paths])

    @property
    def answer(self) -> bytes:
        """The output of `question` if nothing has changed; a login shell may print text before it."""
        lines = [
            f"{digest}  {name}" for files in self.sets.values() for name, digest in files.items()
        ]
        lines += [f"{path} {state}" for path, state in self.paths.items()]
        return (self.machine + "".join(f"{line}\n" for line in lines)).encode(
            "utf-8", "surrogateescape"
        )


class Memory:
    """The remembered deploys of these frameworks in a project; if the file is lost or damaged, the
    next deploy is complete.
    """

    def __init__(self, path: Path, folders: Sequence[FrameworkFolder]) -> None:
        self.path = path
        self._folders = folders
        self._sets = {folder.payload_digest: folder.payload_digests for folder in folders}
        self._all: dict[str, Any] = {}
        try:
            self._all = dict(read_json(path)["hosts"])
        except (DataError, ValueError, KeyError, TypeError):
            return

    def of(self, host: Host) -> Deployed | None:
        """Return the remembered deploy of a host; None if there is none, or its inventory entry has
        changed.
        """
        try:
            deployed = Deployed(**self._all[host.name])
        except (KeyError, TypeError):
            return None
        if deployed.key == self._key(host) and deployed.sets == self._sets:
            return deployed
        return None

    def note(
        self, host: Host, facts: Mapping[str, Mapping[str, Any]], standing: Mapping[str, Any]
    ) -> None:
        """Remember a host after a complete deploy: its ``facts`` by framework, and ``standing``,
        what they depend on.
        """
        root = str(next(iter(facts.values()))["workdir"])
        machine, paths = str(standing["machine"]), dict(standing["paths"])
        self._all[host.name] = asdict(
            Deployed(self._key(host), root, self._sets, machine, paths, facts, time.time())
        )

    def save(self) -> None:
        """Write the file. Raises ConfigError if the project cannot be written."""
        keep(self.path, {"schema": 1, "hosts": self._all})

    def _key(self, host: Host) -> str:
        parts = [
            asdict(host),
            [(folder.framework.name, folder.framework.digest) for folder in self._folders],
        ]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def recall_facts(path: Path, hosts: Sequence[Host]) -> dict[str, dict[str, Any]]:
    """Return the facts that the last deploy saw of those hosts whose neighbours were among these
    hosts too.
    """
    try:
        entries = dict(read_json(path)["hosts"])
        facts = {
            host.name: dict(next(iter(entries[host.name]["facts"].values())))
            for host in hosts
            if host.name in entries
        }
        addresses = {host.address for host in hosts}
        return {
            name: values
            for name, values in facts.items()
            if addresses >= set(values.get("routes") or ())
        }
    except (DataError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
        return {}


def _words(texts: Iterable[str]) -> str:
    """Return texts as quoted words of a shell command."""
    return " ".join(map(shlex.quote, texts))
