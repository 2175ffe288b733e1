"""A bench that has a record and no run yet."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.record.rundir import BenchDir
from tests.record.three_runs import BENCH


@pytest.fixture
def bench(tmp_path: Path) -> BenchDir:
    return BenchDir.create(tmp_path / "runs", BENCH)
