"""What is recorded of a bench of three runs."""

from __future__ import annotations

BENCH = {"bench_id": "b1", "created": "2025-01-02T03:04:05Z", "runs": ["r1", "r2", "r3"]}
