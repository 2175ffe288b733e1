"""Logs as bytes: whole, cut, glued, coloured, interleaved, hostile."""

from __future__ import annotations

import doctest
import math
import mmap
import random
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import strictjson
from orchestrator.errors import ConfigError, DataError
from orchestrator.logs import patterns as logpattern
from orchestrator.logs import text as logtext
from orchestrator.logs.grammar import LogGrammar
from orchestrator.logs.metrics import Metric
from orchestrator.logs.parse import _MAX_SAMPLES, LINE_LIMIT, Parsed, _Collector, parse
from orchestrator.logs.patterns import columns, compiled
from orchestrator.logs.steps import VALUES, RankAggregate, StepSample
from orchestrator.plan import folders as library
from orchestrator.strictjson import strict_json
from tests.support.examples import examples
from tests.support.rendering import opened

OURS = LogGrammar(
    files=("rank-0.out",),
    patterns=(
        r"orch step=(?P<step>[0-9]+) t=(?P<timestamp>[0-9.]+) step_time_s=(?P<step_time_s>[0-9.]+) samples=(?P<samples>[0-9]+)",
    ),
    rank=r"orch rank=(?P<rank>[0-9]+) local_rank=[0-9]+ world_size=(?P<world_size>[0-9]+)",
    rank_files=("rank-*.out",),
    closing=r"orch done (?P<json>\{.*\})",
)
PYTORCH = LogGrammar(
    files=("*.out",),
    patterns=(r"Epoch: \[[0-9]+\]\[ *(?P<step>[0-9]+)/[0-9]+\]\tTime +(?P<step_time_s>[0-9.]+)",),
    scope="process",
)
TENSORFLOW = LogGrammar(
    files=("*.log",),
    patterns=(
        r"(?P<timestamp>[0-9:.]{8,15}) [0-9]+ [a-z_]+[.]py:[0-9]+\] TimeHistory: [0-9.]+ seconds, "
        r"(?P<samples_per_s>[0-9.]+) examples/second between steps [0-9]+ and (?P<step>[0-9]+)",
    ),
)
PADDLE = LogGrammar(
    files=("*.log",),
    patterns=(
        r"(?P<timestamp>[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:,]{12})-INFO: \[Pass [0-9]+, train batch (?P<step>[0-9]+)\] "
        r"[^\n]{0,200}elapse (?P<step_time_s>[0-9.]+) sec",
    ),
)
TENSORPACK = LogGrammar(
    files=("*.log",),
    patterns=(
        r"Epoch [0-9]+ \(global_step (?P<step>[0-9]+)\) finished",
        r"Throughput \(samples/sec\): (?P<samples_per_s>[0-9.]+)",
    ),
)
ONEFLOW = LogGrammar(
    files=("*.log",), patterns=(r"iter (?P<step>[0-9]+), [^\n]{0,200}samples/s: [0-9.]+ (?P<timestamp>[0-9.]+)",)
)
TF_CNN = LogGrammar(
    files=("*.log",), patterns=(r"(?P<step>[0-9]+)\timages/sec: (?P<samples_per_s>[0-9.]+) \+/-",), cumulative=True
)

LOG = (
    b"+ exec python train.py\n"
    b"orch rank=0 local_rank=0 world_size=2 node_rank=0 host=node1 pid=7 device=NVIDIA H200\n"
    b"orch step=0 t=100.000000 step_time_s=0 samples=0 loss=nan\n"
    b"orch step=1 t=100.500000 step_time_s=0.500000 samples=64 loss=6.9\n"
    b"\xff\xfe noise \x00 >>>Finished Test Case 1!<<<\n"
    b"orch step=2 t=101.000000 step_time_s=0.500000 samples=64 loss=6.8\n"
    b'orch done {"world_size": 2, "steps": 2}\n'
)


