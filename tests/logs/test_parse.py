"""Logs as bytes: whole, cut, glued, coloured, of one rank or of several, of one attempt or of
several.
"""

from __future__ import annotations

import doctest
import math
import random
import sys
from dataclasses import replace
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import strictjson
from orchestrator.logs import patterns as logpattern
from orchestrator.logs import text as logtext
from orchestrator.logs.grammar import LogGrammar
from orchestrator.logs.parse import parse
from orchestrator.logs.steps import RankAggregate, StepSample
from tests.logs.programs import (
    LOG,
    ONEFLOW,
    OURS,
    PADDLE,
    PYTORCH,
    TENSORFLOW,
    TENSORPACK,
    TF_CNN,
    step_line,
    steps,
)
from tests.support.examples import examples


def test_our_own_log_is_understood_whole() -> None:
    parsed = parse(LOG, OURS)
    assert parsed.samples == (
        StepSample(0, timestamp=100.0, step_time_s=0.0, samples=0),
        StepSample(1, timestamp=100.5, step_time_s=0.5, samples=64),
        StepSample(2, timestamp=101.0, step_time_s=0.5, samples=64),
    )
    assert parsed.ranks == ((0, 2),)
    assert parsed.closing == {"world_size": 2, "steps": 2}
    assert parsed.warnings == ()


def test_a_log_cut_at_any_byte_says_what_its_whole_lines_say() -> None:
    for log, grammar in (
        (LOG, OURS),
        (LOG.replace(b"\n", b"\r\n"), OURS),
        (INTERLEAVED[:1500], PYTORCH),
    ):
        for cut in range(len(log) + 1):
            whole = max(log.rfind(b"\n", 0, cut), log.rfind(b"\r", 0, cut)) + 1
            cut_short, ended = parse(log[:cut], grammar), parse(log[:whole], grammar)
            assert replace(cut_short, said=cut_short.samples) == replace(ended, said=ended.samples)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                *LOG.splitlines(keepends=True),
                b"\xf0\x9f",
                b"\r",
                b"\x1b[3",
                b"[1,1]<stdout>:",
                b"\n",
            ]
        )
    ),
    st.data(),
)
def test_a_cut_never_adds_a_sample(pieces: list[bytes], data: st.DataObject) -> None:
    log = b"".join(pieces)
    cut = data.draw(st.integers(0, len(log)))
    whole = max(log.rfind(b"\n", 0, cut), log.rfind(b"\r", 0, cut)) + 1
    assert parse(log[:cut], OURS).samples == parse(log[:whole], OURS).samples


@pytest.mark.parametrize(
    ("name", "log", "grammar", "expected"),
    [
        (
            "one line of TensorFlow",
            b"I0823 15:04:46.771002 140213456789248 keras_utils.py:145] TimeHistory: 41.65 seconds, 2458.58 examples/second "
            b"between steps 100 and 200\n",
            TENSORFLOW,
            [StepSample(200, timestamp=54286.771002, samples_per_s=2458.58)],
        ),
        (
            "clock without a date over midnight",
            b"23:59:59.000000 1 a.py:1] TimeHistory: 1 seconds, 5.0 examples/second between steps 0 and 100\n"
            b"00:00:09.500000 1 a.py:1] TimeHistory: 1 seconds, 5.0 examples/second between steps 100 and 200\n",
            TENSORFLOW,
            [
                StepSample(100, timestamp=86399.0, samples_per_s=5.0),
                StepSample(200, timestamp=86409.5, samples_per_s=5.0),
            ],
        ),
        (
            "OneFlow with the time of day as a float",
            b"train: epoch 0, iter 20, loss: 7.1, top_1: 0.0, top_k: 0.0, samples/s: 1204.118 1597933942.9863544\n",
            ONEFLOW,
            [StepSample(20, timestamp=1597933942.9863544)],
        ),
        (
            "cumulative speeds of tf_cnn_benchmarks",
            b"Step\tImg/sec\ttotal_loss\n1\timages/sec: 1571.2 +/- 0.0 (jitter = 0.0)\t8.291\n"
            + b"-" * 64
            + b"\n"
            b"total images/sec: 1580.58\n",
            TF_CNN,
            [StepSample(1, samples_per_s=1571.2)],
        ),
        (
            "colour, carriage returns, and a speed on the line after its step",
            b"  0%|  |0/50[00:00<?]\r100%|##|50/50[00:09<00:00, 5.56it/s]\r\n"
            b"\x1b[32m[0823 15:04:05 @base.py:282]\x1b[0m Epoch 2 (global_step 100) finished, time:9 seconds.\n"
            b"\x1b[32m[0823 15:04:05 @monitor.py:476]\x1b[0m Throughput (samples/sec): \x1b[1m2844.1\x1b[0m\n",
            TENSORPACK,
            [StepSample(100, samples_per_s=2844.1)],
        ),
        (
            "two ranks glued on one line",
            b"orch step=1 t=1.5 step_time_s=0.5 samples=64[1,1]<stdout>:orch step=1 t=9.9 step_time_s=0.7 samples=64\n"
            b"[1,1]<stdout>:\n",
            OURS,
            [StepSample(1, timestamp=1.5, step_time_s=0.5, samples=64)],
        ),
        (
            "tags of a newer mpirun",
            b"[prterun-node-7@1,0]<stdout>: orch step=1 t=1.5 step_time_s=0.5 samples=64\n",
            OURS,
            [StepSample(1, timestamp=1.5, step_time_s=0.5, samples=64)],
        ),
    ],
)
def test_real_lines(name: str, log: bytes, grammar: LogGrammar, expected: list[StepSample]) -> None:
    assert list(parse(log, grammar).samples) == expected, name


