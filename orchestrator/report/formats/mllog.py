"""A summary as lines of MLPerf training logs, for tools that read these: a point in time per
configuration. This is not an MLPerf submission.

Format: https://github.com/mlcommons/logging, ``mllog/mllog.py``, and the parser of its compliance
checker since 0.7.0. The keys ``global_batch_size`` and ``status`` are in its list of constants.
``tracked_stats`` is not, but the checker accepts it: implementations use it for their own numbers,
such as throughput.
"""

from __future__ import annotations

import json
import time
from typing import Any

from orchestrator.report.cells import case
from orchestrator.results.entries import Row
from orchestrator.results.summary import Summary

_TOKEN = ":::MLLOG "
_NUMBERS = {"speedup": "speedup", "efficiency": "efficiency"}
_FACTS = ("framework", "model", "dtype", "loader", "device", "nodes", "gpus", "world_size", "simulated",
          "n", "planned", "failed", "interrupted", "running", "never_run")  # fmt: skip
_TEXTS = ("hardware", "qualifications", "failures", "run_ids")


def render(summary: Summary) -> str:
    """Return two lines for each row, ASCII only.

    Numbers are unrounded, in the unit of their metric. The time is the time of the export.
    """
    now_ms = time.time_ns() // 1_000_000
    return "".join(f"{line}\n" for row in summary.rows for line in _lines(row, now_ms))


def _lines(row: Row, now_ms: int) -> tuple[str, str]:
    namespace = f"{row.series} {case(row)}"
    fields = {"throughput" if row.is_speed else row.metric: "value", **_NUMBERS}
    numbers = {
        name: value for name, field in fields.items() if (value := getattr(row, field)) is not None
    }
    metadata = {name: getattr(row, name) for name in (*_FACTS, *_TEXTS)}
    metadata |= {
        "unit": row.unit,
        "key": dict(row.key),
        "status": "success" if row.n == row.planned else "aborted",
    }
    return (
        _line(namespace, now_ms, "global_batch_size", row.global_batch, {}),
        _line(namespace, now_ms, "tracked_stats", numbers, metadata),
    )


def _line(namespace: str, time_ms: int, key: str, value: Any, metadata: dict[str, Any]) -> str:
    event = {"namespace": namespace, "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key}
    text = json.dumps({**event, "value": value, "metadata": metadata}, allow_nan=False)
    # Readers search for the last token of a line: a token inside a text from a log must be written
    # differently.
    return _TOKEN + text.replace(_TOKEN.strip(), _TOKEN.strip().replace(":", "\\u003a"))
