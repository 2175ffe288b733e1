"""From the words of a command to a bench: which choice wins, and the schedule, without a command
line and without a disk.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.inventory.hosts import Host
from orchestrator.plan.planning import check_measures
from orchestrator.plan.request import Request, request_of
from orchestrator.plan.run_file import RunFile
from orchestrator.plan.schedule import LEAST, MOST, Schedule
from tests.plan.mill_benches import (
    CPUS,
    FOLDER,
    FRAMEWORK,
    HOSTS,
    KEYS,
    PAIRS,
    bench_of,
    refusal,
    run_file,
)


def test_the_words_of_a_command_become_values() -> None:
    request = request_of(
        "resnet50", framework="mill,reader,mill", shape="1n1g,2x8", dtype="fp32,fp16", batch_size="8,16", loader="native",
        steps=9, options=["seed=5,6"], env=["NCCL_ALGO=Ring"], repeats=3, order="random", until_ci="1%", max_repeats=9,
        budget="2h",
        baseline=False, strict=True, label=" today ", run_file=run_file("steps: 40\nlabel: tomorrow\n"),
    )  # fmt: skip
    assert request == Request(
        "resnet50", shapes=((1, 1), (2, 8)), frameworks=("mill", "reader"),
        axes={"batch_size": (8, 16), "dtype": ("fp32", "fp16"), "loader": ("native",), "options.seed": ("5", "6"),
              "env.NCCL_ALGO": ("Ring",)},
        single={"steps": 9}, run_file=RunFile({"steps": 40}, label="tomorrow"), repeats=3, order="random", until_ci="1%",
        max_repeats=9, budget="2h", baseline=False, strict=True, label="today",
    )  # fmt: skip


def test_what_is_left_out_is_left_to_the_run_file_and_the_framework() -> None:
    assert request_of("resnet50") == Request("resnet50")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"shape": "1n1g", "nodes": "2"}, "--shape: expected --shape alone, or --ladder, or --nodes and --gpus"),
        ({"shape": "1n1g", "gpus": "2"}, "--shape: expected --shape alone, or --ladder, or --nodes and --gpus"),
        ({"shape": "1n1g", "ladder": True}, "--shape: expected --shape alone, or --ladder, or --nodes and --gpus"),
        ({"ladder": True, "gpus": "1,2"},
         "--gpus: expected --gpus N with --ladder, its most, got 1,2. leave out --ladder for a list"),
        ({"ladder": True, "nodes": "1,3"},
         "--nodes: expected --nodes N with --ladder, its most, got 1,3. leave out --ladder for a list"),
        ({"framework": " , "}, "--framework: expected a value before and after each comma, got ' , '"),
        ({"nodes": "two"}, "--nodes: expected whole numbers separated by commas, got 'two'"),
        ({"gpus": "all"}, "--gpus: expected whole numbers separated by commas, got 'all'"),
        ({"batch_size": "big"}, "--batch-size: expected whole numbers separated by commas, got 'big'"),
        ({"shape": "4-8"}, "--shape: expected shapes such as 1n1g,4n8g, got '4-8'"),
        ({"options": ["seed"]}, "--set: expected key=value, got 'seed'"),
        ({"env": ["NCCL_ALGO"]}, "--env: expected key=value, got 'NCCL_ALGO'"),
        ({"env": ["RANK=1"]},
         "--env RANK: expected a variable that orch does not set itself, got RANK. use --nodes, --gpus or --shape"),
        ({"label": "a\nb"}, "--label: expected one line of at most 80 printable characters, got 'a\\nb'"),
        ({"run_file": run_file("steps: 9\ncolour: red\n")}, f"choices.yaml:2: unknown key colour. {KEYS}"),
    ],
)  # fmt: skip
def test_words_that_cannot_be_are_refused_with_their_option(
    words: dict[str, Any], message: str
) -> None:
    assert refusal(lambda: request_of("resnet50", **words)) == message


@pytest.mark.parametrize(
    ("words", "file", "value", "origin"),
    [
        ({}, "", 128, "mill default"),
        ({}, "batch_size: 64", 64, "run file"),
        ({"batch_size": "32"}, "", 32, "command line"),
        ({"batch_size": "32"}, "batch_size: 64", 32, "command line"),
    ],
)
def test_a_choice_comes_from_the_command_line_else_the_run_file_else_the_framework(
    words: dict[str, Any], file: str, value: int, origin: str
) -> None:
    request = request_of(
        "resnet50", nodes="1", gpus="1", run_file=run_file(file) if file else None, **words
    )
    (spec,) = bench_of(request).cells
    assert (spec.batch_size, spec.origins["batch_size"]) == (value, origin)


def test_single_values_and_options_have_the_same_precedence() -> None:
    document = run_file("steps: 40\ntimeout_s: 9\noptions: {layout: on, seed: 3}\n")
    (spec,) = bench_of(
        request_of("resnet50", shape="1n1g", steps=50, options=["seed=4"], run_file=document)
    ).cells
    assert (spec.steps, spec.warmup_steps, spec.timeout_s, dict(spec.options)) == (
        50,
        20,
        9,
        {"layout": "on", "seed": 4},
    )
    assert {name: spec.origins[name] for name in ("steps", "warmup_steps", "timeout_s", "options.layout", "options.seed")} == {
        "steps": "command line", "warmup_steps": "mill default", "timeout_s": "run file", "options.layout": "run file",
        "options.seed": "command line",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("repeats", "file", "hosts", "until_ci", "expected"),
    [
        (None, "", HOSTS, "", 5),
        (None, "", CPUS, "", 2),
        (None, "repeats: 3", HOSTS, "", 3),
        (4, "repeats: 3", HOSTS, "", 4),
        (None, "", HOSTS, "1%", LEAST),
        (None, "repeats: 3", HOSTS, "1%", 3),
    ],
)
def test_repeats_come_from_the_command_line_else_the_run_file_else_the_framework_on_its_device(
    repeats: int | None, file: str, hosts: list[Host], until_ci: str, expected: int
) -> None:
    request = request_of(
        "resnet50", repeats=repeats, until_ci=until_ci, run_file=run_file(file) if file else None
    )
    assert bench_of(request, hosts=hosts).schedule.repeats == expected


def test_of_several_frameworks_the_one_with_most_repeats_decides() -> None:
    other = replace(
        FOLDER,
        framework=replace(FRAMEWORK, name="other", defaults={**FRAMEWORK.defaults, "repeats": 6}),
    )
    assert bench_of(request_of("resnet50"), FOLDER, other).schedule.repeats == 6


@pytest.mark.parametrize(
    ("words", "nodes", "gpus"),
    [
        ({}, "all selected hosts", "inventory"),
        ({"nodes": "2"}, "command line", "inventory"),
        ({"gpus": "2"}, "all selected hosts", "command line"),
        ({"shape": "2n2g"}, "command line", "command line"),
        ({"ladder": True}, "command line", "command line"),
    ],
)
def test_a_shape_remembers_where_it_comes_from(
    words: dict[str, Any], nodes: str, gpus: str
) -> None:
    spec = bench_of(request_of("resnet50", baseline=False, **words)).cells[-1]
    assert (spec.origins["nodes"], spec.origins["gpus"]) == (nodes, gpus)


def test_a_schedule_as_it_was_asked_for() -> None:
    request = request_of(
        "resnet50", repeats=3, order="random", until_ci="0.5%", max_repeats=9, budget="1.5h"
    )
    assert bench_of(request, seed=11).schedule == Schedule("random", 11, 3, 0.005, 9, 5400.0)


@pytest.mark.parametrize(("repeats", "most"), [(2, MOST), (40, 40)])
def test_the_cap_of_repeats_is_at_least_what_a_bench_begins_with(repeats: int, most: int) -> None:
    assert (
        bench_of(request_of("resnet50", repeats=repeats, until_ci="1%")).schedule.max_repeats
        == most
    )


def test_a_bench_begins_with_no_more_repeats_than_its_cap() -> None:
    schedule = bench_of(request_of("resnet50", until_ci="20%", max_repeats=5)).schedule
    assert (schedule.repeats, schedule.max_repeats) == (5, 5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"order": "alphabetic"},
            "--order: expected balanced, random or interleaved, got 'alphabetic'",
        ),
        (
            {"max_repeats": 5},
            "--max-repeats: expected --until-ci as well, got none. use --repeats instead",
        ),
        ({"until_ci": "1%", "repeats": 1}, "--repeats: expected 2 to 30 initial repeats, got 1"),
        (
            {"until_ci": "1%", "repeats": 9, "max_repeats": 8},
            "--repeats: expected 2 to 8 initial repeats, got 9",
        ),
        (
            {"until_ci": "1"},
            "--until-ci: expected a percentage above 0 and below 100, such as 1%, got '1'. did you mean 1%?",
        ),
        (
            {"budget": "soon"},
            "--budget: expected a time such as 90s, 30m, 1h30m or 90 (seconds), got 'soon'",
        ),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_with_its_option(
    words: dict[str, Any], message: str
) -> None:
    assert refusal(lambda: bench_of(request_of("resnet50", **words))) == message


def test_intervals_are_refused_of_a_diagnosis() -> None:
    check_measures(request_of("resnet50", until_ci="1%"), [FRAMEWORK])
    check_measures(request_of("resnet50"), [FRAMEWORK, PAIRS.framework])
    assert refusal(
        lambda: check_measures(request_of("resnet50", until_ci="1%"), [FRAMEWORK, PAIRS.framework])
    ) == (
        "--until-ci: links measures links between pairs of nodes, which has no metric and so no interval. "
        "set the number of runs with --repeats"
    )
