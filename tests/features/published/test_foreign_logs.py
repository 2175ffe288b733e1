"""The published rule of each system on whole and on faulty logs that this tool did not write."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from orchestrator.errors import DataError
from orchestrator.features.published.rules import rule_of, rules_of
from orchestrator.features.published.run_size import Case
from orchestrator.features.published.self_consistency import check_epoch_length
from tests.support import systemlogs
from tests.support.published_trees import C8, FRAMEWORKS

RULES = {
    name: rule for framework in FRAMEWORKS.values() for name, rule in rules_of(framework).items()
}
SPEED = {
    "tensorflow_official": 2458.74,
    "paddle_models": 2617.84,
    "oneflow": 2942.32,
    "pytorch_examples": 2244.24,
}
SPEED |= {"fleetx": 1888.2, "tensorpack": 1612.0, "tf_cnn_benchmarks": 1580.58}
SYSTEMS = [pytest.param(name, id=name) for name in SPEED]


def rule(name: str) -> Callable[[bytes, Case], float]:
    return lambda log, case: rule_of(FRAMEWORKS[name]).speed(log, case).samples_per_s


def written(name: str) -> bytes:
    return systemlogs.WRITERS[name](SPEED[name], C8)


def refused(name: str, log: bytes, case: Case = C8) -> str:
    with pytest.raises(DataError) as caught:
        rule(name)(log, case)
    assert caught.value.kind == "result_invalid"
    return str(caught.value)


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_published_window_gives_the_speed(name: str) -> None:
    assert rule(name)(written(name), C8) == pytest.approx(SPEED[name], abs=0.005)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_log_cut_anywhere_gives_what_its_whole_lines_give(name: str) -> None:
    log = written(name)
    whole = [match.end() for match in re.finditer(rb"[\r\n]", log)]

    def outcome(data: bytes) -> str:
        try:
            return repr(rule(name)(data, C8))
        except DataError as error:
            return str(error)

    spots = random.Random(3)
    for cut in [*(spots.randrange(len(log)) for _ in range(120)), *range(len(log) - 40, len(log))]:
        lines = max((end for end in whole if end <= cut), default=0)
        assert outcome(log[:cut]) == outcome(log[:lines])


@pytest.mark.parametrize("name", SYSTEMS)
def test_too_short_a_log_is_an_error_and_never_a_speed(name: str) -> None:
    log = written(name)
    for share in (0, 0.3, 0.7):
        assert "expected" in refused(name, log[: int(len(log) * share)])


@pytest.mark.parametrize(
    "name", [name for name in SPEED if name not in ("pytorch_examples", "tf_cnn_benchmarks")]
)
def test_a_second_run_in_the_file_is_told_and_the_last_whole_one_counts(name: str) -> None:
    slower = systemlogs.WRITERS[name](SPEED[name] / 2 if name != "paddle_models" else 1352.04, C8)
    found = rule_of(FRAMEWORKS[name]).speed(slower + written(name), C8)
    assert found.samples_per_s == pytest.approx(SPEED[name], abs=0.005)
    assert found.warnings == (
        "the step goes back in the log, 1 times: the last complete run counts",
    )
    broken_off = written(name) + slower[: len(slower) * 2 // 3]
    assert rule(name)(broken_off, C8) == pytest.approx(SPEED[name], abs=0.005)


@pytest.mark.parametrize("name", ["pytorch_examples", "tf_cnn_benchmarks"])
def test_a_second_run_in_the_file_is_refused_where_it_cannot_be_told_apart(name: str) -> None:
    slower = systemlogs.WRITERS[name](2185.75, C8)
    assert "several runs" in refused(name, slower + written(name))


@pytest.mark.parametrize("name", SYSTEMS)
def test_colour_and_rank_tags_and_carriage_returns_do_no_harm(name: str) -> None:
    lines = written(name).splitlines(keepends=True)
    dressed = b"".join(
        b"[1,0]<stdout>:\x1b[32m" + line.rstrip(b"\r\n") + b"\x1b[0m\r\n" for line in lines
    )
    assert rule(name)(dressed, C8) == pytest.approx(SPEED[name], abs=0.005)


@pytest.mark.parametrize("first", [0, 1])
def test_a_run_of_the_usual_length_on_one_gpu_has_the_published_number(first: int) -> None:
    """Its rule drops the lines of the first steps and counts 120 more; lines were numbered from 0
    and now are from 1.
    """
    steps = int(FRAMEWORKS["pytorch_examples"].default("steps", "cuda")[0])
    log = "".join(
        systemlogs.iteration(step, 10009, 400, 400) for step in range(first, steps + first)
    ).encode()
    assert rule("pytorch_examples")(log, Case(1, 1, 128)) == 320.0


def test_timehistory_names_how_many_lines_were_found() -> None:
    log = written("tensorflow_official")
    three = b"".join(
        line for line in log.splitlines(keepends=True) if b"TimeHistory" in line
    ).splitlines(keepends=True)[:3]
    message = refused("tensorflow_official", b"".join(three))
    assert message == (
        "expected lines of steps 100-600 every 100, found 3 of 6, without 400; the log goes from 100 to 300"
    )


def test_the_clock_of_timehistory_may_pass_midnight() -> None:
    clock = RULES["tf_timehistory_clock"]
    noon = clock.speed(systemlogs.tensorflow(2458.74, C8), C8).samples_per_s
    midnight = clock.speed(
        systemlogs.tensorflow(2458.74, C8, start=datetime(2020, 8, 23, 23, 57, 30)), C8
    ).samples_per_s
    assert noon == midnight == 2458.74


def test_a_clock_is_taken_from_its_own_line_alone() -> None:
    bare = re.sub(rb"I\d{4} [0-9:.]+ \d+ [a-z_.:0-9]+\] ", b"", written("tensorflow_official"))
    with pytest.raises(
        DataError, match="expected timestamp in the lines that count, that of 100 has none"
    ):
        RULES["tf_timehistory_clock"].speed(b"15:04:05.123 restored\n" + bare, C8)


def test_every_worker_may_print_the_global_rate_and_it_counts_once() -> None:
    twice = b"".join(line * 2 for line in written("tensorflow_official").splitlines(keepends=True))
    assert rule("tensorflow_official")(twice, C8) == 2458.74


def test_batch_20_is_not_batch_200() -> None:
    log = written("paddle_models")
    line = re.search(rb"[^\n]*train batch 20\][^\n]*\n", log)
    assert line
    later = b"".join(
        line[0].replace(b"batch 20]", b"batch %d]" % batch).replace(b"21:1", b"22:5")
        for batch in range(200, 210)
    )
    assert rule("paddle_models")(log + later, C8) == 2617.84
    without = log.replace(line[0], b"") + later
    assert "without 20" in refused("paddle_models", without)


def test_a_clock_of_paddle_needs_two_lines_and_its_elapse_all() -> None:
    log = written("paddle_models")
    lines = log.splitlines(keepends=True)
    (place,) = [number for number, line in enumerate(lines) if b"[Pass 0, train batch 57]" in line]
    without = b"".join(lines[:place] + lines[place + 1 :])
    found = RULES["paddle_lines_20_119"].speed(without, C8)
    assert found.samples_per_s == pytest.approx(2617.84, abs=0.005)
    assert found.warnings == ("1 of 100 lines are missing, the first of 57",)
    bare = systemlogs.paddle(2617.84, C8, "nothing").splitlines(keepends=True)
    clockless = b"".join(line for line in bare if b"train batch 57]" not in line)
    assert "found 99 of 100, without 57" in refused("paddle_models", clockless)


def moved(log: bytes, seconds: float, since: int) -> bytes:
    """Return a log of Paddle whose clock is set by so many seconds before the line of a batch. Its
    window has 38.725 s.
    """

    def later(match: re.Match[bytes]) -> bytes:
        moment = datetime.strptime(match[1].decode(), "%Y-%m-%d %H:%M:%S,%f") + timedelta(
            seconds=seconds
        )
        return f"{moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03d}".encode() + match[2]

    begin = log.rfind(b"\n", 0, log.index(b"[Pass 0, train batch %d]" % since)) + 1
    return log[:begin] + re.sub(rb"(\S+ \S+,\d{3})(-INFO)", later, log[begin:])


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (
            3600,
            "expected a clock that agrees with the step times of the same lines, found 3638.72 s by the clock, 38.72",
        ),
        (-30, "expected a clock that agrees with the step times of the same lines, found 8.72"),
        (-50, "expected a time above 0 s in the window"),
    ],
)
def test_a_clock_that_was_set_within_the_window_of_paddle_gives_no_speed(
    seconds: float, told: str
) -> None:
    assert told in refused("paddle_models", moved(written("paddle_models"), seconds, since=60))
    before = moved(written("paddle_models"), seconds, since=15)
    assert rule("paddle_models")(before, C8) == 2617.84


@pytest.mark.parametrize(
    ("seconds", "warnings"),
    [
        (1.9, ()),
        (
            4,
            (
                "the log disagrees with itself: 2617.84 samples/s by its step times, 2372.76 by its clock",
            ),
        ),
        (
            -4,
            (
                "the log disagrees with itself: 2617.84 samples/s by its step times, 2919.40 by its clock",
            ),
        ),
    ],
)
def test_a_clock_of_paddle_that_was_corrected_a_little_is_told(
    seconds: float, warnings: tuple[str, ...]
) -> None:
    assert (
        RULES["paddle_lines_20_119"]
        .speed(moved(written("paddle_models"), seconds, since=60), C8)
        .warnings
        == warnings
    )


def test_the_clock_of_timehistory_is_compared_with_its_rates() -> None:
    log = systemlogs.tensorflow(2458.74, C8)
    with pytest.raises(
        DataError, match="expected a clock that agrees with the rates of the same lines"
    ):
        RULES["tf_timehistory_clock"].speed(
            re.sub(rb"[0-9.]+ examples/second", b"999.5 examples/second", log), C8
        )


@pytest.mark.parametrize("prefix", ["module", "nothing"])
def test_paddle_without_a_clock_is_measured_by_its_elapse(prefix: str) -> None:
    found = RULES["paddle_lines_20_119"].speed(systemlogs.paddle(2617.84, C8, prefix), C8)
    assert found.samples_per_s == 2617.84
    assert found.warnings == ("the lines have no timestamp: step_time_s is used instead",)


def test_the_later_paddle_rule_is_a_mean_of_rates() -> None:
    line = "[Pass 0, train batch {}] \tloss 6.9, acc1 0.0, acc5 0.0, lr 0.0, elapse {:2.4f} sec\n"
    log = "".join(line.format(batch, 0.5 if batch % 2 else 0.25) for batch in range(121)).encode()
    assert RULES["paddle_elapse_20_120"].speed(log, C8).samples_per_s == 3072.0
    assert RULES["paddle_lines_20_119"].speed(log, C8).samples_per_s != 3072.0


def test_oneflow_refuses_a_log_of_another_size_and_one_without_times() -> None:
    log = written("oneflow")
    assert refused("oneflow", log, replace(C8, nodes=2)) == "expected nodes 2, the log says 1"
    assert "expected timestamp in the lines that count, that of 20 has none" in refused(
        "oneflow", re.sub(rb" 15\d+\.\d+\n", b"\n", log)
    )


def test_two_digit_seconds_are_seconds() -> None:
    case = Case(nodes=1, gpus=1, batch_size=128)
    slow = systemlogs.pytorch(11.0, case)
    assert b"Time 11.6" in slow
    assert rule("pytorch_examples")(slow, case) == 11.0


SAMPLE = "Epoch: [0][{:2d}/{}]\tTime  0.403 ( 2.123)\tData  0.106 ( 0.077)\tLoss 1.1e+01 (1.8e+01)\tAcc@1   1.56 (  2.23)\n"


def test_the_two_node_sample_of_source_002_is_rejected() -> None:
    log = "".join(SAMPLE.format(step, 53) * 8 for step in range(54)).encode()
    case = Case(nodes=2, gpus=8, batch_size=128, images=54289)
    assert refused("pytorch_examples", log, case).startswith(
        "expected 26 iterations in an epoch of 54289 images, 2n8g, the log has 53, which implies 8 ranks, not 16"
    )
    assert rule("pytorch_examples")(log, replace(case, nodes=1)) > 0


def test_the_four_node_sample_of_source_002_is_too_short_not_slow() -> None:
    appended = "".join(SAMPLE.format(step, 13) for _ in range(8) for step in range(14)).encode()
    case = Case(nodes=4, gpus=8, batch_size=128, images=54289)
    assert (
        refused("pytorch_examples", appended, case)
        == "expected 120 lines of iterations above 5, found 64"
    )


@pytest.mark.parametrize(
    ("nodes", "gpus", "lengths"),
    [(1, 1, (424, 425)), (1, 8, (53, 54)), (2, 8, (26, 27)), (4, 8, (13, 14))],
)
def test_an_epoch_may_drop_its_last_batch_or_keep_it(
    nodes: int, gpus: int, lengths: tuple[int, int]
) -> None:
    case = Case(nodes, gpus, 128, images=54289)
    for length in lengths:
        check_epoch_length(length, case)
    with pytest.raises(DataError, match="implies"):
        check_epoch_length(lengths[1] + 1, case)


def test_trainers_that_speak_at_once_are_averaged_and_that_is_said() -> None:
    lines = written("fleetx").splitlines(keepends=True)
    together = lines[0] + b"".join(line * 8 for line in lines[1:])
    found = rule_of(FRAMEWORKS["fleetx"]).speed(together, C8)
    assert found.samples_per_s == pytest.approx(1888.2, abs=0.005)
    assert found.warnings == (
        "8 unnamed processes write to one log: the mean of their lines is taken",
    )
    assert "expected steps 20 and 120 once, or from each of 8" in refused(
        "fleetx", lines[0] + b"".join(x * 3 for x in lines[1:])
    )


def test_eight_horovod_totals_are_one_speed() -> None:
    log = written("tf_cnn_benchmarks")
    steps, line, end = log.partition(b"total images/sec")
    found = rule_of(FRAMEWORKS["tf_cnn_benchmarks"]).speed(steps * 8 + (line + end) * 8, C8)
    assert found.samples_per_s == 1580.58
    assert found.warnings == ("8 ranks print the total; one is taken, not the sum",)
    assert "at most 8 ranks, found 9 totals" in refused(
        "tf_cnn_benchmarks", steps * 9 + (line + end) * 9
    )
    assert "found steps after the first total: several runs" in refused(
        "tf_cnn_benchmarks", log * 2
    )
    assert (
        refused("tf_cnn_benchmarks", log.replace(b"1580.58", b"0.00"))
        == "expected a speed above 0, found 0 samples/s"
    )


def test_the_first_epoch_of_tensorpack_does_not_count() -> None:
    log = written("tensorpack")
    assert b"(samples/sec): 537.33" in log
    assert rule("tensorpack")(
        log.replace(b"(samples/sec): 537.33", b"(samples/sec): 9"), C8
    ) == pytest.approx(1612.0)
