"""Other people's trainers: what their logs say, and the speed that it becomes."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from orchestrator.features.published.rules import rule_of
from orchestrator.logs.parse import parse
from orchestrator.logs.steps import RankAggregate
from orchestrator.record.rundir import BenchDir
from orchestrator.results.numbers.throughput import Terms, disagreement, throughput
from orchestrator.results.read import read_run
from tests.plan.third_party_runs import FOREIGN, as_rows, epoch_line, grammar
from tests.support.rendering import opened
from tests.support.run_folders import build

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("framework", FOREIGN)
def test_the_sample_log_holds_the_sample_values(framework: str) -> None:
    folder = ROOT / "templates" / framework
    parsed = parse((folder / "sample.log").read_bytes(), grammar(framework))
    assert as_rows(parsed.samples) == json.loads((folder / "sample.json").read_text())
    assert parsed.warnings == ()


def test_rates_of_fleetx_are_compared_with_its_total_time() -> None:
    log = (ROOT / "templates" / "fleetx" / "sample.log").read_bytes()
    faster = re.sub(rb"speed: 7[.]", b"speed: 14.", log)
    terms = Terms(warmup_steps=20, steps=32, global_batch=32)

    assert disagreement(parse(log, grammar("fleetx")).samples, terms) is None
    found = disagreement(parse(faster, grammar("fleetx")).samples, terms)
    assert found is not None and found[0] == "rates"


@pytest.mark.parametrize("framework", FOREIGN)
def test_a_cut_log_says_nothing_that_its_whole_lines_do_not_say(framework: str) -> None:
    log, rules = (ROOT / "templates" / framework / "sample.log").read_bytes(), grammar(framework)
    for cut in random.Random(1).sample(range(len(log)), 300):
        end = max(log.rfind(b"\n", 0, cut), log.rfind(b"\r", 0, cut)) + 1
        assert parse(log[:cut], rules).samples == parse(log[:end], rules).samples


@pytest.mark.parametrize("framework", FOREIGN)
def test_a_line_cut_anywhere_and_glued_to_the_next_never_gives_another_value(
    framework: str,
) -> None:
    log, rules = (ROOT / "templates" / framework / "sample.log").read_bytes(), grammar(framework)
    true = {
        (row["step"], name, value)
        for row in as_rows(parse(log, rules).samples)
        for name, value in row.items()
    }
    last = max(step for step, _, _ in true)
    for cut in random.Random(2).sample(range(len(log) - 40), 300):
        glued = log[:cut] + log[log.find(b"\n", cut) + 1 :]
        # Where a line begins with its step, 20 and 30 make a step 2030: no window reaches that far.
        rows = [row for row in as_rows(parse(glued, rules).samples) if row["step"] <= last]
        # A loss that is printed without its step belongs to the step before, whichever that is
        # then.
        left = ("loss",) if framework in ("tensorflow_official", "tensorpack") else ()
        found = {
            (row["step"], name, value)
            for row in rows
            for name, value in row.items()
            if name not in left
        }
        assert found <= true, f"cut at {cut}: {log[max(0, cut - 60) : cut]!r}"


@pytest.mark.parametrize("framework", FOREIGN)
def test_a_second_run_in_one_file_replaces_the_first(framework: str) -> None:
    log, rules = (ROOT / "templates" / framework / "sample.log").read_bytes(), grammar(framework)
    whole = parse(log, rules)
    restarted = parse(log[: len(log) * 2 // 3] + b"\nTerminated\n" + log, rules)
    assert restarted.samples == whole.samples
    assert restarted.warnings


def test_eight_ranks_interleaved_appended_or_in_files_of_their_own_are_one_series() -> None:
    rules, shuffle = grammar("pytorch_examples"), random.Random(3)
    times = {
        (rank, step): 0.4 + 0.001 * rank + 0.01 * step for rank in range(8) for step in range(1, 15)
    }
    files = [
        f"Use GPU: {rank}\n" + "".join(epoch_line(s, times[rank, s]) for s in range(1, 15))
        for rank in range(8)
    ]
    interleaved = []
    for step in range(1, 15):
        interleaved += shuffle.sample([epoch_line(step, times[rank, step]) for rank in range(8)], 8)
    one, other = (
        parse("".join(interleaved).encode(), rules).samples,
        parse("".join(files).encode(), rules).samples,
    )
    aggregate = RankAggregate()
    for text in files:
        said = parse(text.encode(), rules).said
        assert isinstance(said, RankAggregate)
        aggregate.merge(said)
    wanted = [
        pytest.approx(sum(times[rank, step] for rank in range(8)) / 8) for step in range(1, 15)
    ]
    for series in (one, other, aggregate.samples()):
        assert [sample.step for sample in series] == list(range(1, 15))
        assert [sample.step_time_s for sample in series] == wanted


def horovod_log(rank: str) -> str:
    """Lines of 4 ranks as mpirun tags them; two of them were glued together."""
    tags = [f"[1,{number}]<stdout>:" for number in (3, 0, 2, 1)]
    text = "".join(f"{tag}{step}\t{rank}\n" for step in (10, 20) for tag in tags)
    return text.replace(f"{rank}\n{tags[1]}20", f"{rank}{tags[1]}20", 1).replace(
        f"{tags[2]}20", f"{tags[2]}\n{tags[2]}20", 1
    )


@pytest.mark.parametrize(
    ("framework", "update", "log", "steps", "warmup_steps", "speed"),
    [
        # A worker's lines are its own rate, and under horovod those of a process are; only the
        # total speaks of all.
        (
            "tf_cnn_benchmarks",
            "parameter_server",
            "10\timages/sec: 250.0 +/- 0.1 (jitter = 0.2)\t7.9\n",
            12,
            2,
            500.0,
        ),
        (
            "tf_cnn_benchmarks",
            "distributed_replicated",
            "10\timages/sec: 250.0 +/- 0.1 (jitter = 0.2)\t7.9\n",
            12,
            2,
            500.0,
        ),
        (
            "tf_cnn_benchmarks",
            "horovod",
            horovod_log("images/sec: 250.0 +/- 0.1 (jitter = 0.2)\t7.9"),
            22,
            2,
            1000.0,
        ),
        # tensorpack multiplies by the GPUs that it knows of: those of its node, and with horovod
        # all.
        (
            "tensorpack",
            "parameter_server",
            "Epoch 1 (global_step 50) finished\nThroughput (samples/sec): 250\n",
            50,
            0,
            500.0,
        ),
        (
            "tensorpack",
            "horovod",
            "Epoch 1 (global_step 50) finished\nThroughput (samples/sec): 250\n",
            50,
            0,
            250.0,
        ),
    ],
)
def test_whose_rate_a_line_tells_depends_on_how_gradients_travel(
    tmp_path: Path,
    framework: str,
    update: str,
    log: str,
    steps: int,
    warmup_steps: int,
    speed: float,
) -> None:
    assert speed_of(
        tmp_path, framework, log, steps, warmup_steps, {"variable_update": update}
    ) == pytest.approx(speed)


def test_shell_noise_around_the_lines_is_no_step() -> None:
    noise = b"+ python3 train.py\n>>>Finished Test Case 1!<<<\nWritting log to ../logs/rn50_b128_fp32_1.log\n0 0/8 100 120\n"
    for framework in FOREIGN:
        log = (ROOT / "templates" / framework / "sample.log").read_bytes()
        assert (
            parse(noise + log + noise, grammar(framework)).samples
            == parse(log, grammar(framework)).samples
        )


def test_paddle_lines_count_with_any_prefix() -> None:
    line = "[Pass 0, train batch 7] \tloss 6.9, acc1 0.1, acc5 0.2, lr 0.01, elapse 0.3912 sec\n"
    older = line.replace("0.3912", "0.39")
    found = [
        parse(text.encode(), grammar("paddle_models")).samples
        for text in (line, "INFO:train:" + line, older)
    ]
    assert [as_rows(samples)[0]["step_time_s"] for samples in found] == [0.3912, 0.3912, 0.39]
    assert all(samples[0].step == 8 and samples[0].timestamp is None for samples in found)


def test_oneflow_lines_without_a_time_fall_back_to_their_rate() -> None:
    line = "train: epoch 0, iter %d, loss: 7.1, top_1: 0.0, top_k: 0.0, samples/s: %s\n"
    found = parse(
        (line % (20, "1000.000") + line % (40, "2000.000")).encode(), grammar("oneflow")
    ).samples
    assert throughput(
        found, Terms(warmup_steps=0, steps=40, global_batch=100)
    ).samples_per_s == pytest.approx(4000 / 3)


def tensorpack_log() -> str:
    epochs = "".join(
        f"\x1b[32m[0823 15:04:05 @base.py:282]\x1b[0m Epoch {epoch} "
        f"(global_step {epoch * 50}) finished, time:{1600 / speed:.3f} seconds.\n"
        f"\x1b[32m[0823 15:04:05 @monitor.py:476]\x1b[0m Throughput (samples/sec): {speed}\n"
        for epoch, speed in enumerate((300.5, 1000, 1.0e3), start=1)
    )
    return "100%|##########|50/50[00:09<00:00, 5.56it/s]\r" + epochs


@pytest.mark.parametrize(
    ("framework", "log", "steps", "warmup_steps", "speed"),
    [
        ("tensorpack", tensorpack_log(), 150, 50, 2000.0),
        (
            "tf_cnn_benchmarks",
            "1\timages/sec: 9.9 +/- 0.0 (jitter = 0.0)\t8.3\n"
            + "".join(
                f"{step}\timages/sec: 500.0 +/- 0.1 (jitter = 0.2)\t7.9\n"
                for step in range(10, 110, 10)
            )
            + "total images/sec: 999.74\n",
            110,
            10,
            1000.0,
        ),
        (
            "paddle_models",
            "".join(
                f"[Pass 0, train batch {b}] \tloss 6.9, acc1 0.1, elapse {0.5 if b > 1 else 9.8:2.4f} sec\n"
                for b in range(12)
            ),
            12,
            2,
            128.0,
        ),
        (
            "horovod_examples",
            "".join(
                f"Iter #{i}: {rate} img/sec per GPU (step {10 * (i + 1)})\n"
                for i, rate in enumerate((100.0, 300.0))
            ),
            22,
            2,
            600.0,
        ),
        (
            "pytorch_examples",
            "".join(epoch_line(s, t) for s in range(1, 13) for t in (0.4, 0.6)),
            12,
            2,
            128.0,
        ),
        (
            "fleetx",
            "".join(
                f"epoch id: 0, step{s}, train_loss: 6.9, total time cost = {(s - 10) / 4:f}, step per second: 4.0, "
                "speed: 4.000000\n"
                for s in range(11, 33)
            ),
            32,
            12,
            256.0,
        ),
        (
            "tensorflow_official",
            "".join(
                f"I0823 23:{57 + i}:50.5 1 k.py:145] TimeHistory: "
                f"{64 * (100 * i + 100 - i) / float(speed):.2f} seconds, {speed} examples/second "
                f"between steps {i} and {i + 1}00\n"
                for i, speed in enumerate(("11.10", "400.00", "1200.00"))
            ),
            300,
            100,
            600.0,
        ),
    ],
)
def test_a_log_becomes_the_speed_of_the_whole_run(
    tmp_path: Path, framework: str, log: str, steps: int, warmup_steps: int, speed: float
) -> None:
    assert speed_of(tmp_path, framework, log, steps, warmup_steps) == pytest.approx(speed)


def speed_of(
    tmp_path: Path,
    framework: str,
    log: str,
    steps: int,
    warmup_steps: int,
    options: Mapping[str, str] | None = None,
) -> float:
    """Samples per second that a collected run of 2 nodes with 2 ranks each and this log has."""
    bench = BenchDir.create(
        tmp_path / "runs", {"bench_id": "b1", "created": "2025-01-01", "runs": ["r1"]}
    )
    rules = grammar(framework)

    def before(manifest: dict[str, Any], logs: list[dict[str, str]]) -> None:
        manifest["spec"] |= {
            "framework": framework,
            "steps": steps,
            "warmup_steps": warmup_steps,
            "options": options or {},
        }
        manifest["framework"]["log"] = json.loads(json.dumps(asdict(rules)))
        logs[:] = [{"node.err": "", rules.files[0]: log}, {"node.err": "", rules.files[0]: ""}]

    result = read_run(
        build(bench, "r1", before, lambda records: [record.update(ranks=[]) for record in records])
    )
    assert result.error is None, result.error
    assert result.throughput is not None
    return result.throughput.samples_per_s


@pytest.mark.parametrize("framework", FOREIGN)
def test_the_published_rule_of_a_folder_exists(framework: str) -> None:
    folder = opened(framework).framework
    assert not folder.published or rule_of(folder).name == folder.published["rule"]
