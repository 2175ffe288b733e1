"""Check what a node answers to a request: it may send anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchestrator.documents import Reader

_READER = Reader()
_HOLDS: Mapping[str, Mapping[str, Any]] = {
    "drop": {"dropped": bool},
    "examine": {"report": Mapping[str, Any]},
    "facts": {"facts": Mapping[str, Any], "told": str, "standing": Mapping[str, Any]},
    "program": {"code": int | None, "out": str, "err": str},
    "status": {"runs": Mapping[str, int], "owner": str | None},
    "stop": {"stopped": tuple[str, ...]},
    "undeploy": {
        "root": str,
        "runs": int,
        "run_bytes": int,
        "payload": bool,
        "payload_bytes": int,
        "kept": Mapping[str, str],
    },
}
"""Required keys of the answer to each request. `Leftovers` checks the leftovers of runs."""


def check_answer(op: str, answer: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request. Raises ValueError if it lacks a value, or has another in its
    place.
    """
    for name, kind in {} if answer.get("absent") is True else _HOLDS.get(op, {}).items():
        if name not in answer:
            raise ValueError(f"no {name}")
        _READER.read(kind, answer[name])
    return answer
