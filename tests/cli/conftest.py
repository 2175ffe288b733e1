"""A project whose hosts do not exist, for commands that contact nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.nowhere import INVENTORY
from tests.support.cli_project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "inventory").mkdir()
    (tmp_path / "inventory" / "cluster.yaml").write_text(INVENTORY)
    (tmp_path / "cpu.yaml").write_text(
        "schema: 1\nhosts:\n  n1: {address: n1.invalid, gpus: 0, slots: 2}\n"
    )
    return Project(tmp_path)
