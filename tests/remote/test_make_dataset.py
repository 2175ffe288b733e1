"""The program that makes a small data set."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "remote" / "make_dataset.py"


def test_of_nodes_that_share_a_directory_one_makes_the_data_set_and_the_others_use_it(tmp_path: Path) -> None:
    argv = [sys.executable, "-I", "-S", str(PROGRAM), "--dir", str(tmp_path / "data"), "--images", "32"]
    processes = [subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(4)]
    answers = [process.communicate(timeout=60) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, answers
    made = [json.loads(out) for out, _ in answers]
    assert sorted(answer["made"] for answer in made) == [False, False, False, True]
    assert len({answer["sha256"] for answer in made}) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
