"""A bench of three runs, for tests that write what runs leave."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.record.rundir import BenchDir


@pytest.fixture
def bench(tmp_path: Path) -> BenchDir:
    return BenchDir.create(
        tmp_path / "runs", {"bench_id": "b1", "created": "2025-01-01", "runs": ["r1", "r2", "r3"]}
    )