def steps(samples: tuple[StepSample, ...]) -> list[int]:
    return [sample.step for sample in samples]


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
    for log, grammar in ((LOG, OURS), (LOG.replace(b"\n", b"\r\n"), OURS), (INTERLEAVED[:1500], PYTORCH)):
        for cut in range(len(log) + 1):
            whole = max(log.rfind(b"\n", 0, cut), log.rfind(b"\r", 0, cut)) + 1
            cut_short, ended = parse(log[:cut], grammar), parse(log[:whole], grammar)
            assert replace(cut_short, said=cut_short.samples) == replace(ended, said=ended.samples)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.sampled_from([*LOG.splitlines(keepends=True), b"\xf0\x9f", b"\r", b"\x1b[3", b"[1,1]<stdout>:", b"\n"])),
    st.data(),
)
def test_a_cut_never_adds_a_sample(pieces: list[bytes], data: st.DataObject) -> None:
    log = b"".join(pieces)
    cut = data.draw(st.integers(0, len(log)))
    whole = max(log.rfind(b"\n", 0, cut), log.rfind(b"\r", 0, cut)) + 1
    assert parse(log[:cut], OURS).samples == parse(log[:whole], OURS).samples


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=400))
def test_no_bytes_make_it_raise(noise: bytes) -> None:
    parsed = parse(noise + b"\n" + LOG, OURS)
    assert steps(parsed.samples)[-3:] == [0, 1, 2]


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
            [StepSample(100, timestamp=86399.0, samples_per_s=5.0), StepSample(200, timestamp=86409.5, samples_per_s=5.0)],
        ),
        (
            "OneFlow with the time of day as a float",
            b"train: epoch 0, iter 20, loss: 7.1, top_1: 0.0, top_k: 0.0, samples/s: 1204.118 1597933942.9863544\n",
            ONEFLOW,
            [StepSample(20, timestamp=1597933942.9863544)],
        ),
        (
            "cumulative speeds of tf_cnn_benchmarks",
            b"Step\tImg/sec\ttotal_loss\n1\timages/sec: 1571.2 +/- 0.0 (jitter = 0.0)\t8.291\n" + b"-" * 64 + b"\n"
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
    log = line.format(31, "59", "902", 20) + line.replace("2020-08", "2020-09").format("01", "00", "002", 119)
    first, last = parse(log.encode(), PADDLE).samples
    assert first.timestamp is not None and last.timestamp is not None
    assert last.timestamp - first.timestamp == pytest.approx(86400 - 59.9)


# ------------------------------------------------------------------ ranks and attempts


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
    wanted = [pytest.approx(math.fsum(times[step] for times in RANK_TIMES) / 8) for step in range(14)]
    for series in (separate, interleaved.samples, appended.samples):
        assert steps(series) == list(range(14))
        assert [sample.step_time_s for sample in series] == wanted
    assert interleaved.warnings == ()
    assert appended.warnings == ("8 series of the same steps in one file were read as 8 ranks",)


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


def step_line(step: int, at: float) -> bytes:
    return f"orch step={step} t={at:.3f} step_time_s=0.5 samples=64 loss=1\n".encode()


@pytest.mark.parametrize(
    ("attempts", "taken"),
    [([57, 120], 1), ([120, 50], 0), ([120, 120], 1), ([3, 60, 120, 7], 2), ([0, 1, 120], 2)],
)
def test_of_several_attempts_the_last_complete_one_is_taken(attempts: list[int], taken: int) -> None:
    log = b"".join(step_line(s, 1000 * i + s) for i, last in enumerate(attempts) for s in range(last + 1))
    parsed = parse(log, OURS)
    assert steps(parsed.samples) == list(range(121))
    assert parsed.samples[1].timestamp == 1000 * taken + 1
    if sum(attempts) > 121:
        assert len(parsed.warnings) == 1 and "goes back" in parsed.warnings[0]


def test_ranks_that_print_the_global_rate_are_taken_once() -> None:
    log = b"".join(b"[1,%d]<stdout>:100\timages/sec: 1580.9 +/- 0.6 (jitter = 4.9)\t7.981\n" % rank for rank in (3, 0, 7))
    assert parse(log, TF_CNN).samples == (StepSample(100, samples_per_s=1580.9),)


def test_every_rank_line_is_reported_even_glued() -> None:
    log = b"orch rank=1 local_rank=0 world_size=4 host=aorch rank=2 local_rank=1 world_size=4 host=b\n"
    assert parse(log, OURS).ranks == ((1, 4), (2, 4))


# ------------------------------------------------------------------ blocks, columns and single lines

RULES = [OURS, PYTORCH, TENSORFLOW, PADDLE, TENSORPACK, ONEFLOW, TF_CNN, LogGrammar(("x",), (r"(?P<step>[0-9]+)",))]
RULES += [opened(name).framework.log for name in library.frameworks()]
SAMPLE_LOGS = [(path / "sample.log").read_bytes() for path in library.frameworks().values()]
SAMPLES = b"".join(SAMPLE_LOGS)
PIECES = [
    *(line for line in (SAMPLES + LOG).splitlines(keepends=True) if len(line) < 400),
    *(b"\n", b"\r", b"\r\n", b" ", b"\t", b"orch step=", b"step", b"12", b"0.5", b"orch done {}", b"12:00:01.5 "),
    *(b"\x1b[3", b"\x1b[32m", b"\x1b]0;t", b"\x07", b"\x1b", b"\x9b1m", b"\xc2\x9b1m", b"\xc2", b"\x00", b"\x7f"),
    *(b"images/sec: ", b"\xf0\x9f", b"\xe2\x96\x88", b"[1,1]<stdout>:", b"[1,0]<stdout>:", b"[p@1,2]<stderr>: ", b"]<std"),
    *(b"x" * 5000, b"y" * (LINE_LIMIT - 60)),
]


def in_words(parsed: Parsed) -> str:
    """As text, for nan is not equal to nan."""
    return repr(replace(parsed, said=parsed.samples))


def line_by_line(data: bytes, grammar: LogGrammar) -> Parsed:
    """The plain way: every line is decoded, cleaned and searched for every pattern, whatever literals it holds."""
    collector = _Collector(grammar)
    collector.patterns = [replace(reader, literal="") for reader in collector.patterns]
    collector.results = [replace(reader, literal="") for reader in collector.results]
    collector.rank = collector.rank and replace(collector.rank, literal="")
    collector.parts_line = collector.parts_line and replace(collector.parts_line, literal="")
    collector.closing_line = collector.closing_line and replace(collector.closing_line, literal="")
    last = max(data.rfind(b"\n"), data.rfind(b"\r"))
    collector.unended(data[last + 1 :])
    end = max(last, 0)
    for line in re.findall(rb"[^\r\n]+", data[:end]):
        text = line[:LINE_LIMIT].decode("utf-8", "replace")
        text = re.sub(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]", "", text)
        collector.line(re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", "", text), cut=len(line) > LINE_LIMIT)
    return collector.parsed()


@settings(max_examples=examples(400), deadline=None)
@given(st.sampled_from(RULES), st.lists(st.sampled_from(PIECES) | st.binary(max_size=6), max_size=60), st.data())
def test_blocks_say_what_their_lines_say_one_by_one(rules: LogGrammar, pieces: list[bytes], data: st.DataObject) -> None:
    log = b"".join(pieces)
    log = log[: data.draw(st.integers(0, len(log)))] + data.draw(st.sampled_from([b"", b"\n"]))
    assert in_words(parse(log, rules)) == in_words(line_by_line(log, rules))


@settings(max_examples=examples(100), deadline=None)
@given(st.sampled_from(RULES), st.randoms(use_true_random=False), st.lists(st.sampled_from(PIECES), max_size=3))
def test_long_logs_of_step_lines_say_the_same_in_blocks(rules: LogGrammar, chance: random.Random, odd: list[bytes]) -> None:
    sample = chance.choice(SAMPLE_LOGS).splitlines(keepends=True)
    lines = [line for line in sample if chance.random() < 0.3] * chance.randrange(1, 30)
    for piece in odd:
        lines.insert(chance.randrange(len(lines) + 1), piece)
    log = b"".join(lines)
    assert in_words(parse(log, rules)) == in_words(line_by_line(log, rules))


SEVERAL = LogGrammar(
    files=("x",),
    patterns=(
        r"step (?P<step>[0-9]+) begins",
        r"step (?P<step>[0-9]+) ends at (?P<timestamp>[0-9.:]+)(?=\s|$)",
        r"rate (?P<samples_per_s>[0-9.]+)/s",
        r"took (?P<step_time_s>[0-9.]+) s, clock (?P<timestamp>[0-9.:]+)",
    ),
)


EVENTS = ["step {} begins", "step {} ends at 12:00:01.5", "step {} ends at 7.5", "rate 2.5/s", "took 0.5 s, clock 23:59:59"]
ODD_EVENTS = ["step {} fails", "rate 2.5.1/s", "took 1 s, clock 25.5", "rate 2/s step {} begins", "step {} begins\x1b[0m", ""]


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["", "[1,0]<stdout>:", "[1,3]<stdout>:"]), st.sampled_from(EVENTS)), max_size=6),
    st.lists(st.tuples(st.integers(0, 1000), st.sampled_from([*EVENTS, *ODD_EVENTS]), st.integers(0, 2)), max_size=3),
    st.integers(1, 300),
)
def test_patterns_that_complete_each_other_say_in_blocks_what_they_say_line_by_line(
    round_of_lines: list[tuple[str, str]], odd: list[tuple[int, str, int]], rounds: int
) -> None:
    lines = [tag + event.format(step) for step in range(1, rounds + 1) for tag, event in round_of_lines]
    for at, event, back in odd:
        lines.insert(at, event.format(max(0, at // (len(round_of_lines) or 1) - back)))
    log = "".join(f"{line}\n" for line in lines).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logtext, "_BLOCK", 1)
        assert in_words(parse(log, SEVERAL)) == in_words(line_by_line(log, SEVERAL))


def test_columns_refuse_what_only_the_order_of_lines_tells() -> None:
    begins, _, rate, took = (compiled("x", text, ("step", *VALUES)) for text in SEVERAL.patterns)
    assert columns((begins, rate), "rate 1/s\nstep 1 begins\nrate 2/s") == (
        {"samples_per_s": "1"},
        {"step": ["1"], "samples_per_s": ["2"]},
    )
    for lines in (
        ["rate 1/s", "took 1 s, clock 2"],
        ["step 1 begins", "rate 1/s", "rate 2/s"],
        ["step 1 begins rate 1/s"],
    ):
        with pytest.raises(ValueError):
            columns((begins, rate, took), "\n".join(lines))


@pytest.mark.parametrize("between", [r"\s+", r"\s", r"[^0-9]+", r"\D+", r"[ \n]", r"\W", r"(?:\n|,)", "(?:\n|,)", "(?s:.)"])
def test_a_match_never_goes_on_in_the_next_line(between: str) -> None:
    grammar = LogGrammar(files=("x",), patterns=(rf"step=(?P<step>[0-9]+){between}t=(?P<timestamp>[0-9.]+)",))
    log = b"step=1\nt=1.5\nstep=2 t=2.5\nstep=3,t=3.5\n"
    assert in_words(parse(log, grammar)) == in_words(line_by_line(log, grammar))


def test_an_empty_line_says_nothing_to_a_pattern_that_matches_nothing() -> None:
    grammar = LogGrammar(files=("x",), patterns=("(?P<step>[0-9]*)",))
    assert parse(b"\n\n", grammar).warnings == line_by_line(b"\n\n", grammar).warnings == ()


def test_two_lines_of_a_step_are_one_sample_wherever_a_block_ends() -> None:
    lines = [f"step {step} begins\nrate {step}.5/s\n".encode() for step in range(1, 20_000)]
    log = b"rate 7.5/s\n" + b"".join(lines) + b"rate 8.5/s\n"
    parsed = parse(log, SEVERAL)
    assert parsed.samples == tuple(StepSample(step, samples_per_s=step + 0.5) for step in range(1, 20_000))
    assert len(parsed.warnings) == 2


def test_a_file_in_memory_and_one_that_is_mapped_say_the_same(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(LOG + b"x" * 10_000 + b"\n" + SAMPLES)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert in_words(parse(mapped, OURS)) == in_words(parse(path.read_bytes(), OURS))


def test_a_flood_of_steps_is_refused_and_not_kept() -> None:
    line = b"orch step=%d t=1.0 step_time_s=0.5 samples=64\n"
    log = b"".join(line % step for step in range(_MAX_SAMPLES))
    assert len(parse(log, OURS).samples) == _MAX_SAMPLES
    with pytest.raises(DataError, match="expected at most 400000 step lines in a file, got more"):
        parse(log + line % 0, OURS)


@settings(max_examples=examples(200), deadline=None)
@given(st.sampled_from([text for rules in RULES for text in (*rules.patterns, rules.rank, rules.closing) if text]), st.data())
def test_the_literal_of_a_pattern_is_in_each_of_its_matches(pattern: str, data: st.DataObject) -> None:
    reader = compiled("x", pattern, tuple(re.compile(pattern).groupindex))
    match = reader.pattern.search(data.draw(st.from_regex(reader.pattern)))
    assert match and reader.literal in match[0]


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        (r"^orch step=(?P<step>\d+) t=", "orch step="),
        (r"abc?(?P<step>x)", "ab"),
        (r"ab{3}c*(?P<step>x)de+?", "a"),
        (r"abc{,2}\[x\](?P<step>.)", "[x]"),
        (r"abc|(?P<step>x)", ""),
        (r"(?i)abc(?P<step>x)", ""),
        (r"\x41bc(?P<step>x)", ""),
        (r"(?P<step>x)\tstep\b\d\s", "step"),
        (r"(?P<step>abc(?:def))[a-z]e", "e"),
        (r"(?#abc)(?P<step>x)é", ""),
    ],
)
def test_a_literal_is_what_must_be_there(pattern: str, literal: str) -> None:
    assert compiled("x", pattern, ("step",)).literal == literal


@pytest.mark.parametrize("control", [b"\x00", b"\x1b[1m", b"\xc2\x9b1m", b"\x7f"])
def test_a_control_character_within_every_literal_hides_nothing(control: bytes) -> None:
    words = (b"or", b"ch st", b"ep=3 ", b"t=1.0 step_", b"time_s=0.5 sam", b"ples=64\n")
    assert steps(parse(control.join(words) + b"noise\n" * 50_000, OURS).samples) == [3]


def test_a_line_that_is_read_alone_after_all_does_not_add_a_day_twice() -> None:
    line = "{}.000000 1 a.py:1] TimeHistory: 1 seconds, {} examples/second between steps 0 and {}\n"
    log = line.format("23:59:59", "5.0", 100) + line.format("00:00:09", "5.0", 200) + line.format("00:00:19", "1.2.3", 300)
    assert [sample.timestamp for sample in parse(log.encode(), TENSORFLOW).samples] == [86399.0, 86409.0]


# ------------------------------------------------------------------ hostile and damaged


@pytest.mark.parametrize(
    ("closing", "why"),
    [
        (b"{}}", "byte 2"),
        (b"{3}", "byte 1"),
        (b'{"a": NaN}', "number NaN"),
        (b'{"a": 1e999}', "number 1e999"),
        (b'{"a": 1, "a": 2}', "'a' twice"),
        (b'{"a": ' + b"[" * 60 + b"]" * 60 + b"}", "50 levels"),
        (b'{"a": ' + b"[" * 20000 + b"]" * 20000 + b"}", "50 levels"),
        (b'{"a": ' + b"9" * 6000 + b"}", "thousands of digits"),
    ],
    ids=["braces", "no key", "nan", "infinite", "twice", "60 levels", "20000 levels", "digits"],
)
def test_a_damaged_closing_line_is_a_warning_with_its_reason(closing: bytes, why: str) -> None:
    parsed = parse(LOG[: LOG.rfind(b"orch done")] + b"orch done " + closing + b"\n", OURS)
    assert steps(parsed.samples) == [0, 1, 2]
    assert parsed.closing is None
    assert len(parsed.warnings) == 1 and why in parsed.warnings[0]


@pytest.mark.parametrize(
    "text",
    [b"", b"[1", b'{"a":Infinity}', b"\xff", b"nul", b'"\\ud8', b"[" * 100_000, b'{"a":{"b":1,"b":2}}'],
    ids=["empty", "cut", "infinite", "bytes", "no word", "half escape", "deep", "twice"],
)
def test_strict_json_says_where(text: bytes) -> None:
    with pytest.raises(DataError, match="^exit.json: expected JSON, got") as caught:
        strict_json(text, "exit.json")
    assert caught.value.kind == "result_invalid"


def test_strict_json_takes_fifty_levels_and_names_the_byte() -> None:
    assert strict_json("[" * 50 + "]" * 50, "x")
    with pytest.raises(DataError, match="at byte 6 "):
        strict_json('{"é" 1}'.encode(), "x")


def test_a_value_that_is_no_number_leaves_its_line_out_with_one_warning() -> None:
    log = b"".join(b"orch step=%d t=1.2.3 step_time_s=0.5 samples=64\n" % step for step in range(1000)) + step_line(7, 1.0)
    parsed = parse(log, OURS)
    assert steps(parsed.samples) == [7]
    assert len(parsed.warnings) == 1


def test_a_step_of_thousands_of_digits_is_no_step() -> None:
    assert parse(b"orch step=" + b"9" * 5000 + b" t=1 step_time_s=1 samples=1\n", OURS).samples == ()


@settings(max_examples=examples(300))
@given(
    st.integers(0, 70_000),
    st.integers(-2, 40),
    st.integers(0, 200),
    st.lists(
        st.tuples(st.integers(0, 199), st.sampled_from(["7", "007", "", "-1", "1.0", "1_0", " 1", "٣", "9" * 15, "9" * 16]))
    ),
)
def test_numbers_that_count_up_are_read_as_any_others(first: int, apart: int, count: int, odd: list[tuple[int, str]]) -> None:
    texts = [str(abs(first + apart * row)) for row in range(count)]
    for row, text in odd:
        texts[row : row + 1] = [text] * (row < count)
    if all(re.fullmatch("[0-9]{1,15}", text) for text in texts):
        assert logtext.wholes(texts) == [int(text) for text in texts]
    else:
        with pytest.raises(ValueError, match="whole numbers|invalid literal"):
            logtext.wholes(texts)


def test_digits_of_other_scripts_are_no_digits() -> None:
    loose = LogGrammar(files=("x",), patterns=(r"step=(?P<step>\d+) t=(?P<timestamp>\S+)",))
    assert parse("step=٣ t=1\nstep=3 t=2\n".encode(), loose).samples == (StepSample(3, timestamp=2.0),)


def test_a_number_at_the_cut_of_an_endless_line_is_not_taken() -> None:
    head = b"orch step=5 t=1.0 step_time_s=0.5 samples="
    log = b"x" * (LINE_LIMIT - len(head) - 2) + head + b"123456\n" + step_line(6, 2.0)
    assert steps(parse(log, OURS).samples) == [6]


@pytest.mark.parametrize(
    ("piece", "times"),
    [
        (b"x", 100_000_000),
        (b"orch step=1 ", 8_000_000),
        (b"\x1b[", 40_000_000),
        (b"orch step=1 t=" * 4000 + b"\n", 1700),
        (b"[1,1" * 15000 + b"\n", 1500),
        (b"\r\n", 50_000_000),
    ],
    ids=["no line end", "one line", "escapes", "long lines", "half tags", "line ends"],
)
def test_a_hundred_megabytes_of_nothing_do_not_stall(piece: bytes, times: int) -> None:
    data = piece * times + b"\n" * (times != 100_000_000)
    begin = time.monotonic()
    assert parse(data, OURS).samples == ()
    assert time.monotonic() - begin < 10


def test_the_caller_can_end_a_file_that_takes_too_long() -> None:
    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise DataError("too long", kind="result_invalid")

    with pytest.raises(DataError, match="too long"):
        parse(b"a\n" * 100_000, OURS, check)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"step=(?P<step>[0-9]+", "not a regular expression"),
        (r"step=(?P<stop>[0-9]+)", "got stop"),
        (r"step=[0-9]+", "got none"),
        (r"(?:[0-9]+ )*step=(?P<step>[0-9]+)", "a repeated group contains a repeat"),
        (r"(?:(?:a+)b)+(?P<step>[0-9]+)", "a repeated group contains a repeat"),
        (r"(?:a*){3,}(?P<step>[0-9]+)", "a repeated group contains a repeat"),
    ],
)
def test_a_pattern_that_cannot_be_used_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        parse(b"", LogGrammar(files=("x",), patterns=(pattern,)))
    assert caught.value.kind == "template_error"
    assert "log.patterns[0]" in str(caught.value)


