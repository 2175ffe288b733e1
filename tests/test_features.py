"""A feature is its folder: without it the rest imports and explains itself, and has none of its
commands.

`make removal` runs the unit tests of what is left, which takes minutes.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.feature import features
from tests.removal import copy_repository, run_in

IMPORT_ALL = (
    "import importlib, pathlib, runpy, sys\n"
    "for path in sorted(pathlib.Path('orchestrator').rglob('*.py')):\n"
    "    if path.name != '__main__.py':\n"
    "        importlib.import_module('.'.join(path.with_suffix('').parts).removesuffix('.__init__'))\n"
    "print(importlib.import_module('orchestrator').__file__, flush=True)\n"
    "sys.argv = ['orch', '--help']\n"
    "runpy.run_module('orchestrator', run_name='__main__')\n"
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_repository(tmp_path_factory.mktemp("copy"))


@contextmanager
def without(feature: str, copy: Path) -> Iterator[None]:
    """Take a feature's folder out of a copy, and put it back."""
    folder = copy / "orchestrator" / "features" / feature
    away = shutil.move(folder, copy.parent / feature)
    yield
    shutil.move(away, folder)


@pytest.mark.parametrize("feature", sorted(features()))
def test_the_rest_works_without_the_folder_of_a_feature(feature: str, copy: Path) -> None:
    with without(feature, copy):
        done = run_in(copy, "-c", IMPORT_ALL)
    home, _, shown = done.stdout.partition("\n")
    assert (home, done.stderr) == (f"{copy}/orchestrator/__init__.py", "")
    gone = [command for commands in features()[feature].commands.values() for command in commands]
    rows = {line.split()[0] for line in shown.splitlines() if re.match(r"  \w+  ", line)}
    assert "summarize" in rows and not rows & set(gone)


def test_commands_of_features_stand_below_headings_of_the_core() -> None:
    groups = {feature.group for feature in features().values() if feature.commands}
    assert groups <= set(main._CORE)


@pytest.mark.skipif("published" not in features(), reason="published tables are removed already")
@pytest.mark.parametrize(
    ("words", "where"),
    [
        (("summarize", "--against", "published"), "--against"),
        (("summarize", "--rule", "tensorflow_official"), "--rule"),
        (("summarize", "--from-logs", ".", "-f", "tensorflow_official"), "--from-logs"),
        (("schema", "published"), "schema"),
    ],
)
def test_an_option_that_only_a_missing_feature_serves_is_refused(
    words: tuple[str, ...], where: str, copy: Path
) -> None:
    with without("published", copy):
        done = run_in(copy, "-m", "orchestrator", *words)
    assert (
        done.returncode == 2
        and done.stderr.startswith(f"orch: {where}: ")
        and "this installation of orch" in done.stderr
    )
    assert "Traceback" not in done.stderr
