"""Ask nodes about runs that are under way, again and again while somebody looks, by connections of
its own.

Each bench is asked in a thread of its own, so that one whose nodes are slow to answer, or that
raises what nobody expected, holds up no other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from orchestrator.cli.connection_log import trust_of
from orchestrator.cli.options import check_secrets
from orchestrator.errors import OrchError
from orchestrator.features.site.live import Seen, Watched
from orchestrator.inventory import Redaction, open_inventory
from orchestrator.nodes.cluster import Cluster
from orchestrator.nodes.fanout import each
from orchestrator.record import Project
from orchestrator.record.bench_record import find_inventory
from orchestrator.transport import Trust

_PERIOD_S = 2.0
_LOOKED_AT_S = 7.0
"""So long after the last request for a page somebody looks at it."""
_IDLE_S = 30.0
_AGAIN_S = 20.0
"""A host that cannot be reached is tried again after this time."""
_ANSWER_S = 10.0

Key = tuple[object, ...]
"""A run, and the logs of its nodes that somebody looks at."""


class Nodes:
    """Asks the nodes of the benches that somebody looks at. ``tell_bug`` is called with what nobody
    expected.
    """

    def __init__(self, project: Project, tell_bug: Callable[[BaseException], None]) -> None:
        self._project = project
        self._tell_bug = tell_bug
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self._benches: dict[Path, _Bench] = {}
        self._redaction = Redaction()

    def look(self, watched: Watched) -> Mapping[str, Seen]:
        """Return the nodes' answers so far, and have the nodes asked."""
        path, key = watched.bench.path, _key(watched)
        with self._lock:
            if self._is_over.is_set():
                return {}
            if path not in self._benches:
                thread = threading.Thread(
                    target=self._ask_again_and_again, args=(path,), name="nodes", daemon=True
                )
                self._benches[path] = _Bench(thread)
                thread.start()
            bench = self._benches[path]
            bench.looked_at[key] = watched, time.monotonic()
            bench.told.set()
            return dict(bench.seen.get(key, {}))

    def close(self) -> None:
        """Ask no more, and close all connections."""
        with self._lock:
            self._is_over.set()
            benches = list(self._benches.values())
        for bench in benches:
            bench.told.set()
        last_s = time.monotonic() + _ANSWER_S
        for bench in benches:
            bench.thread.join(max(0.0, last_s - time.monotonic()))

    def _ask_again_and_again(self, path: Path) -> None:
        """Ask the nodes of one bench until nobody has looked at it for half a minute."""
        bench, asked = self._benches[path], _Asked(self._trust, self._tell_bug)
        is_looked_at = True
        while not self._is_over.is_set() and is_looked_at:
            for watched in self._refresh_looks(bench):
                if self._is_over.is_set():
                    break
                seen = asked.answers(watched)
                with self._lock:
                    key = _key(watched)
                    if key in bench.looked_at:
                        bench.seen[key] = seen
            if bench.looked_at:
                self._is_over.wait(_PERIOD_S)
            else:
                bench.told.wait(_IDLE_S)
                with self._lock:
                    if is_looked_at := bool(bench.looked_at):
                        continue
                    del self._benches[path]
        asked.disconnect()

    def _refresh_looks(self, bench: _Bench) -> list[Watched]:
        """Return the keys that somebody looks at, and forget the others."""
        now = time.monotonic()
        with self._lock:
            for key in [key for key, (_, at) in bench.looked_at.items() if now - at > _LOOKED_AT_S]:
                del bench.looked_at[key]
                bench.seen.pop(key, None)
            bench.told.clear()
            return [watched for watched, _ in bench.looked_at.values()]

    def _trust(self, redaction: Redaction) -> Trust:
        """Return how host keys are verified. What log-ins report is printed without the secrets of
        any bench.
        """
        with self._lock:
            self._redaction = Redaction(
                tuple(dict.fromkeys((*self._redaction.needles, *redaction.needles)))
            )
            return trust_of(self._project, self._redaction)


@dataclass(slots=True)
class _Bench:
    """The thread that asks the nodes of a bench; what it looks at, and since when; what it knows.
    ``told``: look again.
    """

    thread: threading.Thread
    looked_at: dict[Key, tuple[Watched, float]] = field(default_factory=dict)
    seen: dict[Key, dict[str, Seen]] = field(default_factory=dict)
    told: threading.Event = field(default_factory=threading.Event)


class _Asked:
    """The connections to the nodes of one bench. No method raises anything: what went wrong is the
    answer of a node.
    """

    def __init__(
        self, trust: Callable[[Redaction], Trust], tell_bug: Callable[[BaseException], None]
    ) -> None:
        self._trust = trust
        self._tell_bug = tell_bug
        self._cluster: Cluster | None = None
        self._failed: dict[str, tuple[float, Seen]] = {}

    def answers(self, watched: Watched) -> dict[str, Seen]:
        """Return the answer of every host, or its error."""
        try:
            cluster = self._connection(watched)
        except Exception as error:
            return dict.fromkeys(watched.logs, self._error(error))
        answers, _ = each(watched.logs, partial(self._answer, cluster, watched))
        return answers

    def disconnect(self) -> None:
        """Close all connections."""
        if self._cluster:
            try:
                self._cluster.close()
            except Exception as error:
                self._error(error)
        self._cluster = None

    def _answer(self, cluster: Cluster, watched: Watched, host: str) -> Seen:
        again_s, failure = self._failed.get(host, (0.0, Seen()))
        is_connected = host in cluster.nodes and cluster.nodes[host].transport.alive
        if not is_connected and time.monotonic() < again_s:
            return failure
        try:
            node = cluster.nodes[host] if is_connected else cluster.reconnect(host)
        except Exception as error:
            failure = self._error(error)
            self._failed[host] = time.monotonic() + _AGAIN_S, failure
            return failure
        log, most = watched.logs[host]
        try:
            recent = node.recent(watched.run_id, log, most_bytes=most, timeout_s=_ANSWER_S)
        except Exception as error:
            return self._error(error)
        if recent:
            return Seen(recent.lives, recent.sizes, recent.log, recent.samples)
        return Seen(error="it has nothing of this run")

    def _connection(self, watched: Watched) -> Cluster:
        """Return the cluster of a bench. Raises ConfigError for an inventory that cannot be used
        any more.
        """
        hosts, known = (
            set(watched.logs),
            {host.name for host in self._cluster.hosts} if self._cluster else set[str](),
        )
        if self._cluster is None or not hosts <= known:
            self.disconnect()
            record = watched.bench.record()
            inventory = open_inventory(find_inventory(record))
            chosen = inventory.of(sorted(hosts | known))
            check_secrets(record, chosen, "use orch serve --no-nodes")
            redaction = inventory.redaction()
            self._cluster = Cluster(chosen, self._trust(redaction), redaction)
        return self._cluster

    def _error(self, error: Exception) -> Seen:
        """Return an error for display; log an unexpected one, with the place that raised it."""
        if isinstance(error, OrchError | OSError):
            return Seen(error=str(error))
        self._tell_bug(error)
        return Seen(error="orch serve cannot ask it; it says why in its terminal")


def _key(watched: Watched) -> Key:
    return (watched.run_id, *watched.logs.items())
