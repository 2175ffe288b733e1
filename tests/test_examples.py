"""The examples in docstrings, of every module that has any."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
WITH_EXAMPLES = sorted(
    path.relative_to(REPOSITORY)
    for folder in ("orchestrator", "remote")
    for path in (REPOSITORY / folder).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=str)
def test_the_examples_hold(path: Path) -> None:
    if "\nimport torch\n" in (REPOSITORY / path).read_text(encoding="utf-8"):
        pytest.importorskip("torch")
    dotted = path.stem if "trainers" in path.parts else ".".join(path.with_suffix("").parts)
    module = import_module(dotted.removesuffix(".__init__").removeprefix("remote."))
    failed, attempted = doctest.testmod(module)
    assert attempted and not failed
