"""What holds for all tests: which of them need more than a minute has, which of them share a
worker, and the lab they share.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from orchestrator import lab as labs
from orchestrator.lab import Lab
from tests.support import examples, judge, timers
from tests.support.faultlab import four_nodes
from tests.support.leftovers import temporary_root, unmount_leftovers
from tests.support.machine import Machine

judge.patience = 40.0

TESTS = Path(__file__).parent
TRAINERS = ("remote/test_trainers.py", "remote/test_trainers_simulated.py")
PYTORCH = tuple(
    f"remote/test_{module}.py"
    for module in (
        "trainers_pytorch",
        "torch_models",
        "torch_gathered_pool",
        "torch_steps",
        "torch_packed",
    )
)
PROGRAMS = tuple(
    f"remote/test_{module}.py"
    for module in ("train_lm", "lm_batch_search", "lm_arithmetic", "rank_parts", "gemm", "loaders")
)
LONG = (
    *("cases", "contract", "e2e", "faults", "lab"),
    *(f"cli/test_{module}.py" for module in ("main", "refusals", "dry_run", "unwritable_projects")),
    *("analysis/compare/test_benches.py", "remote/test_pairs_program.py", *TRAINERS),
    *(*PYTORCH, *PROGRAMS),
    *(
        f"remote/noderun/test_{module}.py"
        for module in ("facts", "groups", "supervisor", "lock", "requests", "shared", "containers")
    ),
    "test_wheel.py",
)
"""Folders and files whose tests need root, servers or a lab, run programs all along, or wait for
processes.

`--unit` leaves them out.
"""
LONG_TESTS = (
    *(
        "results/links/test_collectives.py::test_every_size",
        "results/links/test_collectives.py::test_gloo",
    ),
    *(
        "results/links/test_collectives.py::test_half_types",
        "results/links/test_collectives.py::test_a_wrong_result",
    ),
    "results/links/test_collectives.py::test_groups_of_ranks",
    "remote/test_trainers_hf.py::test_it_marks_its_steps",
    "remote/noderun/test_transfer.py::test_no_process_waits",
    *(
        "plan/test_third_party_launch_scripts.py::test_parameter",
        "test_structure.py::test_every_command_explains_itself",
    ),
)
"""How ids of such tests in other files begin."""
SLOWEST_FIRST = ("e2e", "faults", "lab", "remote", "contract", "cases")
"""Folders of tests that wait, by how long one of them takes."""
WORKERS = {
    "plan/test_folders.py": "plans",
    "plan/test_third_party_folders.py": "plans",
    "plan/test_third_party_launch_scripts.py": "plans",
    "plan/test_third_party_logs.py": "plans",
    **dict.fromkeys(TRAINERS, "trainers"),
    **{program: program.removesuffix(".py") for program in PROGRAMS},
    **dict.fromkeys(PYTORCH, "torch"),
    "results/links/test_collectives.py": "torch",
    "remote/test_pairs_program.py": "torch",
    "remote/test_loaders.py": "torch",
    "test_wheel.py": "wheel",
    "e2e/test_page.py": "page",
    **dict.fromkeys(("e2e/test_machines_in_a_lab.py", "lab/test_lab_machines.py"), "machines"),
}
"""Files whose tests share something that is expensive to make, and run in one worker of xdist for
it, by the group's name.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--unit", action="store_true", help="leave out what needs root, servers, a lab, or minutes"
    )


def pytest_configure(config: pytest.Config) -> None:
    # Tests that run in the background of a shell script inherit an ignored Ctrl-C, and under nohup an
    # ignored SIGHUP, and so would the commands they interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    # Tests write many small files, and what they prove does not need these to survive a crash.
    os.fsync = lambda descriptor: None
    if not hasattr(config, "workerinput"):
        unmount_leftovers(temporary_root())
    # No deadline for an example: machines are shared, and what takes long shows in --durations.
    if config.getoption("--unit"):
        examples.share = 0.2
    settings.register_profile("tests", max_examples=examples.examples(100), deadline=None)
    settings.load_profile("tests")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if config.getoption("--unit") and collection_path.is_relative_to(TESTS):
        return collection_path.relative_to(TESTS).as_posix() in LONG or None
    return None


def _takes_long(path: str) -> bool:
    return any(path == long or path.startswith(f"{long}/") for long in LONG)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--unit"):
        items[:] = [
            item for item in items if not item.nodeid.removeprefix("tests/").startswith(LONG_TESTS)
        ]
    sizes = Counter(_unit(item.nodeid) for item in items)
    items.sort(key=lambda item: _turn(_unit(item.nodeid), sizes))


def _unit(test: str) -> str:
    """Return what of the tests is dealt out together with a test: a group, its file, or it alone."""
    path = test.partition("::")[0].removeprefix("tests/")
    return WORKERS.get(path, test if _takes_long(path) else path)


def _turn(unit: str, sizes: Mapping[str, int]) -> tuple[int, int]:
    """Return when a unit has its turn: single tests that wait first, those of minutes before those of
    seconds, then those that compute, the largest and the groups last, where half of the workers begin.
    """
    if "::" not in unit:
        is_group = not unit.endswith(".py")
        return len(SLOWEST_FIRST) + 1 + is_group, sizes[unit]
    folder = unit.removeprefix("tests/").partition("/")[0]
    return SLOWEST_FIRST.index(folder) if folder in SLOWEST_FIRST else len(SLOWEST_FIRST), 0


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Deal out tests in units. Half of the workers begin with those that wait, the others with those
    that compute, so that neither kind has the two cores for itself, or leaves them idle.

    `--dist loadgroup` knows groups by a suffix of test ids that xdist 3.8 cannot give them with
    pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _unit(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            if self.nodes.index(node) % 2:
                self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
            super()._assign_work_unit(node)

    config.option.loadscopereorder = False
    return Units(config, log)


@pytest.fixture(scope="session")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """The worker's lab of four nodes. Who takes it leaves it as it was."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    directory = tmp_path_factory.mktemp("shared") / "lab"
    yield four_nodes(directory)
    labs.down(directory)


@pytest.fixture(autouse=True)
def _no_timer_outlives_its_test() -> Iterator[None]:
    yield
    timers.end_all()


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
