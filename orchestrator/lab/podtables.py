"""Tables of pods and jobs, for which kubectl asks and whose cells it prints: `table`.

Columns and words are a real API server's; those of a priority are shown by ``-o wide``.

>>> [duration(seconds) for seconds in (119, 120, 599, 3600, 90_000, 180_000)]
['119s', '2m', '9m59s', '60m', '25h', '2d2h']
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Iterable
from typing import Any

Object = dict[str, Any]

_COLUMNS = {
    "Pod": {"Name": 0, "Ready": 0, "Status": 0, "Restarts": 0, "Age": 0, "IP": 1, "Node": 1},
    "Job": {"Name": 0, "Status": 0, "Completions": 0, "Duration": 0, "Age": 0},
}
"""The columns of a kind, with their priorities."""
_FORMAT = "%Y-%m-%dT%H:%M:%SZ"
_UNITS = (
    (120, 1, "s", 0, ""),
    (600, 60, "m", 1, "s"),
    (3 * 3600, 60, "m", 0, ""),
    (8 * 3600, 3600, "h", 60, "m"),
    (48 * 3600, 3600, "h", 0, ""),
    (8 * 86400, 86400, "d", 3600, "h"),
    (float("inf"), 86400, "d", 0, ""),
)
"""Below how many seconds, seconds of the unit and its letter, and of a second unit if there is one."""


def timestamp(seconds: float | None = None) -> str:
    """Return a time, by default now, as the API writes it."""
    return time.strftime(_FORMAT, time.gmtime(seconds))


def table(kind: str, objects: Iterable[Object], now: str) -> Object:
    """Return the table of pods or jobs at a time."""
    cells = {"Pod": _pod_cells, "Job": _job_cells}[kind]
    columns = [
        # kubectl puts the kind before the cells of the format name.
        {
            "name": name,
            "type": "string",
            "format": name.lower(),
            "description": "",
            "priority": rank,
        }
        for name, rank in _COLUMNS[kind].items()
    ]
    partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
    rows = [
        {"cells": cells(item, now), "object": {**partial, "metadata": item["metadata"]}}
        for item in objects
    ]
    own = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": {}}
    return {**own, "columnDefinitions": columns, "rows": rows}


def _pod_cells(pod: Object, now: str) -> list[str]:
    meta, spec, status = pod["metadata"], pod["spec"], pod["status"]
    containers = status.get("containerStatuses", [])
    ready = f"{sum(c['ready'] for c in containers)}/{len(spec['containers'])}"
    address, node = status.get("podIP", "<none>"), spec.get("nodeName", "<none>")
    age = _between(meta["creationTimestamp"], now)
    return [meta["name"], ready, _pod_status(pod), "0", age, address, node]


def _pod_status(pod: Object) -> str:
    status = pod["status"]
    if "deletionTimestamp" in pod["metadata"] and status["phase"] in ("Pending", "Running"):
        return "Terminating"
    states = [c["state"] for c in status.get("containerStatuses", [])]
    details = [detail for state in states for detail in state.values() if "reason" in detail]
    reason = details[0]["reason"] if details else status["phase"]
    return str(status.get("reason", reason))


def _job_cells(job: Object, now: str) -> list[str]:
    meta, spec, status = job["metadata"], job["spec"], job["status"]
    completions = f"{status.get('succeeded', 0)}/{spec['completions']}"
    duration = ""
    if "startTime" in status:
        duration = _between(status["startTime"], status.get("completionTime", now))
    age = _between(meta["creationTimestamp"], now)
    return [meta["name"], _job_status(job), completions, duration, age]


def _job_status(job: Object) -> str:
    if conditions := job["status"].get("conditions"):
        return str(conditions[0]["type"])
    if "deletionTimestamp" in job["metadata"]:
        return "Terminating"
    return "Suspended" if job["spec"].get("suspend") else "Running"


def _between(start: str, end: str) -> str:
    first, last = (calendar.timegm(time.strptime(text, _FORMAT)) for text in (start, end))
    return duration(max(last - first, 0))


def duration(seconds: int) -> str:
    """Return a duration as kubectl writes it."""
    _, unit, letter, part, small = next(row for row in _UNITS if seconds < row[0])
    whole, rest = divmod(seconds, unit)
    rest //= part or unit
    return f"{whole}{letter}{rest}{small}" if rest else f"{whole}{letter}"
