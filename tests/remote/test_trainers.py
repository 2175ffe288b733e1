"""What trainers share: the file that travels with each of them, their sample logs and their flags."""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

from orchestrator.logs.failures import diagnose
from tests.support.trainers import (
    DONE_KEYS,
    FLAT,
    PYTORCH,
    ROOT,
    SHARED,
    closing,
    flags,
    module,
    rank_lines,
    samples,
)


@pytest.fixture(scope="module")
def shared() -> ModuleType:
    """What trainers share."""
    return module(SHARED)


def test_a_rank_is_told_again_what_it_said(shared: ModuleType) -> None:
    facts = {"rank": 3, "host": "größe", "device": 'a "GPU"', "memory_bytes": 1 << 40}
    values = shared.pack_facts(facts)
    # Collectives of some frameworks carry numbers with a point.
    assert (
        len(values) == 1024
        and shared.unpack_facts(values) == shared.unpack_facts(map(float, values)) == facts
    )
    with pytest.raises(ValueError, match="facts of a rank: expected 1024 bytes at most, got 10"):
        shared.pack_facts({"host": "h" * 1020})


def test_memory_is_that_of_a_rank_and_not_of_what_started_it() -> None:
    program = "import trainer; block = bytearray(b'x') * (96 << 20); del block; print(trainer.resident_bytes() >> 20)"
    large = bytearray(b"x") * (300 << 20)
    own = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(SHARED.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(large) == 300 << 20 and 96 < int(own.stdout) < 200


def test_ranks_are_counted(shared: ModuleType) -> None:
    shared.check_ranks([6, 4], 4)
    shared.check_ranks([6, 4], 4, group=4)
    with pytest.raises(
        RuntimeError, match=r"ranks: expected sum and count \[6, 4\], got \[5, 4\]$"
    ):
        shared.check_ranks([5, 4], 4)
    with pytest.raises(RuntimeError, match=r"got \[6, 4\] in a group of 8$"):
        shared.check_ranks([6, 4], 4, group=8)


def test_a_device_that_adds_nothing_up_is_one_that_the_program_was_not_built_for(
    shared: ModuleType,
) -> None:
    shared.check_ones(1000.0, 1000)
    with pytest.raises(RuntimeError, match=r"expected 1000 ones .* got 0: ") as refusal:
        shared.check_ones(0.0, 1000)
    failure = diagnose(f"RuntimeError: {refusal.value}")
    assert failure and failure.kind == "no_kernel_image"


def test_the_last_line_tells_what_was_asked_said_and_found(shared: ModuleType) -> None:
    asked = argparse.Namespace(batch_size=2, data_dir="true", compile=True, xla=False)
    ranks = [
        {"rank": rank, "host": host, "device": "d", "memory_bytes": rank}
        for rank, host in ((0, "b"), (1, "b"), (2, "a"))
    ]
    facts = shared.of_all(asked, ranks, {"backend": "gloo"})
    assert facts == {
        **{
            "batch_size": 2,
            "data_dir": "true",
            "compile": True,
            "xla": False,
            "backend": "gloo",
            "simulated": False,
        },
        **{
            "world_size": 3,
            "ranks": [0, 1, 2],
            "hosts": ["b", "a"],
            "max_memory_bytes": 2,
        },
        "devices": [{"name": "d", "count": 3}],
    }


def test_the_wait_for_images_is_the_time_from_a_step_to_the_begin_of_the_next(
    shared: ModuleType,
) -> None:
    clock = shared.HostClock()
    clock.start()
    time.sleep(0.05)
    clock.begin()
    (fed,) = clock.mark(1, 0.5)
    time.sleep(0.02)
    (unasked,) = clock.mark(2, 0.5)
    assert 0.05 <= fed.input_wait_s <= fed.seconds
    assert unasked.seconds >= 0.02 and unasked.input_wait_s == 0.0


def test_of_computing_the_clock_and_the_processor_time_are_told_apart(shared: ModuleType) -> None:
    clock = shared.HostClock()
    clock.start()
    clock.begin()
    time.sleep(0.05)
    ended = time.process_time() + 0.02
    while time.process_time() < ended:
        pass
    clock.stamp("forward")
    (step,) = clock.mark(1, 0.5)
    assert 0.02 <= step.compute_cpu_s <= step.compute_s - 0.04
    (unstamped,) = clock.mark(2, 0.5)
    assert (unstamped.compute_s, unstamped.compute_cpu_s) == (None, None)


def test_a_step_after_which_the_loss_scale_is_lower_was_skipped(
    shared: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = shared.HostClock(512.0)
    clock.start()
    shared.say_start(1.0, skipped=0)
    for number, scale in enumerate((256.0, 128.0, 128.0, 256.0), start=1):
        shared.say_step(*clock.mark(number, 2.5, scale), 4)
    lines = capsys.readouterr().out.splitlines()
    assert [step["skipped"] for step in samples("pytorch", "\n".join(lines))] == [0, 1, 1, 0, 0]
    shared.say_step(*clock.mark(5, 2.5), 4)
    assert capsys.readouterr().out.endswith(" loss=2.5\n")  # a trainer that does not tell


def test_the_search_for_the_largest_size_doubles_and_then_halves(shared: ModuleType) -> None:
    tried: list[int] = []

    def fits(size: int) -> bool:
        tried.append(size)
        return size <= 300

    # 256 fits and 512 does not; in between 384, 320, 288, 304. From 288 to 304 is less than a
    # sixteenth.
    assert shared.largest(fits, 128, 4096) == 288
    assert tried == [128, 256, 512, 384, 320, 288, 304]
    assert shared.largest(fits, 128, 280) == 272
    assert shared.largest(fits, 4096, 64) == 64
    assert shared.largest(lambda _: False, 128, 4096) == 0


@pytest.mark.parametrize("first", [1, 2, 24, 128, 1000])
def test_the_largest_size_fits_and_a_tenth_more_does_not(shared: ModuleType, first: int) -> None:
    for room in range(1, 1200, 7):
        for most in (room - 1, room + 1, 4000):
            if most < 1:
                continue
            found = shared.largest(lambda size, room=room: size <= room, first, most)
            assert found <= min(room, most) <= max(found + 8, found * 1.1), (room, most)


@pytest.mark.parametrize("framework", ["pytorch", "simulated"])
def test_the_sample_log_holds_the_sample_values(framework: str) -> None:
    folder = ROOT / "templates" / framework
    text = (folder / "sample.log").read_text()
    assert samples(framework, text) == json.loads((folder / "sample.json").read_text())
    assert rank_lines(framework, text) == [(0, 2)]
    assert set(closing(framework, text)) >= DONE_KEYS


@pytest.mark.parametrize(
    "path",
    [PYTORCH, SHARED, *sorted(PYTORCH.parent.glob("torch_*.py"))],
    ids=lambda path: path.name,
)
def test_trainers_are_written_in_the_oldest_python_they_promise(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


@pytest.mark.parametrize(
    "script",
    [
        path
        for path in sorted((ROOT / "templates").glob("*/*.sh.j2"))
        if any(f'payload["{file.name}"]' in path.read_text() for file in FLAT.iterdir())
    ],
    ids=lambda path: path.parent.name,
)
def test_a_launch_script_passes_every_flag_of_its_trainer_and_no_other(script: Path) -> None:
    (name, command), *_ = re.findall(r'payload\["(\w+\.py)"\](.*)', script.read_text(), re.DOTALL)
    unused = {"--threads"} if name == "host_device.py" else set()  # of a CPU
    assert set(re.findall(r"--[a-z][a-z-]*", command)) == flags(FLAT / name) - unused
