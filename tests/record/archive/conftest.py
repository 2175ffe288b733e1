"""A bench of four runs, its archive, and copies of both that a test may break."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from orchestrator.api.sealing import contents as tables
from orchestrator.record.archive import seal
from orchestrator.record.rundir import BenchDir
from tests.support.run_folders import build


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> BenchDir:
    """Two good repeats, one that failed, and one that was never made."""
    made = BenchDir.create(
        tmp_path_factory.mktemp("project") / "runs",
        {"bench_id": "b1", "runs": ["r1", "r2", "r3", "r4"]},
    )
    build(made, "r1")
    build(made, "r2", repeat=2, seconds=0.49)
    build(made, "r3", lambda planned, logs: logs[0].update({"rank-0.out": "cut"}), repeat=3)
    made.event("finished", run="r1")
    return made


@pytest.fixture(scope="session")
def archive(bench: BenchDir, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("sealed") / "b1.tar"
    seal(bench, target, tables)
    return target


@pytest.fixture
def copied(bench: BenchDir, tmp_path: Path) -> BenchDir:
    """A copy that a test may break."""
    shutil.copytree(bench.path, tmp_path / "copy")
    return BenchDir(tmp_path / "copy")


@pytest.fixture
def unpacked(archive: Path, tmp_path: Path) -> Path:
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path], check=True)
    return tmp_path / "b1"
