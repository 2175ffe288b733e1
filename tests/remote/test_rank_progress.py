"""What a rank reports of itself, as the supervisor reads it."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.judge import LIMIT_S
from tests.support.machine import old_interpreters, python_name

REMOTE = Path(__file__).parents[2] / "remote" / "trainers" / "common"
sys.path.insert(0, str(REMOTE))
rank_progress: Any = importlib.import_module("rank_progress")
stall: Any = importlib.import_module("noderun.stall")
stacks: Any = importlib.import_module("noderun.stacks")


@pytest.fixture
def reported(tmp_path: Path) -> Iterator[Any]:
    """The progress of rank 3 in a folder of ranks."""
    (tmp_path / "ranks").mkdir()
    made = rank_progress.Progress(str(tmp_path / "ranks" / "3.progress"))
    yield made
    faulthandler.unregister(rank_progress.STACKS_SIGNAL)
    made.stacks.close()


def test_the_supervisor_reads_what_a_rank_has_marked(reported: Any) -> None:
    before = time.monotonic()
    assert stall.read_progress(reported.path)["phase"] == "start"
    for step in range(1, 119):
        reported.mark(step, "input")
        reported.mark(step, "collective")
    read = stall.read_progress(reported.path)
    assert (read["step"], read["phase"], read["marks"]) == (118, "collective", 1 + 2 * 118)
    assert before <= read["begun"] <= read["t"] <= time.monotonic()
    assert read["marked"] == 0b101 and os.stat(reported.path).st_size == 72
    reported.mark(119, "evaluate")
    reported.declare_pauses()
    assert stall.read_progress(reported.path)["marked"] == 0b10010101
    Path(reported.path).write_bytes(
        Path(reported.path).read_bytes()[:64]
    )  # as a program that knows only the first 64 writes it
    assert "marked" not in stall.read_progress(reported.path)


def test_a_reader_never_sees_half_a_mark(tmp_path: Path) -> None:
    path = str(tmp_path / "3.progress")
    code = f"import sys; sys.path.insert(0, {str(REMOTE)!r})\nfrom rank_progress import Progress\n"
    code += f"own, step = Progress({path!r}), 0\n"
    code += "while True:\n    step += 1\n    own.mark(step, 'input' if step % 2 else 'collective')"
    writer = subprocess.Popen([sys.executable, "-c", code])
    try:
        counts: set[int] = set()
        until = time.monotonic() + LIMIT_S
        while len(counts) < 2000:
            assert time.monotonic() < until
            seen = stall.read_progress(path)
            if seen is not None and seen["step"]:
                assert seen["phase"] == ("input" if seen["step"] % 2 else "collective")
                assert seen["marks"] == seen["step"] + 1 and seen["begun"] == seen["t"]
                counts.add(seen["marks"])
    finally:
        writer.kill()
        writer.wait()


def test_without_a_place_nothing_is_written(tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(REMOTE)!r}); import rank_progress as r; r.mark(1, 'input'); r.declare_pauses()"
    code += "; import threading; assert threading.active_count() == 1"
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, env={})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["missing/3.progress", "a-file/3.progress"])
def test_a_place_that_cannot_be_written_to_stops_no_training(tmp_path: Path, path: str) -> None:
    (tmp_path / "a-file").write_text("")
    lost = rank_progress.Progress(str(tmp_path / path))
    lost.mark(1, "input")
    lost.declare_pauses()


def test_a_rank_answers_with_its_collectives_and_its_stacks(
    reported: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pending = {
        "collective_seq_id": 7,
        "profiling_name": "gloo:all_reduce",
        "process_group": ["0"],
        "retired": False,
    }
    entries = json.dumps({"entries": [pending]}).encode()
    monkeypatch.setattr(rank_progress, "collectives", lambda: entries)
    until = time.monotonic() + LIMIT_S
    while not (tmp_path / "ranks" / "3.ask").exists():
        assert time.monotonic() < until
    for _ in range(2):
        words: dict[str, Any] = {}
        while (
            "collectives" not in words
        ):  # a busy machine may take longer than a supervisor waits for an answer
            assert time.monotonic() < until, words
            (words,) = stacks.own_words(
                {3: stacks.Question(str(tmp_path), 3, os.getpid())}
            ).values()
        assert words["collectives"] == [
            {
                "group": "0",
                "number": 7,
                "name": "gloo:all_reduce",
                "state": "",
                "over": False,
                "sizes": "",
                "outputs": "",
                "types": "",
            }
        ]
        own = [
            line
            for line in words["python"]
            if line.endswith("in test_a_rank_answers_with_its_collectives_and_its_stacks")
        ]
        assert len(own) == 1 and own[0].startswith('  File "test_rank_progress.py", line '), words[
            "python"
        ]


BUSY = """
def call(depth):
    return 0 if depth == 0 else call(depth - 1) + sum(number for number in range(2))

while True:
    call(60)
"""
KEPT = """
import ctypes, os, time
while not os.path.exists(path + ".go"):
    time.sleep(0.01)
ctypes.PyDLL(None).sleep(3600)
"""
"""C code that keeps the interpreter while it waits, once it is told to."""


@contextmanager
def busy_rank(tmp_path: Path, python: str, does: str) -> Iterator[subprocess.Popen[bytes]]:
    """Have a rank 3 of an interpreter, which does that."""
    (tmp_path / "ranks").mkdir()
    path = str(tmp_path / "ranks" / "3.progress")
    code = f"import sys; sys.path.insert(0, {str(REMOTE)!r})\nfrom rank_progress import Progress\n"
    code += f"path = {path!r}\nown = Progress(path)\n"
    process = subprocess.Popen([python, "-c", code + does])
    try:
        until = time.monotonic() + LIMIT_S
        while not (tmp_path / "ranks" / "3.ask").exists():
            assert time.monotonic() < until and process.poll() is None
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("python", old_interpreters(), ids=python_name)
def test_a_rank_that_runs_python_survives_many_looks(tmp_path: Path, python: str) -> None:
    """A handler of another thread that reads its stack meanwhile crashes Python 3.12 after tens of
    looks, 3.13 after one.
    """
    with busy_rank(tmp_path, python, BUSY) as process:
        seen = 0
        for _ in range(60):
            (words,) = stacks.own_words(
                {3: stacks.Question(str(tmp_path), 3, process.pid)}
            ).values()
            assert process.poll() is None
            seen += any(line.endswith("in call") for line in words.get("python", ()))
        assert seen


def test_the_stack_comes_by_the_signal_where_c_code_keeps_the_interpreter(tmp_path: Path) -> None:
    with busy_rank(tmp_path, sys.executable, KEPT) as process:
        until = time.monotonic() + LIMIT_S

        def ask() -> dict[str, Any]:
            assert time.monotonic() < until and process.poll() is None
            return dict(stacks.own_words({3: stacks.Question(str(tmp_path), 3, process.pid)})[3])

        while "collectives" not in (words := ask()) and "python" not in words:
            continue
        Path(tmp_path / "ranks" / "3.progress.go").touch()
        while not ("unanswered" in (words := ask()) and "python" in words):
            continue
        assert any("<module>" in line for line in words["python"])
