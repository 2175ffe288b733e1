"""The simulated trainer, run as a node runs it: real processes, a real ring, on loopback."""

from __future__ import annotations

import argparse
import shutil
import signal
import socket
import time
from itertools import pairwise
from pathlib import Path

import pytest

from tests.remote.simulated_ranks import SIMULATED, Ended, all_ended, ended, ring
from tests.support.ports import free_port
from tests.support.trainers import DONE_KEYS, closing, module, rank_lines, samples

FAST = ["--compute-ms", "5", "--gradient-mb", "0.01"]


@pytest.fixture(scope="module")
def four_ranks() -> list[Ended]:
    """A run of four ranks, 30 ms of compute and 2 MB of gradients a step."""
    return all_ended(
        4, ["--steps", "6", "--compute-ms", "30", "--gradient-mb", "2", "--batch-size", "8"]
    )


def test_every_simulated_rank_ends_well_and_says_who_it_is(four_ranks: list[Ended]) -> None:
    assert [(one.code, one.err) for one in four_ranks] == [(0, "")] * 4
    assert [rank_lines("simulated", one.out) for one in four_ranks] == [
        [(rank, 4)] for rank in range(4)
    ]


def test_only_rank_0_of_a_simulated_run_prints_steps(four_ranks: list[Ended]) -> None:
    assert [len(samples("simulated", one.out)) for one in four_ranks] == [7, 0, 0, 0]


def test_simulated_steps_last_at_least_as_long_as_their_compute(four_ranks: list[Ended]) -> None:
    first, *steps = samples("simulated", four_ranks[0].out)
    assert (first["step"], first["samples"], first["step_time_s"]) == (0, 0, 0.0)
    assert [step["step"] for step in steps] == [1, 2, 3, 4, 5, 6]
    assert all(step["step_time_s"] >= 0.030 and step["samples"] == 32 for step in steps)


def test_simulated_step_times_are_the_differences_of_the_clock(four_ranks: list[Ended]) -> None:
    for before, after in pairwise(samples("simulated", four_ranks[0].out)):
        assert after["timestamp"] - before["timestamp"] == pytest.approx(
            after["step_time_s"], abs=3e-6
        )


def test_the_ring_sends_every_byte_that_an_all_reduce_needs(four_ranks: list[Ended]) -> None:
    facts = closing("simulated", four_ranks[0].out)
    assert facts["gradient_bytes"] == 2_000_000
    assert facts["bytes_sent"] == [6 * 2 * 3 * 500_000] * 4


def test_the_last_line_of_a_simulated_run_is_complete(four_ranks: list[Ended]) -> None:
    facts = closing("simulated", four_ranks[0].out)
    assert set(facts) >= DONE_KEYS
    assert (facts["world_size"], facts["ranks"], facts["simulated"]) == (4, [0, 1, 2, 3], True)
    assert facts["devices"] == [{"name": "simulated", "count": 4}]
    assert facts["hosts"] == [socket.gethostname()]


def test_one_simulated_rank_needs_no_ring() -> None:
    (alone,) = all_ended(1, ["--steps", "2", *FAST])
    assert (alone.code, closing("simulated", alone.out)["bytes_sent"]) == (0, [0])


def test_more_ranks_than_gradients_still_add_up() -> None:
    """Chunks of no bytes at all: two floats on three ranks."""
    assert [
        one.code
        for one in all_ended(3, ["--steps", "2", "--compute-ms", "0", "--gradient-mb", "0.000008"])
    ] == [0, 0, 0]


def test_a_wrong_reduction_is_an_error(tmp_path: Path) -> None:
    for name in (
        "train_simulated",
        "simulated_rendezvous",
        "simulated_ring",
        "rank_parts",
        "rank_progress",
        "trainer",
    ):
        shutil.copy(SIMULATED.with_name(f"{name}.py"), tmp_path)
    forgetful = tmp_path / "simulated_ring.py"
    source = forgetful.read_text()
    assert source.count("map(float.__add__, own, received)") == 1
    forgetful.write_text(source.replace("map(float.__add__, own, received)", "received"))
    ranks = all_ended(
        2, ["--steps", "2", *FAST], trainers=[SIMULATED, tmp_path / "train_simulated.py"]
    )
    assert any("wrong sum: chunk" in one.err for one in ranks)
    assert all(one.code == 1 for one in ranks)


