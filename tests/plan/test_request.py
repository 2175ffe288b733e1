"""From the words of a command to a bench: every rule about its options, without a command line and without a disk."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator import yamlfile
from orchestrator.errors import ConfigError, Faults
from orchestrator.inventory.hosts import Host
from orchestrator.plan import request as module
from orchestrator.plan.baselines import borrowable, without
from orchestrator.plan.bench import Bench
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.framework import Knob, Option
from orchestrator.plan.request import (
    Request,
    allows_numerics,
    check_measures,
    checked_specs,
    free_knobs,
    planned,
    request_of,
    tune_request,
)
from orchestrator.plan.run_file import RunFile
from orchestrator.plan.schedule import LEAST, MOST, Schedule
from tests.support.mill import MILL

TEMPLATE = "{% if options.layout == 'off' and spec.nodes > 1 %}{{ refuse('--set layout', 'off needs one node') }}{% endif %}"
FRAMEWORK = replace(
    MILL,
    models={"resnet50": {}},
    device_defaults={"cpu": {"repeats": 2}},
    options={"layout": Option("str", "auto", choices=("auto", "on", "off")), "seed": Option("int", 0)},
    tunes=(
        Knob(("NCCL_ALGO",), "", (("Ring",), ("Tree",))),
        Knob((), "layout", (("on",),)),
        Knob((), "seed", ((1,),), numerics=True),
    ),
)
FOLDER = FrameworkFolder(FRAMEWORK, {"launch.sh.j2": TEMPLATE}, {"rank_wrapper.py": b""})
READER = replace(FOLDER, framework=replace(FRAMEWORK, name="reader", measures="readings"))
PAIRS = replace(FOLDER, framework=replace(FRAMEWORK, name="links", measures="pairs"))
HOSTS = [Host(f"n{n}", f"10.0.0.{n}", gpus=8) for n in range(1, 5)]
CPUS = [Host(f"c{n}", f"10.0.0.{n}", gpus=0, slots=2) for n in range(1, 5)]


def bench_of(request: Request, *folders: FrameworkFolder, hosts: list[Host] = HOSTS, seed: int = 7) -> Bench:
    return planned(request, folders or (FOLDER,), hosts, bench_id="b1", seed=seed)


def cells_of(bench: Bench) -> list[str]:
    return [f"{spec.framework} {spec.shape} {spec.dtype}" for spec in bench.cells]


def run_file(text: str) -> yamlfile.Document:
    return yamlfile.loads(text, "choices.yaml")


def refusal(call: Callable[[], Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        call()
    return str(caught.value)


def test_the_example_of_the_module_is_true() -> None:
    results = doctest.testmod(module)
    assert results.attempted and not results.failed


# ------------------------------------------------------------------ from words to a request


def test_the_words_of_a_command_become_values() -> None:
    request = request_of(
        "resnet50", framework="mill,reader,mill", shape="1n1g,2x8", dtype="fp32,fp16", batch_size="8,16", loader="native",
        single={"steps": 9}, sets=["seed=5,6"], env=["NCCL_ALGO=Ring"], repeats=3, order="random", until_ci="1%", max_repeats=9,
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
        ({"ladder": True, "gpus": "1,2"}, "--ladder: expected --shape alone, or --ladder, or --nodes and --gpus"),
        ({"framework": " , "}, "--framework: expected a value before and after each comma, got ' , '"),
        ({"nodes": "two"}, "--nodes: expected whole numbers separated by commas, got 'two'"),
        ({"gpus": "all"}, "--gpus: expected whole numbers separated by commas, got 'all'"),
        ({"batch_size": "big"}, "--batch-size: expected whole numbers separated by commas, got 'big'"),
        ({"shape": "4-8"}, "--shape: expected shapes such as 1n1g,4n8g, got '4-8'"),
        ({"sets": ["seed"]}, "--set: expected key=value, got 'seed'"),
        ({"env": ["NCCL_ALGO"]}, "--env: expected key=value, got 'NCCL_ALGO'"),
        ({"env": ["RANK=1"]},
         "--env RANK: expected a variable that orch does not set itself, got RANK. use --nodes, --gpus or --shape"),
        ({"label": "a\nb"}, "--label: expected one line of at most 80 printable characters, got 'a\\nb'"),
        ({"run_file": run_file("steps: 9\ncolour: red\n")}, "choices.yaml:2: unknown key colour. valid keys: framework, "
         "dtype, batch_size, loader, cpu_binding, options, env, nodes, gpus, shape, steps, warmup_steps, timeout_s, "
         "global_batch, container, ladder, repeats, label, "
         "expect, include, exclude"),
    ],
)  # fmt: skip
def test_words_that_cannot_be_are_refused_with_their_option(words: dict[str, Any], message: str) -> None:
    assert refusal(lambda: request_of("resnet50", **words)) == message


# ------------------------------------------------------------------ precedence


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
    request = request_of("resnet50", nodes="1", gpus="1", run_file=run_file(file) if file else None, **words)
    (spec,) = bench_of(request).cells
    assert (spec.batch_size, spec.origins["batch_size"]) == (value, origin)


def test_single_values_and_options_have_the_same_precedence() -> None:
    document = run_file("steps: 40\ntimeout_s: 9\noptions: {layout: on, seed: 3}\n")
    single = {"steps": 50, "warmup_steps": None, "timeout_s": None}
    (spec,) = bench_of(request_of("resnet50", shape="1n1g", single=single, sets=["seed=4"], run_file=document)).cells
    assert (spec.steps, spec.warmup_steps, spec.timeout_s, dict(spec.options)) == (50, 20, 9, {"layout": "on", "seed": 4})
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
    request = request_of("resnet50", repeats=repeats, until_ci=until_ci, run_file=run_file(file) if file else None)
    assert bench_of(request, hosts=hosts).schedule.repeats == expected


def test_of_several_frameworks_the_one_with_most_repeats_decides() -> None:
    other = replace(FOLDER, framework=replace(FRAMEWORK, name="other", defaults={**FRAMEWORK.defaults, "repeats": 6}))
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
def test_a_shape_remembers_where_it_comes_from(words: dict[str, Any], nodes: str, gpus: str) -> None:
    spec = bench_of(request_of("resnet50", baseline=False, **words)).cells[-1]
    assert (spec.origins["nodes"], spec.origins["gpus"]) == (nodes, gpus)


# ------------------------------------------------------------------ schedule


def test_a_schedule_as_it_was_asked_for() -> None:
    request = request_of("resnet50", repeats=3, order="random", until_ci="0.5%", max_repeats=9, budget="1.5h")
    assert bench_of(request, seed=11).schedule == Schedule("random", 11, 3, 0.005, 9, 5400.0)


@pytest.mark.parametrize(("repeats", "most"), [(2, MOST), (40, 40)])
def test_the_cap_of_repeats_is_at_least_what_a_bench_begins_with(repeats: int, most: int) -> None:
    assert bench_of(request_of("resnet50", repeats=repeats, until_ci="1%")).schedule.max_repeats == most


def test_a_bench_begins_with_no_more_repeats_than_its_cap() -> None:
    schedule = bench_of(request_of("resnet50", until_ci="20%", max_repeats=5)).schedule
    assert (schedule.repeats, schedule.max_repeats) == (5, 5)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"order": "alphabetic"}, "--order: expected balanced, random or interleaved, got 'alphabetic'"),
        ({"max_repeats": 5}, "--max-repeats: expected together with --until-ci. without it, give --repeats"),
        ({"until_ci": "1%", "repeats": 1}, "--repeats: expected 2 to 30 initial repeats, got 1"),
        ({"until_ci": "1%", "repeats": 9, "max_repeats": 8}, "--repeats: expected 2 to 8 initial repeats, got 9"),
        ({"until_ci": "1"}, "--until-ci: expected a percentage above 0 and below 100, such as 1%, got '1'"),
        ({"budget": "soon"}, "--budget: expected a time such as 90s, 30m, 1h30m or 90 (seconds), got 'soon'"),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_with_its_option(words: dict[str, Any], message: str) -> None:
    assert refusal(lambda: bench_of(request_of("resnet50", **words))) == message


def test_intervals_are_refused_of_a_diagnosis() -> None:
    check_measures(request_of("resnet50", until_ci="1%"), [FRAMEWORK])
    check_measures(request_of("resnet50"), [FRAMEWORK, PAIRS.framework])
    assert refusal(lambda: check_measures(request_of("resnet50", until_ci="1%"), [FRAMEWORK, PAIRS.framework])) == (
        "--until-ci: links measures links between pairs of nodes, which has no metric and so no interval. "
        "set the number of runs with --repeats"
    )


# ------------------------------------------------------------------ axes


def settings(bench: Bench) -> list[tuple[Any, ...]]:
    return [(spec.shape, spec.dtype, *spec.settings.values()) for spec in bench.cells]


def test_options_and_variables_are_axes_as_dtypes_and_shapes_are() -> None:
    request = request_of(
        "resnet50", shape="1n1g,2n8g", sets=["seed=1,2", "layout=on"], env=["NCCL_ALGO=Ring,Tree"], baseline=False
    )
    assert settings(bench_of(request)) == [
        (shape, "fp32", "on", seed, algorithm)
        for seed in (1, 2) for algorithm in ("Ring", "Tree") for shape in ("1n1g", "2n8g")
    ]  # fmt: skip
    spec = bench_of(request).cells[0]
    assert {name: spec.origins[name] for name in ("options.seed", "env.NCCL_ALGO")} == {
        "options.seed": "command line", "env.NCCL_ALGO": "command line",
    }  # fmt: skip


def test_a_baseline_has_the_other_axes_of_its_configuration() -> None:
    bench = bench_of(request_of("resnet50", shape="2n8g", sets=["seed=1,2"], env=["NCCL_ALGO=Ring,Tree"]))
    assert settings(bench)[:4] == [
        ("1n1g", "fp32", "auto", seed, algorithm) for seed in (1, 2) for algorithm in ("Ring", "Tree")
    ]  # fmt: skip
    assert borrowable(bench) == bench.cells[:4]


def test_lists_of_a_run_file_are_axes_and_the_command_line_replaces_them() -> None:
    document = run_file(
        "nodes: [1, 2]\ngpus: 8\noptions: {seed: [1, 2]}\nenv: {NCCL_ALGO: [null, Tree]}\nsteps: 40\n"
        "exclude:\n  - {nodes: 1, env: {NCCL_ALGO: Tree}}\ninclude:\n  - {nodes: 2, options: {seed: 2}, steps: 80}\n"
    )
    bench = bench_of(request_of("resnet50", run_file=document, baseline=False))
    assert [(spec.shape, spec.options["seed"], dict(spec.env), spec.steps) for spec in bench.cells] == [
        ("1n8g", 1, {}, 40), ("2n8g", 1, {}, 40), ("2n8g", 1, {"NCCL_ALGO": "Tree"}, 40),
        ("1n8g", 2, {}, 40), ("2n8g", 2, {}, 80), ("2n8g", 2, {"NCCL_ALGO": "Tree"}, 80),
    ]  # fmt: skip
    assert bench.cells[0].origins["nodes"] == bench.cells[0].origins["options.seed"] == "run file"
    bench = bench_of(request_of("resnet50", nodes="2", sets=["seed=7"], run_file=document, baseline=False))
    assert [(spec.shape, spec.options["seed"], dict(spec.env)) for spec in bench.cells] == [
        ("2n8g", 7, {}), ("2n8g", 7, {"NCCL_ALGO": "Tree"}),
    ]  # fmt: skip
    assert (bench.cells[0].origins["nodes"], bench.cells[0].origins["gpus"]) == ("command line", "run file")


def test_a_ladder_and_frameworks_may_be_in_the_run_file() -> None:
    document = run_file("ladder: true\nnodes: 2\ngpus: 2\nframework: [mill, reader]\n")
    request = request_of("resnet50", run_file=document)
    assert request.framework_names(lambda: "other") == ("mill", "reader")
    assert cells_of(bench_of(request, FOLDER, READER)) == [
        f"{name} {shape} fp32" for name in ("mill", "reader") for shape in ("1n1g", "1n2g", "2n2g")
    ]  # fmt: skip
    assert cells_of(bench_of(request_of("resnet50", shape="1n1g", framework="mill", run_file=document))) == ["mill 1n1g fp32"]


def test_a_framework_of_include_does_not_replace_the_default() -> None:
    document = run_file("include:\n  - {nodes: 1, gpus: 1}\n  - {framework: reader, nodes: 2, gpus: 2}\n")
    request = request_of("resnet50", run_file=document)
    assert request.framework_names(lambda: "mill") == ("mill", "reader")
    assert cells_of(bench_of(request, FOLDER, READER)) == ["mill 1n1g fp32", "reader 2n2g fp32"]


# ------------------------------------------------------------------ configurations that are impossible


def skipped_of(bench: Bench) -> list[tuple[str, str]]:
    return [(str(one), one.reason) for one in bench.skipped]


def test_configurations_that_are_impossible_are_skipped_with_their_reason_and_the_others_run() -> None:
    bench = bench_of(request_of("resnet50", nodes="1,2,9", gpus="8", sets=["layout=off,on"], baseline=False))
    assert [(spec.shape, spec.options["layout"]) for spec in bench.cells] == [("1n8g", "off"), ("1n8g", "on"), ("2n8g", "on")]
    too_many = "--nodes: expected 9 hosts, 4 selected: n[1-4]"
    assert skipped_of(bench) == [
        ("mill resnet50 2n8g layout=off", "--set layout: mill: off needs one node"),
        ("mill resnet50 9n8g layout=off", too_many),
        ("mill resnet50 9n8g layout=on", too_many),
    ]


def test_what_the_choices_of_a_run_file_make_impossible_is_named_with_their_place() -> None:
    document = run_file("nodes: [2,\n  9]\ngpus: 8\noptions:\n  layout: [off,\n    on]\n")
    bench = bench_of(request_of("resnet50", run_file=document, baseline=False))
    too_many = "choices.yaml:2: nodes[1]: expected 9 hosts, 4 selected: n[1-4]"
    assert skipped_of(bench) == [
        ("mill resnet50 2n8g layout=off", "choices.yaml:5: options.layout[0]: mill: off needs one node"),
        ("mill resnet50 9n8g layout=off", too_many),
        ("mill resnet50 9n8g layout=on", too_many),
    ]
    steps = "expected more steps than the 30 warm-up steps, got 20"
    for options, place in ({}, "choices.yaml:1: steps: "), ({"single": {"steps": 20}}, "--steps: "):
        request = request_of("resnet50", run_file=run_file("steps: 20\nwarmup_steps: 30\n"), **options)
        assert refusal(lambda request=request: bench_of(request)).startswith(place + steps)


def test_variables_have_the_place_where_they_are_set() -> None:
    document = run_file("env: {A: 1, B: [1, 2]}\ninclude:\n  - {env: {C: 3}}\n")
    assert request_of("resnet50", env=["B=5", "D=1"], run_file=document).variables == {
        "A": "choices.yaml:1: env.A",
        "B": "--env B",
        "C": "choices.yaml:3: include[0].env.C",
        "D": "--env D",
    }


def test_a_dtype_that_this_device_does_not_have_is_skipped() -> None:
    bench = bench_of(request_of("resnet50", shape="1n1g", dtype="fp32,fp16"), hosts=CPUS)
    assert cells_of(bench) == ["mill 1n1g fp32"]
    assert skipped_of(bench) == [("mill resnet50 1n1g dtype=fp16", "--dtype: expected one of fp32 for mill on cpu, got 'fp16'")]


def test_an_option_that_only_one_framework_has_skips_the_configurations_of_the_others() -> None:
    plain = replace(READER, framework=replace(READER.framework, options={}))
    bench = bench_of(request_of("resnet50", shape="1n1g", framework="mill,reader", sets=["seed=5"]), FOLDER, plain)
    assert cells_of(bench) == ["mill 1n1g fp32"]
    assert skipped_of(bench) == [("reader resnet50 1n1g", "--set seed: reader has no option 'seed'")]


def test_strict_refuses_a_bench_with_an_impossible_configuration_and_names_each_reason_once() -> None:
    request = request_of("resnet50", nodes="1,2,9", sets=["layout=off,on"], strict=True)
    with pytest.raises(Faults) as caught:
        bench_of(request)
    assert [str(error) for error in caught.value.errors] == [
        "--set layout: mill: off needs one node",
        "--nodes: expected 9 hosts, 4 selected: n[1-4]. select more hosts with --hosts, or lower --nodes",
    ]
    assert bench_of(replace(request, nodes=(1,))).skipped == ()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"dtype": "fp32,fp61"}, "--dtype: expected one of fp32, fp16 for mill on cuda, got 'fp61'. did you mean 'fp16'?"),
        ({"nodes": "1,0"}, "--nodes: expected a whole number ≥ 1, got 0"),
        ({"batch_size": "64,-1"}, "--batch-size: expected a whole number ≥ 1, got -1"),
        ({"batch_size": "64,,128"}, "--batch-size: expected a value before and after each comma, got '64,,128'"),
        ({"batch_size": "9" * 20}, f"--batch-size: expected a whole number of at most 1099511627776, got {'9' * 20}"),
        ({"shape": "1n1g,"}, "--shape: expected a value before and after each comma, got '1n1g,'"),
        ({"sets": ["seed=" + "9" * 20]}, f"--set seed: expected a whole number of at most 64 bits, got '{'9' * 20}'"),
        ({"loader": "native,natvie"},
         "--loader: expected one of synthetic, native for mill, got 'natvie'. did you mean 'native'?"),
        ({"sets": ["layout=on,of"]}, "--set layout: expected one of auto, on, off, got 'of'"),
        ({"sets": ["sead=1,2"]}, "--set sead: mill has no option 'sead'. it has layout=auto, seed=0; did you mean 'seed'?"),
        ({"run_file": run_file("dtype:\n  - fp32\n  - fp61\n")},
         "choices.yaml:3: dtype[1]: expected one of fp32, fp16 for mill on cuda, got 'fp61'. did you mean 'fp16'?"),
        ({"run_file": run_file("nodes: [1, 2]\ninclude:\n  - {nodes: 2, options: {seed: big}}\n")},
         "choices.yaml:3: include[0].options.seed: expected a whole number, got 'big'"),
        ({"run_file": run_file("nodes: [1]\nexclude: [{nodes: 1}]\n")},
         "--file: expected a configuration that exclude: leaves and the command line allows, there is none"),
    ],
)  # fmt: skip
def test_a_value_that_no_configuration_can_have_is_refused(words: dict[str, Any], message: str) -> None:
    assert refusal(lambda: bench_of(request_of("resnet50", **words))) == message


def test_a_fault_in_a_template_refuses_the_bench_wherever_it_shows() -> None:
    broken = replace(FOLDER, sources={"launch.sh.j2": "{% if spec.nodes > 1 %}{{ colour }}{% endif %}"})
    with pytest.raises(ConfigError) as caught:
        bench_of(request_of("resnet50", nodes="1,2"), broken)
    assert caught.value.kind == "template_error"


# ------------------------------------------------------------------ cells and baselines


def test_a_bench_begins_with_the_baselines_that_it_lacks() -> None:
    bench = bench_of(request_of("resnet50", nodes="1,2", gpus="1", dtype="fp32,fp16"))
    assert cells_of(bench) == ["mill 1n1g fp32", "mill 2n1g fp32", "mill 1n1g fp16", "mill 2n1g fp16"]
    assert borrowable(bench) == ()
    bench = bench_of(request_of("resnet50", nodes="2,4", dtype="fp32,fp16"))
    assert cells_of(bench) == [
        "mill 1n1g fp32", "mill 1n1g fp16", "mill 2n8g fp32", "mill 4n8g fp32", "mill 2n8g fp16", "mill 4n8g fp16",
    ]  # fmt: skip
    assert borrowable(bench) == bench.cells[:2]


def test_no_baseline_is_run_where_none_is_wanted_and_where_there_is_no_speed() -> None:
    assert cells_of(bench_of(request_of("resnet50", baseline=False))) == ["mill 4n8g fp32"]
    assert cells_of(bench_of(request_of("resnet50", gpus="8", framework="mill,reader"), FOLDER, READER)) == [
        "mill 1n1g fp32", "mill 4n8g fp32", "reader 4n8g fp32",
    ]  # fmt: skip


def test_a_baseline_that_a_template_refuses_is_skipped() -> None:
    refuses = "{% if spec.nodes == 1 %}{{ refuse('--nodes', 'expected 2 or more') }}{% endif %}"
    bench = bench_of(request_of("resnet50", shape="2n8g"), replace(FOLDER, sources={"launch.sh.j2": refuses}))
    assert cells_of(bench) == ["mill 2n8g fp32"]
    assert skipped_of(bench) == [("mill resnet50 1n1g dtype=fp32", "as a baseline: --nodes: mill: expected 2 or more")]


def test_cells_whose_runs_are_borrowed_are_left_out_and_the_others_keep_their_order() -> None:
    bench = bench_of(request_of("resnet50", nodes="2,4", dtype="fp32,fp16", repeats=2))
    assert without(bench, []) == bench
    rest = without(bench, borrowable(bench)[:1])
    assert cells_of(rest) == ["mill 1n1g fp16", "mill 2n8g fp32", "mill 4n8g fp32", "mill 2n8g fp16", "mill 4n8g fp16"]
    assert [run.run_id for run in rest.planned()][0] == "b1.001-mill-resnet50-1n1g-fp16-r1"
    assert (len(rest.planned()), rest.schedule, rest.bench_id) == (10, bench.schedule, bench.bench_id)


def test_where_repeats_are_added_a_baseline_is_run_and_not_borrowed() -> None:
    bench = bench_of(request_of("resnet50", until_ci="1%"))
    assert cells_of(bench) == ["mill 1n1g fp32", "mill 4n8g fp32"] and borrowable(bench) == ()


def test_each_cell_is_rendered_as_a_check_before_there_is_a_bench() -> None:
    request = request_of("resnet50", nodes="1,2", sets=["layout=off"])
    assert refusal(lambda: bench_of(replace(request, nodes=(2, 4)))) == "--set layout: mill: off needs one node"
    assert [spec.nodes for spec in checked_specs(request, [FOLDER], HOSTS)] == [1]


def test_what_the_hosts_cannot_carry_is_refused() -> None:
    assert refusal(lambda: bench_of(request_of("resnet50", nodes="9"))).startswith(
        "--nodes: expected 9 hosts, 4 selected: n[1-4]"
    )
    assert refusal(lambda: bench_of(request_of("resnet50", gpus="9"))).startswith("--gpus: expected 9 gpus per node on 4 nodes")


# ------------------------------------------------------------------ tunes


def tune(**words: Any) -> Request:
    return tune_request("resnet50", **{"shape": "", "sets": [], "budget": "20m", "single": {}, **words})


def test_a_tune_is_one_cell_run_once_within_its_budget_and_without_a_baseline() -> None:
    bench = bench_of(tune(shape="2n4g", sets=["seed=5"], single={"dtype": "fp16", "steps": 40}), seed=0)
    assert cells_of(bench) == ["mill 2n4g fp16"] and bench.schedule == Schedule(budget_s=1200.0)
    assert (bench.cells[0].steps, bench.cells[0].options["seed"]) == (40, 5)
    assert cells_of(bench_of(tune())) == ["mill 4n8g fp32"]
    assert bench_of(tune(single={"container": "podman:localhost/pt"})).cells[0].container == "podman:localhost/pt"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"shape": "1n1g,2n1g"}, "--shape: expected one shape, got 1n1g,2n1g. settings of one shape may not suit another"),
        ({"shape": "all"}, "--shape: expected shapes such as 1n1g,4n8g, got 'all'"),
        ({"sets": ["seed"]}, "--set: expected key=value, got 'seed'"),
        ({"sets": ["seed=1,2"]},
         "--set seed: expected one value, got 1,2. put quotes around a value that contains a comma"),
        ({"budget": "soon"}, "--budget: expected a time such as 90s, 30m, 1h30m or 90 (seconds), got 'soon'"),
    ],
)  # fmt: skip
def test_a_tune_that_cannot_be_is_refused_with_its_option(words: dict[str, Any], message: str) -> None:
    assert refusal(lambda: bench_of(tune(**words))) == message


def test_a_knob_that_an_option_fixes_is_not_turned() -> None:
    assert [knob.name for knob in free_knobs(FRAMEWORK, tune())] == ["NCCL_ALGO", "layout", "seed"]
    assert [knob.name for knob in free_knobs(FRAMEWORK, tune(sets=["seed=5"]))] == ["NCCL_ALGO", "layout"]
    message = "--framework: mill has no parameters to tune. list them under tunes: in its framework.yaml"
    assert refusal(lambda: free_knobs(replace(FRAMEWORK, tunes=()), tune())) == message


def test_one_word_lets_a_tune_change_the_computed_numbers() -> None:
    assert allows_numerics("numerics") and not allows_numerics("")
    assert refusal(lambda: allows_numerics("all")) == "--allow: expected numerics, got 'all'"