@pytest.mark.parametrize(
    "pattern", [r"[(+*]+(?P<step>[0-9]+)", r"\(+(?P<step>[0-9]+(?:[.][0-9]+)?)", r"(?P<step>[0-9]{1,9})[]+]*"]
)
def test_a_plain_pattern_is_not_refused(pattern: str) -> None:
    assert parse(b"", LogGrammar(files=("x",), patterns=(pattern,))).samples == ()


# The package hands on the function of this name.
@pytest.mark.parametrize("module", [sys.modules[parse.__module__], logpattern, logtext, strictjson])
def test_the_examples_in_the_docstrings_hold(module: ModuleType) -> None:
    results = doctest.testmod(module)
    assert results.attempted and not results.failed


# ------------------------------------------------------------------ numbers and prefixes as programs and launchers print them


@pytest.mark.parametrize("escape", ["", "\x1b[32m"])
def test_thousands_and_suffixes_are_read_in_blocks_and_line_by_line(escape: str) -> None:
    """As torchtitan prints tokens/s, and nanotron."""
    pattern = r"step: +(?P<step>[0-9,]+) .*tps: (?P<samples_per_s>[0-9.,KM]+)"
    grammar = LogGrammar((), (pattern,), thousands=",", suffixes={"K": 1000, "M": 1000000})
    texts = ["5,762", "106K", "1.31M", "98.2"]
    log = "".join(f"[titan] step:  1,00{step} loss: 7.1 {escape}tps: {text}\n" for step, text in enumerate(texts, start=1))
    for read in (parse, line_by_line):
        parsed = read(log.encode(), grammar)
        assert [sample.samples_per_s for sample in parsed.samples] == [5762.0, 106e3, 1.31e6, 98.2]
        assert [sample.step for sample in parsed.samples] == [1001, 1002, 1003, 1004] and not parsed.misread


