"""A feature is its folder: without it the rest imports and explains itself, and has none of its
commands.

`make removal` runs the unit tests of what is left, which takes minutes.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.feature import features
from tests.removal import copy_without, run_in

IMPORT_ALL = (
    "import importlib, pathlib\n"
    "for path in sorted(pathlib.Path('orchestrator').rglob('*.py')):\n"
    "    if path.name != '__main__.py':\n"
    "        importlib.import_module('.'.join(path.with_suffix('').parts).removesuffix('.__init__'))\n"
    "print(importlib.import_module('orchestrator').__file__)\n"
)


@pytest.mark.parametrize("feature", sorted(features()))
def test_the_rest_works_without_the_folder_of_a_feature(feature: str, tmp_path: Path) -> None:
    copy = copy_without(feature, tmp_path)
    done = run_in(copy, "-c", IMPORT_ALL)
    assert (done.stdout, done.stderr) == (f"{copy}/orchestrator/__init__.py\n", "")
    shown = run_in(copy, "-m", "orchestrator", "--help").stdout
    gone = [command for commands in features()[feature].commands.values() for command in commands]
    rows = {line.split()[0] for line in shown.splitlines() if re.match(r"  \w+  ", line)}
    assert "summarize" in rows and not rows & set(gone)


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
    words: tuple[str, ...], where: str, without_published: Path
) -> None:
    done = run_in(without_published, "-m", "orchestrator", *words)
    assert (
        done.returncode == 2
        and done.stderr.startswith(f"orch: {where}: ")
        and "this installation of orch" in done.stderr
    )
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def without_published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_without("published", tmp_path_factory.mktemp("without"))
