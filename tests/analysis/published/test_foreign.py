"""Logs that this tool did not write: the published rule of each system on whole and on faulty logs, and whole trees of them."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.analysis.published.agreement import check_epoch_length
from orchestrator.analysis.published.folders import published_files
from orchestrator.analysis.published.foreign import by_rule, summary_of_tree
from orchestrator.analysis.published.reference import reference_tables
from orchestrator.analysis.published.rules import Case, rule_of, rules_of
from orchestrator.analysis.published.tables import PublishedTable
from orchestrator.cli.main import program
from orchestrator.errors import ConfigError, DataError
from orchestrator.logs.metrics import Metric
from orchestrator.plan.folders import open_framework
from orchestrator.plan.framework import Framework
from orchestrator.record.rundir import BenchDir
from orchestrator.results.bench import read_bench
from orchestrator.results.numbers.throughput import published
from orchestrator.results.summary import Summary, summarize
from tests.support import systemlogs
from tests.support.rendering import opened
from tests.support.run_folders import build, lasting

FILES = published_files()
FRAMEWORKS = {name: opened(name).framework for name in FILES}
RULES = {name: rule for framework in FRAMEWORKS.values() for name, rule in rules_of(framework).items()}
TABLES = [pytest.param(name, table, id=table.name) for name, file in FILES.items() for table in file.tables]
C8 = Case(nodes=1, gpus=8, batch_size=128)
SPEED = {"tensorflow_official": 2458.74, "paddle_models": 2617.84, "oneflow": 2942.32, "pytorch_examples": 2244.24}
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


# One log


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


@pytest.mark.parametrize("name", [name for name in SPEED if name not in ("pytorch_examples", "tf_cnn_benchmarks")])
def test_a_second_run_in_the_file_is_told_and_the_last_whole_one_counts(name: str) -> None:
    slower = systemlogs.WRITERS[name](SPEED[name] / 2 if name != "paddle_models" else 1352.04, C8)
    found = rule_of(FRAMEWORKS[name]).speed(slower + written(name), C8)
    assert found.samples_per_s == pytest.approx(SPEED[name], abs=0.005)
    assert found.warnings == ("the step goes back in the log, 1 times: the last complete run counts",)
    broken_off = written(name) + slower[: len(slower) * 2 // 3]
    assert rule(name)(broken_off, C8) == pytest.approx(SPEED[name], abs=0.005)


@pytest.mark.parametrize("name", ["pytorch_examples", "tf_cnn_benchmarks"])
def test_a_second_run_in_the_file_is_refused_where_it_cannot_be_told_apart(name: str) -> None:
    slower = systemlogs.WRITERS[name](2185.75, C8)
    assert "several runs" in refused(name, slower + written(name))


@pytest.mark.parametrize("name", SYSTEMS)
def test_colour_and_rank_tags_and_carriage_returns_do_no_harm(name: str) -> None:
    lines = written(name).splitlines(keepends=True)
    dressed = b"".join(b"[1,0]<stdout>:\x1b[32m" + line.rstrip(b"\r\n") + b"\x1b[0m\r\n" for line in lines)
    assert rule(name)(dressed, C8) == pytest.approx(SPEED[name], abs=0.005)


@pytest.mark.parametrize("first", [0, 1])
def test_a_run_of_the_usual_length_on_one_gpu_has_the_published_number(first: int) -> None:
    """Its rule drops the lines of the first steps and counts 120 more; lines were numbered from 0 and now are from 1."""
    steps = int(FRAMEWORKS["pytorch_examples"].default("steps", "cuda")[0])
    log = "".join(systemlogs.iteration(step, 10009, 400) for step in range(first, steps + first)).encode()
    assert rule("pytorch_examples")(log, Case(1, 1, 128)) == 320.0


def test_timehistory_names_how_many_lines_were_found() -> None:
    log = written("tensorflow_official")
    three = b"".join(line for line in log.splitlines(keepends=True) if b"TimeHistory" in line).splitlines(keepends=True)[:3]
    message = refused("tensorflow_official", b"".join(three))
    assert message == ("expected lines of steps 100-600 every 100, found 3 of 6, without 400; the log goes from 100 to 300")


def test_the_clock_of_timehistory_may_pass_midnight() -> None:
    clock = RULES["tf_timehistory_clock"]
    noon = clock.speed(systemlogs.tensorflow(2458.74, C8), C8).samples_per_s
    midnight = clock.speed(systemlogs.tensorflow(2458.74, C8, start=datetime(2020, 8, 23, 23, 57, 30)), C8).samples_per_s
    assert noon == midnight == 2458.74


def test_a_clock_is_taken_from_its_own_line_alone() -> None:
    bare = re.sub(rb"I\d{4} [0-9:.]+ \d+ [a-z_.:0-9]+\] ", b"", written("tensorflow_official"))
    with pytest.raises(DataError, match="expected timestamp in the lines that count, that of 100 has none"):
        RULES["tf_timehistory_clock"].speed(b"15:04:05.123 restored\n" + bare, C8)


def test_every_worker_may_print_the_global_rate_and_it_counts_once() -> None:
    twice = b"".join(line * 2 for line in written("tensorflow_official").splitlines(keepends=True))
    assert rule("tensorflow_official")(twice, C8) == 2458.74


def test_batch_20_is_not_batch_200() -> None:
    log = written("paddle_models")
    line = re.search(rb"[^\n]*train batch 20\][^\n]*\n", log)
    assert line
    later = b"".join(line[0].replace(b"batch 20]", b"batch %d]" % batch).replace(b"21:1", b"22:5") for batch in range(200, 210))
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
    """Return a log of Paddle whose clock is set by so many seconds before the line of a batch. Its window has 38.725 s."""

    def later(match: re.Match[bytes]) -> bytes:
        moment = datetime.strptime(match[1].decode(), "%Y-%m-%d %H:%M:%S,%f") + timedelta(seconds=seconds)
        return f"{moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03d}".encode() + match[2]

    begin = log.rfind(b"\n", 0, log.index(b"[Pass 0, train batch %d]" % since)) + 1
    return log[:begin] + re.sub(rb"(\S+ \S+,\d{3})(-INFO)", later, log[begin:])


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (3600, "expected a clock that agrees with the step times of the same lines, found 3638.72 s by the clock, 38.72"),
        (-30, "expected a clock that agrees with the step times of the same lines, found 8.72"),
        (-50, "expected a time above 0 s in the window"),
    ],
)
def test_a_clock_that_was_set_within_the_window_of_paddle_gives_no_speed(seconds: float, told: str) -> None:
    assert told in refused("paddle_models", moved(written("paddle_models"), seconds, since=60))
    before = moved(written("paddle_models"), seconds, since=15)
    assert rule("paddle_models")(before, C8) == 2617.84


@pytest.mark.parametrize(
    ("seconds", "warnings"),
    [
        (1.9, ()),
        (4, ("the log disagrees with itself: 2617.84 samples/s by its step times, 2372.76 by its clock",)),
        (-4, ("the log disagrees with itself: 2617.84 samples/s by its step times, 2919.40 by its clock",)),
    ],
)
def test_a_clock_of_paddle_that_was_corrected_a_little_is_told(seconds: float, warnings: tuple[str, ...]) -> None:
    assert RULES["paddle_lines_20_119"].speed(moved(written("paddle_models"), seconds, since=60), C8).warnings == warnings


def test_the_clock_of_timehistory_is_compared_with_its_rates() -> None:
    log = systemlogs.tensorflow(2458.74, C8)
    with pytest.raises(DataError, match="expected a clock that agrees with the rates of the same lines"):
        RULES["tf_timehistory_clock"].speed(re.sub(rb"[0-9.]+ examples/second", b"999.5 examples/second", log), C8)


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
    assert refused("pytorch_examples", appended, case) == "expected 120 lines of iterations above 5, found 64"


@pytest.mark.parametrize(
    ("nodes", "gpus", "lengths"), [(1, 1, (424, 425)), (1, 8, (53, 54)), (2, 8, (26, 27)), (4, 8, (13, 14))]
)
def test_an_epoch_may_drop_its_last_batch_or_keep_it(nodes: int, gpus: int, lengths: tuple[int, int]) -> None:
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
    assert found.warnings == ("8 unnamed processes write to one log: the mean of their lines is taken",)
    assert "expected steps 20 and 120 once, or from each of 8" in refused(
        "fleetx", lines[0] + b"".join(x * 3 for x in lines[1:])
    )


def test_eight_horovod_totals_are_one_speed() -> None:
    log = written("tf_cnn_benchmarks")
    steps, line, end = log.partition(b"total images/sec")
    found = rule_of(FRAMEWORKS["tf_cnn_benchmarks"]).speed(steps * 8 + (line + end) * 8, C8)
    assert found.samples_per_s == 1580.58
    assert found.warnings == ("8 ranks print the total; one is taken, not the sum",)
    assert "at most 8 ranks, found 9 totals" in refused("tf_cnn_benchmarks", steps * 9 + (line + end) * 9)
    assert "found steps after the first total: several runs" in refused("tf_cnn_benchmarks", log * 2)
    assert refused("tf_cnn_benchmarks", log.replace(b"1580.58", b"0.00")) == "expected a speed above 0, found 0 samples/s"


def test_the_first_epoch_of_tensorpack_does_not_count() -> None:
    log = written("tensorpack")
    assert b"(samples/sec): 537.33" in log
    assert rule("tensorpack")(log.replace(b"(samples/sec): 537.33", b"(samples/sec): 9"), C8) == pytest.approx(1612.0)


# Trees


def plant(root: Path, framework: str, table: PublishedTable, seed: int = 1) -> None:
    """Write the runs of a published table as a tree, in any order; a table without runs as one run of each case."""
    places = []
    for cell in table.cells:
        nodes, gpus = map(int, cell.case[:-1].split("n"))
        case = Case(nodes, gpus, table.batch_size)
        unprinted = systemlogs.pytorch_runs if framework == "pytorch_examples" else lambda speed, _: [speed]
        places += [(case, *run) for run in cell.runs or enumerate(unprinted(cell.speed, case), start=1)]
    random.Random(seed).shuffle(places)
    for case, run_id, speed in places:
        folder = root / "logs" / "any" / str(case)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"rn50_b{table.batch_size}_{table.dtype}_{run_id}.log"
        # The bytes of two runs are never the same, even where two speeds are.
        log = systemlogs.WRITERS[framework](speed, case) + f"run {run_id}\n".encode()
        (folder / name).write_bytes(log)


def rows(summary: Summary) -> dict[str, Any]:
    return {row.shape: row for row in summary.rows}


@pytest.mark.parametrize(("name", "table"), TABLES)
def test_every_published_table_comes_out_of_a_tree_of_its_logs(name: str, table: PublishedTable, tmp_path: Path) -> None:
    plant(tmp_path, name, table)
    found = rows(summary_of_tree(tmp_path, FRAMEWORKS[name], images=0))
    assert set(found) == {cell.case for cell in table.cells}
    for cell in table.cells:
        row = found[cell.case]
        middle, average = row.median, row.average
        assert abs((average if table.statistic == "mean" else middle) - cell.speed) <= 0.00501
        assert cell.average is None or abs(average - cell.average) <= 0.00501
        if cell.speedup is not None and table.divisor != "mean/latch":
            assert published(row.speedup) == cell.speedup


def table_of(framework: str, name: str) -> PublishedTable:
    return next(table for table in FILES[framework].tables if table.name == name)


@pytest.mark.parametrize("seed", range(3))
def test_source_004_has_our_speedups_in_any_file_order(seed: int, tmp_path: Path) -> None:
    plant(tmp_path, "paddle_models", table_of("paddle_models", "paddle_rn50_fp32_b128"), seed)
    found = rows(summary_of_tree(tmp_path, FRAMEWORKS["paddle_models"]))
    assert {case: published(row.speedup) for case, row in found.items()} == {
        "1n1g": 1.0, "1n2g": 1.8, "1n4g": 3.86, "1n8g": 7.44, "2n8g": 13.88, "4n8g": 26.51,
    }  # fmt: skip


def test_source_002_has_24_88_and_a_warning_of_uneven_repeats(tmp_path: Path) -> None:
    plant(tmp_path, "pytorch_examples", table_of("pytorch_examples", "pytorch_rn50_dali_j8"))
    summary = summary_of_tree(tmp_path, FRAMEWORKS["pytorch_examples"], images=1281167)
    row = rows(summary)["4n8g"]
    assert (row.n, published(row.median), published(row.speedup)) == (10, 8816.70, 24.88)
    assert "10 repeats where other cells have 5" in row.qualifications
    assert "the published procedure has 5 runs of each case; 4n8g has 10" in summary.notes


def test_the_data_set_of_the_published_runs_is_the_measure_unless_another_is_named(tmp_path: Path) -> None:
    plant(tmp_path, "pytorch_examples", table_of("pytorch_examples", "pytorch_rn50_dali_j8"))
    found = rows(summary_of_tree(tmp_path, FRAMEWORKS["pytorch_examples"]))
    assert all(row.n == 0 and row.failed for row in found.values())
    assert "images, 1n1g, the log has 10009, which implies a different data set" in found["1n1g"].failures[0]


def put(path: Path, framework: str = "tensorflow_official", speed: float = 2458.74, case: Case = C8, end: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(systemlogs.WRITERS[framework](speed, case) + end.encode())


TF = "tensorflow_official"


def test_more_than_nine_nodes_and_gpus_are_read_whole(tmp_path: Path) -> None:
    put(tmp_path / "12n16g" / "rn50_b128_fp32_1.log", "oneflow", 60000.0, Case(12, 16, 128))
    (row,) = summary_of_tree(tmp_path, FRAMEWORKS["oneflow"]).rows
    assert (row.nodes, row.gpus, row.world_size, published(row.median)) == (12, 16, 192, 60000.0)


def test_types_sizes_and_folders_do_not_overwrite_each_other(tmp_path: Path) -> None:
    for number, name in enumerate(("bz128/1n8g/rn50_b128_fp32_1", "bz128/1n8g/rn50_b128_fp16_1", "old/1n8g/rn50_b128_fp32_1")):
        put(tmp_path / f"{name}.log", speed=2000.0 + number)
    found = summary_of_tree(tmp_path, FRAMEWORKS[TF]).rows
    assert sorted(published(row.median or 0) for row in found) == [2000.0, 2001.0, 2002.0]
    assert {(row.dtype, row.options["folder"]) for row in found} == {("fp32", "bz128"), ("fp16", "bz128"), ("fp32", "old")}


def test_the_table_says_that_it_came_from_names_and_by_which_rule(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b128_fp32_1.log")
    notes = summary_of_tree(tmp_path, FRAMEWORKS[TF]).notes
    assert "case, batch size and type are taken from the names of folders and files: a log tree has no manifest" in notes
    assert (
        "rule tf_timehistory_1_6: mean of the 5 rates printed for steps 100-600; the median of 5 runs was published; "
        "speedup is median over median of 1n1g"
    ) in notes
    assert any(note.endswith("no speedup, because there is no good 1n1g run") for note in notes)


def test_a_copied_log_is_no_second_run(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b128_fp32_1.log")
    put(tmp_path / "1n8g" / "rn50_b128_fp32_2.log")
    summary = summary_of_tree(tmp_path, FRAMEWORKS[TF])
    assert summary.rows[0].n == 1
    assert "1n8g/rn50_b128_fp32_2.log has the same bytes as 1n8g/rn50_b128_fp32_1.log and is left out" in summary.notes


def test_a_run_id_that_is_there_twice_is_told(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b128_fp32_1.log", speed=2458.74)
    put(tmp_path / "1n8g" / "rn50_b128_fp32_01.log", speed=2441.07)
    (row,) = summary_of_tree(tmp_path, FRAMEWORKS[TF]).rows
    assert row.n == 2 and "run id 1 occurs more than once, with different content" in row.qualifications


def test_strange_names_are_named_and_not_guessed(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b128_fp32_1.log")
    for name in ("1n8g/rn50.log", "4x8/rn50_b128_fp32_1.log", "0n8g/rn50_b128_fp32_1.log", "1n8g/rn50_b0_fp32_1.log"):
        put(tmp_path / name)
    summary = summary_of_tree(tmp_path, FRAMEWORKS[TF])
    (row,) = summary.rows
    assert row.n == 1 and row.failed == 0
    (note,) = [note for note in summary.notes if note.startswith("not read")]
    assert note.endswith("0n8g/rn50_b128_fp32_1.log, 1n8g/rn50.log, 1n8g/rn50_b0_fp32_1.log, 4x8/rn50_b128_fp32_1.log")


def test_a_bad_log_fails_alone(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b128_fp32_1.log")
    (tmp_path / "1n8g" / "rn50_b128_fp32_2.log").write_bytes(b"Killed\n")
    (tmp_path / "1n8g" / "rn50_b128_fp32_3.log").symlink_to("/dev/zero")
    (row,) = summary_of_tree(tmp_path, FRAMEWORKS[TF]).rows
    assert (row.n, row.failed) == (1, 2)
    assert "found 0 of 6" in row.failures[0] and "cannot be read" in row.failures[1]


def test_an_empty_tree_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected logs such as 4n8g/rn50_b128_fp32_1.log, found none"):
        summary_of_tree(tmp_path, FRAMEWORKS[TF])
    with pytest.raises(ConfigError, match="expected a folder of logs"):
        summary_of_tree(tmp_path / "nowhere", FRAMEWORKS[TF])


def test_a_framework_without_a_rule_reads_no_tree_by_rule(tmp_path: Path) -> None:
    own: Framework = open_framework("pytorch").framework
    with pytest.raises(ConfigError, match="pytorch has no published tables"):
        rule_of(own)
    words = ["summarize", "--from-logs", str(tmp_path), "-f", "pytorch", "--rule", "dlperf"]
    done = CliRunner().invoke(program(), words)
    assert isinstance(done.exception, ConfigError) and "pytorch has no published tables" in done.exception.message


# Runs of our own


def bench_of(tmp_path: Path, log: str, steps: int = 600) -> BenchDir:
    """Return a bench of one 2n2g run of the TensorFlow program, as collection leaves it."""
    bench = BenchDir.create(tmp_path / "runs", {"bench_id": "b1", "created": "2026-01-01", "runs": ["r1"]})

    def before(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["spec"] |= {"framework": TF, "dtype": "fp32", "batch_size": 128, "steps": steps, "warmup_steps": 100}
        planned["framework"] |= {"name": TF, "log": asdict(FRAMEWORKS[TF].log)}
        for files in logs:
            files.clear()
            files["node.out"] = log
            files["node.err"] = ""

    build(bench, "r1", before, lasting(1e6))
    return bench


def test_the_published_rule_measures_our_own_run_in_its_own_way(tmp_path: Path) -> None:
    case = Case(2, 2, 128)
    # Five rates of 100 steps each: their mean is the published speed, their combination by time is ours.
    text = systemlogs.tensorflow(1000.0, case).decode().replace("1000.00 examples", "500.00 examples", 1)
    bench = bench_of(tmp_path, text)
    results = read_bench(bench)
    (ours,), (theirs,) = summarize(results).rows, by_rule(bench, results).rows
    assert published(theirs.median or 0) == 900.0
    assert published(ours.median or 0) == pytest.approx(833.33)
    output = orch(str(bench.path), "--rule", "dlperf")
    assert "900.00" in output and "rule tf_timehistory_1_6" in output
    by_clock = summarize_by_name(bench, "tf_timehistory_clock")
    assert by_clock.median == pytest.approx(1000.0, abs=0.005)
    assert orch(str(bench.path), "--rule", "tf_timehistory_clock").count("rule tf_timehistory_clock: ") == 1
    assert orch(str(bench.path), "--rule", TF) == output


def summarize_by_name(bench: BenchDir, name: str) -> Any:
    (row,) = by_rule(bench, read_bench(bench), name=name).rows
    return row


def test_a_run_that_does_not_hold_the_published_window_has_no_number_by_that_rule(tmp_path: Path) -> None:
    lines = systemlogs.tensorflow(1000.0, Case(2, 2, 128)).decode().splitlines(keepends=True)
    bench = bench_of(tmp_path, "".join(lines[:5]), steps=400)
    results = read_bench(bench)
    assert summarize(results).rows[0].n == 1
    (row,) = by_rule(bench, results).rows
    assert (row.n, row.failed) == (0, 1)
    assert "expected lines of steps 100-600 every 100, found 4 of 6" in row.failures[0]


def test_a_bench_of_an_unpublished_system_has_no_published_rule(tmp_path: Path) -> None:
    bench = BenchDir.create(tmp_path / "runs", {"bench_id": "b1", "created": "2026-01-01", "runs": ["r1"]})
    build(bench, "r1")
    with pytest.raises(ConfigError, match="pytorch has no published tables"):
        by_rule(bench, read_bench(bench))


# The command line


def orch(*words: str) -> str:
    result = CliRunner().invoke(program(), ["summarize", *words], env={"COLUMNS": "160"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    plant(tmp_path, TF, table_of(TF, "tf2_rn50_fp32_b128"))
    return tmp_path


RESULT = {"average_speed": 9412.91, "batch_size_per_device": 128, "median_speed": 9418.44, "speedup": 29.27}


def test_the_command_prints_the_table_and_the_result_in_dlperfs_shape(tree: Path) -> None:
    output = orch("--from-logs", str(tree), "--framework", TF)
    interval = r"\d+\.\d\d to \d+\.\d\d"
    row = rf"4n8g +5 +9412\.91 +9418\.44 +9369\.06 +9454\.31 +9412\.\d\d +{interval} +[\d.]+ +[\d.]+ +29\.27 +– +91\.5%"
    assert re.search(row, output)
    assert "are taken from the names of folders and files" in output
    result = json.loads(output[output.index("\n{") :])
    assert result["rn50"]["4n8g"] == RESULT
    assert list(result["rn50"]) == ["1n1g", "1n2g", "1n4g", "1n8g", "2n8g", "4n8g"]
    assert json.loads(orch("--from-logs", str(tree), "--framework", TF, "--format", "dlperf")) == result


def test_a_result_without_a_baseline_has_null_and_not_one(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b128_fp32_1.log")
    put(tmp_path / "1n8g" / "rn50_b128_fp16_1.log", speed=5000.0)
    result = json.loads(orch("--from-logs", str(tmp_path), "-f", TF, "--format", "dlperf"))
    assert {name: cases["1n8g"]["speedup"] for name, cases in result.items()} == {
        f"{TF} rn50 fp16 b128 unstated": None,
        f"{TF} rn50 fp32 b128 unstated": None,
    }


def test_against_published_sets_both_and_both_kinds_of_hardware(tree: Path) -> None:
    output = orch("--from-logs", str(tree), "--framework", TF, "--against", "published")
    assert "ours:      not recorded" in output
    assert "published: 1 to 4 nodes of 8 × V100-SXM2-16GB, 100 Gb/s InfiniBand, NCCL 2.7.3, CUDA 10.2" in output
    assert re.search(r"4n8g +9418\.44 +9418\.44 +1\.00 +29\.27 +29\.27", output)
    document = json.loads(orch("--from-logs", str(tree), "--framework", TF, "--against", "published", "--json"))
    (beside,) = document["published"]
    assert beside["pairs"][0]["case"] == "1n1g" and beside["pairs"][0]["ratio"] == pytest.approx(1.0)


def test_our_own_trainer_stands_beside_the_published_runs_of_its_framework(tree: Path) -> None:
    summary = summary_of_tree(tree, FRAMEWORKS[TF])
    own = tuple(replace(row, framework="pytorch", model="resnet50", hardware="8 × H200", series="own") for row in summary.rows)
    found, notes = reference_tables(replace(summary, rows=own), FILES.values())
    assert [each.title.partition(",")[2].partition("(")[0].strip() for each in found] == [
        "native DataLoader, --workers 8 per node",
        "native DataLoader, --workers 48 per node",
        "DALI, --workers 8 per node",
        "DALI, --workers 48 per node",
    ]
    assert {(each.our_hardware, each.published_hardware[:33]) for each in found} == {
        ("8 × H200", "1 to 4 nodes of 8 × V100-SXM2-16G")
    }
    largest = found[2].pairs[-1]
    assert (largest.case, largest.ours, largest.published) == ("4n8g", 9418.44, 8816.70)
    assert largest.ratio == pytest.approx(1.068, abs=5e-4)
    assert found[2].pairs[1].published is None and notes == ()


def test_against_published_says_what_there_is_where_nothing_fits(tmp_path: Path) -> None:
    put(tmp_path / "1n8g" / "rn50_b64_fp32_1.log")
    output = orch("--from-logs", str(tmp_path), "-f", TF, "--against", "published")
    assert "no published table fits; the published tables have resnet50 fp16 b128, resnet50 fp16 b256, resnet50 fp16" in output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from-logs", "."], "--from-logs and --framework go together"),
        (["--framework", TF], "--from-logs and --framework go together"),
        (["--from-logs", ".", "--framework", TF, "b1"], "got both"),
        (["--rule", "mlperf"], "expected dlperf"),
        (["--against", "memory"], "expected published"),
        (["--against", "published", "--format", "csv"], "expected table, html or json"),
        (["--images", "5"], "it can only be used with --from-logs"),
        (["--format", "xml"], "expected table, html, markdown, csv, json, junit, prometheus, mllog or dlperf"),
        (["--from-logs", ".", "--framework", "tensorflow_offical"], "no framework"),
        (["--from-logs", ".", "--framework", TF, "--reread"], "is always read with the folder as it is now"),
    ],
)
def test_options_that_do_not_fit_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CliRunner().invoke(program(), ["summarize", *words], catch_exceptions=False)


# ------------------------------------------------------------------ folders without a published rule


def log_of(steps: range, seconds: float, samples: int = 64) -> str:
    lines = [
        f"orch step={step} t={9 + step * seconds:.6f} step_time_s={seconds:.6f} samples={samples} loss=nan\n" for step in steps
    ]
    return "".join(lines)


def test_a_folder_without_a_rule_reads_a_tree_with_its_own_patterns(tmp_path: Path) -> None:
    for case, number, seconds in (("1n1g", 1, 0.5), ("1n1g", 2, 0.5), ("2n1g", 1, 0.25), ("2n1g", 2, 0.25)):
        path = tmp_path / case / f"resnet50_b64_fp32_{number}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"noise {number}\n{log_of(range(121), seconds, 64 * int(case[0]))}")
    framework = open_framework("simulated").framework
    warmup_steps = framework.defaults["warmup_steps"]

    summary = summary_of_tree(tmp_path, framework)

    assert [(row.shape, row.n, row.median) for row in summary.rows] == [("1n1g", 2, 128.0), ("2n1g", 2, 512.0)]
    assert f"the window begins after {warmup_steps} steps and ends with the last line of a log" in " ".join(summary.notes)


def with_rates(scope: str = "global") -> Framework:
    """Return a framework whose logs have a rate of each step besides, of a layer."""
    framework = open_framework("simulated").framework
    rate = Metric(
        "rate", "tokens/s", keys=("layer",), over="harmonic_mean", scope=scope, across="sum" if scope == "rank" else ""
    )
    reading = r"^rate (?P<step>[0-9]+) (?P<layer>[a-z]+) (?P<rate>[0-9.]+)$"
    return replace(framework, log=replace(framework.log, readings=(reading,), metrics=(rate,)))


def plant_rates(root: Path, case: str) -> None:
    """Write two logs with rates of 7 during the warm-up, then by turns 20 and 30 of one layer, and 5 of another."""
    for number in (1, 2):
        path = root / case / f"resnet50_b64_fp32_{number}.log"
        path.parent.mkdir(exist_ok=True)
        lines = [f"rate {step} top {7 if step <= 5 else 20 + step % 2 * 10}\nrate {step} end 5.0\n" for step in range(1, 26)]
        path.write_text(f"noise {number}\n{log_of(range(26), 0.5)}{''.join(lines)}")


def test_a_tree_of_a_training_has_the_metrics_of_its_folder_within_the_window(tmp_path: Path) -> None:
    plant_rates(tmp_path, "1n1g")
    rows_of = {(row.metric, *row.key.values()): row for row in summary_of_tree(tmp_path, with_rates()).rows}
    # The harmonic mean of 20 and 30 is 24.
    assert {name: (row.n, row.value) for name, row in rows_of.items()} == {
        ("samples_per_s",): (2, pytest.approx(128.0)),
        ("rate", "top"): (2, pytest.approx(24.0)),
        ("rate", "end"): (2, pytest.approx(5.0)),
    }


def test_a_metric_of_ranks_that_one_log_cannot_hold_is_said_to_be_left_out(tmp_path: Path) -> None:
    plant_rates(tmp_path, "2n1g")
    (row,) = summary_of_tree(tmp_path, with_rates("rank")).rows
    assert (row.metric, row.n, row.value) == ("samples_per_s", 2, pytest.approx(128.0))
    text = "metrics of the folder are left out: expected rate at layer=top of 2 ranks, got it of 1"
    assert text in row.qualifications


def test_a_tree_that_the_patterns_do_not_match_is_said_to_be_so(tmp_path: Path) -> None:
    path = tmp_path / "1n1g" / "resnet50_b64_fp32_1.log"
    path.parent.mkdir()
    path.write_text(log_of(range(121), 0.5).replace("samples=", "images="))

    (row,) = summary_of_tree(tmp_path, open_framework("simulated").framework).rows

    assert "expected lines with steps, found 0; log.patterns[0] comes nearest: line 1 matches up to" in row.failures[0]


def test_a_tree_of_what_is_no_training_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not the speed of training"):
        summary_of_tree(tmp_path, open_framework("collectives").framework)
