"""A lab of four nodes for each worker, mended and found clean after every test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import lab as labs
from orchestrator.lab import Lab
from tests.e2e.rig import Controller
from tests.faultlab import four_nodes, mend


@pytest.fixture(scope="session")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The worker's lab. Use `controller`, which leaves it as it was."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    directory = tmp_path_factory.mktemp("e2e") / "lab"
    yield four_nodes(directory)
    labs.down(directory)


@pytest.fixture
def controller(shared_lab: Lab, tmp_path: Path) -> Iterator[Controller]:
    """A fresh project beside the worker's lab; afterwards every node answers again and nothing of ours is left on any."""
    made = Controller(shared_lab, tmp_path)
    yield made
    made.let_go()
    rest = mend(shared_lab)
    assert not rest, f"left on nodes after the test, and ended with their nodes: {rest}"
