"""What holds for all tests."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import judge
from tests.machine import Machine

judge.patience = 4.0


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path / "work")
    yield made
    made.close()


@pytest.fixture
def open_home() -> Iterator[Path]:
    """A folder of the user nobody, who cannot come to those that pytest makes."""
    path = Path(tempfile.mkdtemp(dir="/tmp"))
    os.chown(path, 65534, 65534)
    yield path
    shutil.rmtree(path)
