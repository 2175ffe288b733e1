"""What nodes say of runs that are under way, asked again and again while somebody looks, by connections of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from orchestrator.cli.connecting import trust_of
from orchestrator.cli.options import known_secrets
from orchestrator.errors import OrchError
from orchestrator.inventory import open_inventory
from orchestrator.nodes.cluster import Cluster
from orchestrator.nodes.fanout import each
from orchestrator.record import Project
from orchestrator.site.live import Seen, Watched

__all__ = ["Nodes"]

_PERIOD_S = 2.0
_LOOKED_AT_S = 7.0
"""So long after the last request for a page somebody looks at it."""
_IDLE_S = 30.0
_AGAIN_S = 20.0
"""A host that cannot be reached is tried again after this time."""
_ANSWER_S = 10.0


@dataclass(slots=True)
class _Connected:
    """The connections to hosts of a bench, and by host the error and the time of those that could not be made."""

    cluster: Cluster
    used_s: float
    failed: dict[str, tuple[float, OrchError]] = field(default_factory=dict)


class Nodes:
    """Asks nodes in a thread of its own, which ends its connections when nobody has looked for half a minute."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._lock = threading.Lock()
        self._told = threading.Event()
        self._is_over = threading.Event()
        self._wanted: dict[tuple[object, ...], tuple[Watched, float]] = {}
        self._seen: dict[tuple[object, ...], dict[str, Seen]] = {}
        self._connected: dict[Path, _Connected] = {}
        self._thread: threading.Thread | None = None

    def look(self, watched: Watched) -> Mapping[str, Seen]:
        """Return what the nodes have answered so far, and have them asked."""
        key = (watched.bench.path, watched.run_id, *watched.logs.items())
        with self._lock:
            self._wanted[key] = watched, time.monotonic()
            if self._thread is None and not self._is_over.is_set():
                self._thread = threading.Thread(target=self._run, name="nodes", daemon=True)
                self._thread.start()
            self._told.set()
            return dict(self._seen.get(key, {}))

    def close(self) -> None:
        """Ask no more, and close all connections."""
        self._is_over.set()
        self._told.set()
        if self._thread:
            self._thread.join(_ANSWER_S)
        self._close(lambda _: True)

    def _run(self) -> None:
        while not self._is_over.is_set():
            now = time.monotonic()
            with self._lock:
                gone = [key for key, (_, at) in self._wanted.items() if now - at > _LOOKED_AT_S]
                for key in gone:
                    del self._wanted[key]
                    self._seen.pop(key, None)
                wanted = dict(self._wanted)
                self._told.clear()
            for key, (watched, _) in wanted.items():
                if self._is_over.is_set():
                    return
                seen = self._ask(watched)
                with self._lock:
                    if key in self._wanted:
                        self._seen[key] = seen
            self._close(lambda connected: time.monotonic() - connected.used_s > _IDLE_S)
            if wanted:
                self._is_over.wait(_PERIOD_S)
            else:
                self._told.wait(_IDLE_S if self._connected else None)

    def _close(self, is_idle: Callable[[_Connected], bool]) -> None:
        for path, connected in list(self._connected.items()):
            if is_idle(connected):
                del self._connected[path]
                connected.cluster.close()

    def _ask(self, watched: Watched) -> dict[str, Seen]:
        """Return the answer of every host, or its error."""
        try:
            connected = self._connection(watched)
        except OrchError as error:
            return {host: Seen(error=str(error)) for host in watched.logs}
        cluster = connected.cluster
        missing = [host for host in watched.logs if host not in cluster.nodes or not cluster.nodes[host].transport.alive]
        due = [host for host in missing if time.monotonic() > connected.failed.get(host, (0.0, None))[0]]
        _, errors = each(due, cluster.reconnect)
        for host in due:
            connected.failed.pop(host, None)
        connected.failed |= {host: (time.monotonic() + _AGAIN_S, error) for host, error in errors.items()}
        there = [host for host in watched.logs if host in cluster.nodes]
        answers, silent = each(there, partial(_recent, cluster, watched))
        known: dict[str, Seen] = {host: Seen(error=str(error)) for host, (_, error) in connected.failed.items()}
        return {**known, **answers, **{host: Seen(error=str(error)) for host, error in silent.items()}}

    def _connection(self, watched: Watched) -> _Connected:
        """Return the connections for a bench. Raises ConfigError for an inventory that cannot be used any more."""
        path, hosts = watched.bench.path, set(watched.logs)
        connected = self._connected.get(path)
        if connected is None or not hosts <= {host.name for host in connected.cluster.hosts}:
            if connected:
                connected.cluster.close()
            record = watched.bench.record()
            inventory = open_inventory(record.inventory)
            chosen = inventory.of(sorted(hosts | ({host.name for host in connected.cluster.hosts} if connected else set())))
            known_secrets(record, chosen, "use orch serve --no-nodes")
            trust = trust_of(self._project, inventory.redaction())
            connected = self._connected[path] = _Connected(Cluster(chosen, trust, inventory.redaction()), 0.0)
        connected.used_s = time.monotonic()
        return connected


def _recent(cluster: Cluster, watched: Watched, host: str) -> Seen:
    log, most = watched.logs[host]
    recent = cluster.nodes[host].recent(watched.run_id, log, most_bytes=most, timeout_s=_ANSWER_S)
    return Seen(recent.lives, recent.sizes, recent.log, recent.samples) if recent else Seen(error="it has nothing of this run")