def test_dated_clock_differences_are_seconds() -> None:
    line = "2020-08-{} 21:10:{},{}-INFO: [Pass 0, train batch {}] \tloss 7.0, elapse 0.39 sec\n"
    log = line.format(31, "59", "902", 20) + line.replace("2020-08", "2020-09").format(
        "01", "00", "002", 119
    )
    first, last = parse(log.encode(), PADDLE).samples
    assert first.timestamp is not None and last.timestamp is not None
    assert last.timestamp - first.timestamp == pytest.approx(86400 - 59.9)


def epoch_line(step: int, seconds: float) -> bytes:
    return f"Epoch: [0][{step:2d}/53]\tTime {seconds:6.3f} (12.054)\tData  0.001 ( 0.001)\tLoss 6.98e+00 (6.98e+00)\n".encode()


RANK_TIMES = [[0.4 + 0.01 * rank + 0.001 * step for step in range(14)] for rank in range(8)]
APPENDED = b"".join(b"Use GPU: %d for training\n" % rank for rank in range(8)) + b"".join(
    epoch_line(step, seconds) for times in RANK_TIMES for step, seconds in enumerate(times)
)


def _interleaved() -> bytes:
    """Eight ranks in one file, in any order within a step, a fast rank one step ahead now and then."""
    order = [
        (step + (0.9 if random.Random(step * 8 + rank).random() < 0.2 else 0.0), rank, step)
        for step in range(14)
        for rank in range(8)
    ]
    return b"".join(epoch_line(step, RANK_TIMES[rank][step]) for _, rank, step in sorted(order))


INTERLEAVED = _interleaved()


def test_interleaved_appended_and_separate_ranks_give_the_same_series() -> None:
    aggregate = RankAggregate()
    for times in RANK_TIMES:
        said = parse(b"".join(epoch_line(s, t) for s, t in enumerate(times)), PYTORCH).said
        assert isinstance(said, RankAggregate)
        aggregate.merge(said)
    separate = aggregate.samples()
    interleaved = parse(INTERLEAVED, PYTORCH)
    appended = parse(APPENDED, PYTORCH)
    wanted = [
        pytest.approx(math.fsum(times[step] for times in RANK_TIMES) / 8) for step in range(14)
    ]
    for series in (separate, interleaved.samples, appended.samples):
        assert steps(series) == list(range(14))
        assert [sample.step_time_s for sample in series] == wanted
    assert interleaved.warnings == ()
    assert appended.warnings == ("8 series of the same steps in one file were read as 8 ranks",)


def test_series_that_differ_in_speed_are_attempts_and_no_ranks() -> None:
    log = b"".join(epoch_line(step, time) for time in (0.5, 1.0) for step in range(14))
    parsed = parse(log, PYTORCH)

    assert {sample.step_time_s for sample in parsed.samples} == {1.0}
    assert "goes back once" in parsed.warnings[0]


def test_two_digits_before_the_point_are_read() -> None:
    assert parse(epoch_line(0, 12.054), PYTORCH).samples[0].step_time_s == 12.054


def test_a_rank_that_is_cut_takes_its_steps_with_it() -> None:
    aggregate = RankAggregate()
    for count in (10, 10, 9):
        aggregate.add(list(range(count)), {"step_time_s": [1.0] * count})
    assert steps(aggregate.samples()) == list(range(9))


def test_rates_of_ranks_are_combined_by_time() -> None:
    aggregate = RankAggregate()
    for rate in (100.0, 300.0):
        aggregate.add([1], {"samples_per_s": [rate]})
    assert aggregate.samples()[0].samples_per_s == pytest.approx(150)


@pytest.mark.parametrize(
    ("attempts", "taken"),
    [([57, 120], 1), ([120, 50], 0), ([120, 120], 1), ([3, 60, 120, 7], 2), ([0, 1, 120], 2)],
)
def test_of_several_attempts_the_last_complete_one_is_taken(
    attempts: list[int], taken: int
) -> None:
    log = b"".join(
        step_line(s, 1000 * i + s) for i, last in enumerate(attempts) for s in range(last + 1)
    )
    parsed = parse(log, OURS)
    assert steps(parsed.samples) == list(range(121))
    assert parsed.samples[1].timestamp == 1000 * taken + 1
    if sum(attempts) > 121:
        assert len(parsed.warnings) == 1 and "goes back" in parsed.warnings[0]


def test_ranks_that_print_the_global_rate_are_taken_once() -> None:
    log = b"".join(
        b"[1,%d]<stdout>:100\timages/sec: 1580.9 +/- 0.6 (jitter = 4.9)\t7.981\n" % rank
        for rank in (3, 0, 7)
    )
    assert parse(log, TF_CNN).samples == (StepSample(100, samples_per_s=1580.9),)


def test_every_rank_line_is_reported_even_glued() -> None:
    log = b"orch rank=1 local_rank=0 world_size=4 host=aorch rank=2 local_rank=1 world_size=4 host=b\n"
    assert parse(log, OURS).ranks == ((1, 4), (2, 4))


# The package hands on the function of this name.
@pytest.mark.parametrize("module", [sys.modules[parse.__module__], logpattern, logtext, strictjson])
def test_the_examples_in_the_docstrings_hold(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.attempted and not results.failed
