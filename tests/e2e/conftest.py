"""A controller beside the lab of the worker, which is mended and found clean after every test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator.lab import Lab
from tests.e2e.rig import Controller
from tests.support.faultlab import mend


@pytest.fixture
def controller(shared_lab: Lab, tmp_path: Path) -> Iterator[Controller]:
    """A fresh project beside the worker's lab; afterwards every node answers again and nothing of
    ours is left on any.
    """
    made = Controller(shared_lab, tmp_path)
    yield made
    made.let_go()
    rest = mend(shared_lab)
    assert not rest, f"left on nodes after the test, and ended with their nodes: {rest}"
