"""What holds for all tests: which of them need more than a minute has, which of them share a worker, and the lab they share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchestrator import lab as labs
from orchestrator.lab import Lab
from tests import judge
from tests.faultlab import four_nodes

judge.patience = 4.0

TESTS = Path(__file__).parent
LONG = ("contract", "e2e", "faults", "lab", "test_noderun.py", "test_pairs_program.py", "test_trainers.py", "test_wheel.py")
"""Folders and files whose tests need root, servers, a lab, or processes that take their time: `--unit` leaves them out."""
LONG_TESTS = ("test_collectives.py::test_every_size", "test_collectives.py::test_gloo", "test_collectives.py::test_half_types")
"""Beginnings of names of such tests in other files."""
WORKERS = {
    "test_trainers.py": "torch",
    "test_collectives.py": "torch",
    "test_pairs_program.py": "torch",
    "test_loaders.py": "torch",
    "e2e/test_page.py": "page",
}
"""Files whose tests share something that is expensive to make: what is made for one of them is there for all."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--unit", action="store_true", help="leave out what needs root, servers, a lab, or minutes")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("--unit") and collection_path.is_relative_to(TESTS):
        return collection_path.relative_to(TESTS).parts[:1] in {(name,) for name in LONG} or None
    return None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if group := WORKERS.get(item.path.relative_to(TESTS).as_posix()):
            item.add_marker(pytest.mark.xdist_group(group))
    if config.getoption("--unit"):
        items[:] = [item for item in items if not item.nodeid.removeprefix("tests/").startswith(LONG_TESTS)]


@pytest.fixture(scope="session")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The worker's lab of four nodes. Who takes it leaves it as it was."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    directory = tmp_path_factory.mktemp("shared") / "lab"
    yield four_nodes(directory)
    labs.down(directory)
