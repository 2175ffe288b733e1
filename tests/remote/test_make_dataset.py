"""The program that makes a small data set."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.judge import LIMIT_S

PROGRAM = Path(__file__).parents[2] / "remote" / "trainers" / "common" / "make_dataset.py"


def test_of_nodes_that_share_a_directory_one_makes_the_data_set_and_the_others_use_it(
    tmp_path: Path,
) -> None:
    argv = [
        sys.executable,
        "-I",
        "-S",
        str(PROGRAM),
        "--dir",
        str(tmp_path / "data"),
        "--images",
        "32",
    ]
    processes = [
        subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)
    ]
    answers = [process.communicate(timeout=LIMIT_S) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, answers
    made = [json.loads(out) for out, _ in answers]
    assert sorted(answer["made"] for answer in made) == [False, False, False, True]
    assert len({answer["sha256"] for answer in made}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda file: file.unlink(),
            "000001.jpg: expected the data set of dataset.json, found none; remove",
        ),
        (
            lambda file: file.write_bytes(b"?" + file.read_bytes()[1:]),
            "its files differ; remove them to make it again",
        ),
    ],
)
def test_a_damaged_data_set_is_not_taken_for_made(
    tmp_path: Path, damage: Callable[[Path], None], said: str
) -> None:
    data = tmp_path / "data"
    argv = [
        sys.executable,
        "-I",
        "-S",
        str(PROGRAM),
        "--dir",
        str(data),
        "--images",
        "4",
        "--size",
        "32",
    ]
    assert [json.loads(subprocess.check_output(argv))["made"] for _ in range(2)] == [True, False]
    damage(data / "train/class0001/000001.jpg")
    again = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert again.returncode == 1 and said in again.stderr and "Traceback" not in again.stderr, again
