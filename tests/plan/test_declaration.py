"""Mistakes in a framework folder: each is one sentence with file, line and key, and all of a file
come together.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator import yamlfile
from orchestrator.errors import Faults, OrchError
from orchestrator.plan.folders import frameworks, read_folder
from tests.support.own_folders import WHOLE, folder_of

MISTAKES = yamlfile.load(Path(__file__).parents[1] / "data" / "framework_mistakes.yaml").value


@pytest.mark.parametrize(
    "mistake", MISTAKES, ids=[mistake["said"].split(":")[0] for mistake in MISTAKES]
)
def test_a_mistake_is_said_with_its_file_line_and_key(
    tmp_path: Path, mistake: dict[str, Any]
) -> None:
    assert mistake["old"] in WHOLE
    folder = folder_of(tmp_path / "mlp", WHOLE.replace(mistake["old"], mistake["new"], 1))
    with pytest.raises(OrchError) as caught:
        read_folder(folder)
    assert caught.value.exit_code == 2
    errors = caught.value.errors if isinstance(caught.value, Faults) else (caught.value,)
    assert len(errors) == 1, str(caught.value)
    text = str(errors[0])
    assert (
        text.startswith(f"{folder}/framework.yaml:{mistake['line']}: ") and mistake["said"] in text
    ), text


def test_forty_mistakes_and_more_are_in_the_table() -> None:
    assert len({(mistake["old"], mistake["new"]) for mistake in MISTAKES}) >= 40


def test_the_file_without_a_mistake_is_read(tmp_path: Path) -> None:
    assert read_folder(folder_of(tmp_path / "mlp", WHOLE)).framework.title == "my MLP"


def test_all_mistakes_of_a_file_come_together_in_the_order_of_their_lines(tmp_path: Path) -> None:
    text = (
        WHOLE.replace("title: my MLP", "titel: my MLP")
        .replace("default: 1024", "default: big")
        .replace("  repeats: 3\n", "")
    )
    text = (
        text.replace("choices: [fast, slow]", "choices: fast")
        .replace("[0-9.]+", "[0-9.+")
        .replace("train.py]", "trian.py]")
    )
    with pytest.raises(Faults) as caught:
        read_folder(folder_of(tmp_path / "mlp", text))
    keys = [str(error.where).rsplit(": ", 1)[1] for error in caught.value.errors]
    assert keys == [
        "title", "titel", "defaults.repeats", "options.width.default", "options.mode.choices", "payload.0", "log.patterns.0",
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["[]", "a", "7", "{}", "title: x"])
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(Faults):
        read_folder(folder_of(tmp_path / "mlp", text))


@pytest.mark.parametrize("name", frameworks())
def test_every_shipped_folder_is_without_a_fault(name: str) -> None:
    assert read_folder(frameworks()[name]).framework.name == name