def test_a_decimal_comma_is_no_separator_and_is_named() -> None:
    grammar = LogGrammar((), (r"step (?P<step>[0-9]+) tps (?P<samples_per_s>\S+)",), thousands=",")
    assert parse(b"step 1 tps 57,62\n", grammar).misread == "samples_per_s '57,62'"


PREFIXES = {
    "horovodrun": (r"^\[(?P<rank>[0-9]+)\]<std(?:out|err)>:", "[{}]<stdout>:"),
    "torchrun": (r"^\[[a-z]+(?P<local_rank>[0-9]+)\]:", "[rank{}]:"),
    "srun": (r"^ *(?P<rank>[0-9]+): ", "{:>2}: "),
}


@pytest.mark.parametrize("launcher", PREFIXES)
def test_a_prefix_tells_the_lines_of_ranks_apart(launcher: str) -> None:
    prefix, printed = PREFIXES[launcher]
    grammar = LogGrammar(
        (),
        (r"^step (?P<step>[0-9]+) (?P<step_time_s>[0-9.]+) s$",),
        scope="process",
        readings=(r"^memory (?P<memory>[0-9]+)$",),
        prefix=prefix,
    )
    ranks = range(12)
    lines = [printed.format(rank) + f"step {step} {rank + step}.5 s" for step in (1, 2, 3) for rank in ranks]
    lines += [printed.format(rank) + f"memory {rank}" for rank in ranks] + ["step 1 of nothing"]
    for read in (parse, line_by_line):
        parsed = read("\n".join(["", *lines, ""]).encode(), grammar)
        assert [sample.step_time_s for sample in parsed.samples] == [6.0 + step for step in (1, 2, 3)]
        group = "local_rank" if launcher == "torchrun" else "rank"
        assert [(line[group], line["memory"]) for line in parsed.readings] == [(str(rank), str(rank)) for rank in ranks]