def test_half_types_move_half_the_bytes() -> None:
    trainer = module(SIMULATED)
    sizes = {
        dtype: trainer.gradient_bytes(
            argparse.Namespace(model="resnet50", dtype=dtype, gradient_mb=0.0)
        )
        for dtype in ("fp32", "tf32", "fp16", "bf16")
    }
    assert sizes == {
        "fp32": 102_228_128,
        "tf32": 102_228_128,
        "fp16": 51_114_064,
        "bf16": 51_114_064,
    }


@pytest.mark.parametrize(
    ("mode", "code", "text"),
    [("exit3", 3, ""), ("exit0", 0, ""), ("sigkill", -9, ""), ("oom-print", 1, "out of memory")],
)
def test_neighbours_name_the_rank_that_left(mode: str, code: int, text: str) -> None:
    fault = ["--fail-at-step", "3", "--fail-rank", "1", "--fail-mode", mode]
    first, failed, last = all_ended(3, ["--steps", "9", *FAST, *fault])
    assert failed.code == code
    assert text in failed.err
    assert last.code == 1
    assert last.err.startswith(
        f"rank 2: peer rank 1 ({socket.gethostname()}) closed the connection"
    )
    assert first.code == 1
    assert first.err.startswith("rank 0: peer rank ")
    assert [step["step"] for step in samples("simulated", first.out)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("mode", "signals"), [("hang", [signal.SIGTERM]), ("deaf", [signal.SIGTERM, signal.SIGKILL])]
)
def test_neighbours_give_up_on_a_rank_that_says_nothing(
    mode: str, signals: list[signal.Signals]
) -> None:
    fault = ["--fail-at-step", "2", "--fail-rank", "1", "--fail-mode", mode, "--timeout-s", "2"]
    with ring(2, ["--steps", "9", *FAST, *fault]) as (patient, silent):
        gave_up = ended(patient)
        assert gave_up.code == 1
        assert gave_up.err == f"rank 0: peer rank 1 ({socket.gethostname()}) sent nothing for 2 s\n"
        for number in signals:
            assert silent.poll() is None, f"gone before {number.name}"
            silent.send_signal(number)
            time.sleep(0.3)
        assert ended(silent).code == -signals[-1]


def test_rank_0_names_the_ranks_that_never_came() -> None:
    (alone,) = all_ended(3, ["--timeout-s", "0.5"], ranks=[0])
    assert alone == Ended(1, "", "rank 0: rendezvous: expected 3 ranks, 1 came. missing: 1, 2\n")


def test_a_rank_without_a_master_says_where_it_looked() -> None:
    port = free_port()
    (alone,) = all_ended(2, ["--timeout-s", "0.5"], ranks=[1], port=port)
    assert (alone.code, alone.out) == (1, "")
    assert (
        alone.err
        == f"rank 1: rank 0 at 127.0.0.1 port {port} cannot be reached (Connection refused)\n"
    )


def test_a_rank_of_another_run_ends_the_rendezvous() -> None:
    port = free_port()
    with ring(2, FAST, ranks=[0], port=port) as (first,), ring(3, FAST, ranks=[2], port=port):
        expected = f"rank 0: rendezvous: expected each of 2 ranks once, got rank 2 of 3 ({socket.gethostname()})\n"
        assert ended(first) == Ended(1, "", expected)


def test_a_stranger_at_the_rendezvous_is_ignored() -> None:
    port, arguments = free_port(), ["--steps", "2", *FAST]
    with ring(2, arguments, ranks=[0], port=port) as (first,), socket.socket() as stranger:
        for _ in range(400):
            if stranger.connect_ex(("127.0.0.1", port)) == 0:
                break
            time.sleep(0.05)
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        with ring(2, arguments, ranks=[1], port=port) as (second,):
            assert [ended(process).code for process in (first, second)] == [0, 0]
