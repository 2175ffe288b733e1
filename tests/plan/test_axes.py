"""Lists are axes: the cells that a bench has of them, and the baselines of those."""

from __future__ import annotations

from typing import Any

from orchestrator.plan.baselines import borrowable, without_cells
from orchestrator.plan.bench import Bench
from orchestrator.plan.request import request_of
from tests.plan.mill_benches import FOLDER, READER, bench_of, cells_of, run_file


def settings(bench: Bench) -> list[tuple[Any, ...]]:
    return [(spec.shape, spec.dtype, *spec.settings.values()) for spec in bench.cells]


def test_options_and_variables_are_axes_as_dtypes_and_shapes_are() -> None:
    request = request_of(
        "resnet50",
        shape="1n1g,2n8g",
        options=["seed=1,2", "layout=on"],
        env=["NCCL_ALGO=Ring,Tree"],
        baseline=False,
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
    bench = bench_of(
        request_of("resnet50", shape="2n8g", options=["seed=1,2"], env=["NCCL_ALGO=Ring,Tree"])
    )
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
    bench = bench_of(
        request_of("resnet50", nodes="2", options=["seed=7"], run_file=document, baseline=False)
    )
    assert [(spec.shape, spec.options["seed"], dict(spec.env)) for spec in bench.cells] == [
        ("2n8g", 7, {}), ("2n8g", 7, {"NCCL_ALGO": "Tree"}),
    ]  # fmt: skip
    assert (bench.cells[0].origins["nodes"], bench.cells[0].origins["gpus"]) == (
        "command line",
        "run file",
    )


def test_a_ladder_and_frameworks_may_be_in_the_run_file() -> None:
    document = run_file("ladder: true\nnodes: 2\ngpus: 2\nframework: [mill, reader]\n")
    request = request_of("resnet50", run_file=document)
    assert request.framework_names(lambda: "other") == ("mill", "reader")
    assert cells_of(bench_of(request, FOLDER, READER)) == [
        f"{name} {shape} fp32" for name in ("mill", "reader") for shape in ("1n1g", "1n2g", "2n2g")
    ]  # fmt: skip
    assert cells_of(
        bench_of(request_of("resnet50", shape="1n1g", framework="mill", run_file=document))
    ) == ["mill 1n1g fp32"]


def test_a_framework_of_include_does_not_replace_the_default() -> None:
    document = run_file(
        "include:\n  - {nodes: 1, gpus: 1}\n  - {framework: reader, nodes: 2, gpus: 2}\n"
    )
    request = request_of("resnet50", run_file=document)
    assert request.framework_names(lambda: "mill") == ("mill", "reader")
    assert cells_of(bench_of(request, FOLDER, READER)) == ["mill 1n1g fp32", "reader 2n2g fp32"]


def test_a_bench_begins_with_the_baselines_that_it_lacks() -> None:
    bench = bench_of(request_of("resnet50", nodes="1,2", gpus="1", dtype="fp32,fp16"))
    assert cells_of(bench) == [
        "mill 1n1g fp32",
        "mill 2n1g fp32",
        "mill 1n1g fp16",
        "mill 2n1g fp16",
    ]
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


def test_cells_whose_runs_are_borrowed_are_left_out_and_the_others_keep_their_order() -> None:
    bench = bench_of(request_of("resnet50", nodes="2,4", dtype="fp32,fp16", repeats=2))
    assert without_cells(bench, []) == bench
    rest = without_cells(bench, borrowable(bench)[:1])
    assert cells_of(rest) == [
        "mill 1n1g fp16",
        "mill 2n8g fp32",
        "mill 4n8g fp32",
        "mill 2n8g fp16",
        "mill 4n8g fp16",
    ]
    assert [run.run_id for run in rest.list_runs()][0] == "b1.001-mill-resnet50-1n1g-fp16-r1"
    assert (len(rest.list_runs()), rest.schedule, rest.bench_id) == (
        10,
        bench.schedule,
        bench.bench_id,
    )


def test_where_repeats_are_added_a_baseline_is_run_and_not_borrowed() -> None:
    bench = bench_of(request_of("resnet50", until_ci="1%"))
    assert cells_of(bench) == ["mill 1n1g fp32", "mill 4n8g fp32"] and borrowable(bench) == ()