@pytest.mark.parametrize(
    ("prefix", "said"),
    [
        (r"^(?P<rank>[0-9]+)(?P<local_rank>[0-9]+): ", "got both"),
        (r"^\s*(?P<rank>[0-9]+): ", "end of a line"),
        (r"^(?P<rank>[0-9]+)", "plain characters"),
        (r"^(?P<task>[0-9]+): ", "rank, local_rank"),
    ],
)
def test_a_prefix_that_cannot_be_used_is_refused(prefix: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(b"", LogGrammar((), prefix=prefix))


def test_lines_of_steps_may_have_metrics() -> None:
    patterns = (
        r"iter (?P<step>[0-9]+): (?P<step_time_s>[0-9.]+) s, mfu (?:(?P<mfu>[0-9.]+)%|none) ",
        r"loss (?P<loss>[0-9.]+) tps (?P<tps>[0-9]+) ",
    )
    grammar = LogGrammar(("*",), patterns, counts_from=0, metrics=(Metric("mfu", "%"), Metric("tps", "tokens/s")))
    lines = [b"iter 0: 0.5 s, mfu none ", b"loss 2.5 tps 7 ", b"iter 1: 0.25 s, mfu 41.5% ", b"loss 2.4 tps 8 "]
    parsed = parse(b"\n".join([*lines, b""]), grammar)
    assert [(sample.step, sample.step_time_s, sample.loss) for sample in parsed.samples] == [(1, 0.5, 2.5), (2, 0.25, 2.4)]
    # A line without a step belongs to the step before it, as the program counts.
    assert [(line["step"], line.get("mfu"), line.get("tps")) for line in parsed.readings] == [
        ("0", None, None), ("0", None, "7"), ("1", "41.5", None), ("1", None, "8"),
    ]  # fmt: skip
    assert parsed.warnings == ()


def test_a_group_of_a_step_that_is_no_metric_is_refused() -> None:
    with pytest.raises(ConfigError, match="expected named groups from step, .*, mfu, got tps"):
        parse(b"", LogGrammar(("*",), (r"(?P<step>[0-9]+) (?P<tps>[0-9]+)",), metrics=(Metric("mfu", "%"),)))


@pytest.mark.parametrize("end", [b"", b"\x1b[0m"])
def test_an_unended_last_line_with_results_is_not_read_and_is_named(end: bytes) -> None:
    grammar = LogGrammar(files=("node.out",), patterns=(), readings=(r"^size=(?P<size>\S+) rate=(?P<rate>[0-9.]+)",))
    log = b"size=1 rate=100\nsize=2 rate=200\nsize=4 rate=90"
    parsed = parse(log + end, grammar)
    assert [line["size"] for line in parsed.readings] == ["1", "2"]
    assert parsed.warnings == ("the last line has no line end, may be cut, and was not read: size=4 rate=90",)
    assert parse(b"size=4 rate=90", grammar).warnings == parsed.warnings
    for ended in (log + b"0\n", log + b"0\r", log + b"0\n 99%|done", b""):
        assert parse(ended, grammar).warnings == ()
    assert len(parse(log + b"0\n", grammar).readings) == 3
