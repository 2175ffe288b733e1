"""A bench on fake nodes for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.fake_bench import FakeBench


@pytest.fixture
def rig(tmp_path: Path) -> FakeBench:
    return FakeBench(tmp_path)
