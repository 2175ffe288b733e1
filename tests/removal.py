"""Delete each feature in a copy of the repository, and run the unit tests of what is left.

    python -m tests.removal [FEATURE …]

Tests that import a feature are left out with it, wherever they are, and so is the list of modules
that features may enter; tests that use a feature by a command are skipped (`needs`).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from orchestrator.feature import features

REPOSITORY = Path(__file__).parents[1]
PYTEST = ("-m", "pytest", "--unit", "-q", "-n", "2", "-p", "no:cacheprovider")
OF_ALL_FEATURES = (
    "tests/test_structure.py::test_every_door_is_used",
    "tests/test_docs.py::test_recipes_name_files_that_exist_and_what_is_in_them",
)
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "*.egg-info")


def copy_repository(root: Path) -> Path:
    """Return a copy of the repository."""
    copy = root / "repository"
    shutil.copytree(REPOSITORY, copy, ignore=LEFT_OUT, symlinks=True)
    return copy


def copy_without(feature: str, root: Path) -> Path:
    """Return a copy of the repository without a feature, the tests that import it, and those that
    make its records.
    """
    copy = copy_repository(root)
    shutil.rmtree(copy / "orchestrator" / "features" / feature)
    shutil.rmtree(copy / "tests" / "features" / feature, ignore_errors=True)
    lost = [f"orchestrator.features.{feature}."]
    for folder in ("support", "faults"):
        for path in sorted((copy / "tests" / folder).glob("*.py")):
            if lost[0] in path.read_text(encoding="utf-8"):
                lost.append(f"tests.{folder}.{path.stem} ")
    for path in (copy / "tests").rglob("test_*.py"):
        if any(name in path.read_text(encoding="utf-8") for name in lost):
            path.unlink()
    return copy


def run_in(copy: Path, *words: str, captured: bool = True) -> subprocess.CompletedProcess[str]:
    """Run Python in a copy, whose `orchestrator` wins over an installed one: Python looks first in
    the folder it starts in. What it compiles it keeps, for the next one that runs there.
    """
    return subprocess.run(
        [sys.executable, *words],
        cwd=copy,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": ""},
        capture_output=captured,
        text=True,
        check=False,
    )


def main() -> int:
    """Print the result of each feature; return 1 if the tests of what is left fail without one."""
    failed = []
    left_out = [f"--deselect={test}" for test in OF_ALL_FEATURES]
    for feature in sys.argv[1:] or sorted(features()):
        print(f"== without {feature}", flush=True)
        with tempfile.TemporaryDirectory() as root:
            copy = copy_without(feature, Path(root))
            if run_in(copy, *PYTEST, *left_out, captured=False).returncode:
                failed.append(feature)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
