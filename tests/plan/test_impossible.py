"""Configurations that are impossible: skipped with their reason, or refused where nothing is left."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orchestrator.errors import ConfigError, Faults
from orchestrator.plan.configurations import configure
from orchestrator.plan.request import request_of
from tests.plan.mill_benches import (
    CPUS,
    FOLDER,
    HOSTS,
    READER,
    bench_of,
    cells_of,
    refusal,
    run_file,
    skipped_of,
)


def test_configurations_that_are_impossible_are_skipped_with_their_reason_and_the_others_run() -> (
    None
):
    bench = bench_of(
        request_of("resnet50", nodes="1,2,9", gpus="8", options=["layout=off,on"], baseline=False)
    )
    assert [(spec.shape, spec.options["layout"]) for spec in bench.cells] == [
        ("1n8g", "off"),
        ("1n8g", "on"),
        ("2n8g", "on"),
    ]
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
        (
            "mill resnet50 2n8g layout=off",
            "choices.yaml:5: options.layout[0]: mill: off needs one node",
        ),
        ("mill resnet50 9n8g layout=off", too_many),
        ("mill resnet50 9n8g layout=on", too_many),
    ]
    steps = "expected more steps than the 30 warm-up steps, got 20"
    for options, place in ({}, "choices.yaml:1: steps: "), ({"steps": 20}, "--steps: "):
        request = request_of(
            "resnet50", run_file=run_file("steps: 20\nwarmup_steps: 30\n"), **options
        )
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
    assert skipped_of(bench) == [
        (
            "mill resnet50 1n1g dtype=fp16",
            "--dtype: expected one of fp32 for mill on cpu, got 'fp16'",
        )
    ]


def test_an_option_that_only_one_framework_has_skips_the_configurations_of_the_others() -> None:
    plain = replace(READER, framework=replace(READER.framework, options={}))
    bench = bench_of(
        request_of("resnet50", shape="1n1g", framework="mill,reader", options=["seed=5"]),
        FOLDER,
        plain,
    )
    assert cells_of(bench) == ["mill 1n1g fp32"]
    assert skipped_of(bench) == [
        ("reader resnet50 1n1g", "--set seed: reader has no option 'seed'")
    ]


def test_of_a_folder_without_options_that_is_said() -> None:
    plain = replace(READER, framework=replace(READER.framework, options={}))
    request = request_of("resnet50", shape="1n1g", framework="reader", options=["width=4"])
    with pytest.raises(ConfigError) as caught:
        bench_of(request, plain)
    assert str(caught.value) == "--set width: reader has no option 'width'. it has none"


def test_strict_refuses_a_bench_with_an_impossible_configuration_and_names_each_reason_once() -> (
    None
):
    request = request_of("resnet50", nodes="1,2,9", options=["layout=off,on"], strict=True)
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
        ({"options": ["seed=" + "9" * 20]}, f"--set seed: expected a whole number of at most 64 bits, got '{'9' * 20}'"),
        ({"loader": "native,natvie"},
         "--loader: expected one of synthetic, native for mill, got 'natvie'. did you mean 'native'?"),
        ({"options": ["layout=on,of"]}, "--set layout: expected one of auto, on, off, got 'of'"),
        ({"options": ["sead=1,2"]}, "--set sead: mill has no option 'sead'. it has layout=auto, seed=0; did you mean 'seed'?"),
        ({"run_file": run_file("dtype:\n  - fp32\n  - fp61\n")},
         "choices.yaml:3: dtype[1]: expected one of fp32, fp16 for mill on cuda, got 'fp61'. did you mean 'fp16'?"),
        ({"run_file": run_file("nodes: [1, 2]\ninclude:\n  - {nodes: 2, options: {seed: big}}\n")},
         "choices.yaml:3: include[0].options.seed: expected a whole number, got 'big'"),
        ({"run_file": run_file("nodes: [1]\nexclude: [{nodes: 1}]\n")},
         "--file: expected at least one configuration after exclude: and the options of the command line, got none"),
    ],
)  # fmt: skip
def test_a_value_that_no_configuration_can_have_is_refused(
    words: dict[str, Any], message: str
) -> None:
    assert refusal(lambda: bench_of(request_of("resnet50", **words))) == message


def test_a_fault_in_a_template_refuses_the_bench_wherever_it_shows() -> None:
    broken = replace(
        FOLDER, sources={"launch.sh.j2": "{% if spec.nodes > 1 %}{{ colour }}{% endif %}"}
    )
    with pytest.raises(ConfigError) as caught:
        bench_of(request_of("resnet50", nodes="1,2"), broken)
    assert caught.value.kind == "template_error"


def test_a_baseline_that_a_template_refuses_is_skipped() -> None:
    refuses = "{% if spec.nodes == 1 %}{{ refuse('--nodes', 'expected 2 or more') }}{% endif %}"
    bench = bench_of(
        request_of("resnet50", shape="2n8g"), replace(FOLDER, sources={"launch.sh.j2": refuses})
    )
    assert cells_of(bench) == ["mill 2n8g fp32"]
    assert skipped_of(bench) == [
        ("mill resnet50 1n1g dtype=fp32", "as a baseline: --nodes: mill: expected 2 or more")
    ]


def test_each_cell_is_rendered_as_a_check_before_there_is_a_bench() -> None:
    request = request_of("resnet50", nodes="1,2", options=["layout=off"])
    assert (
        refusal(lambda: bench_of(replace(request, nodes=(2, 4))))
        == "--set layout: mill: off needs one node"
    )
    assert [spec.nodes for spec in configure(request, [FOLDER], HOSTS).specs] == [1]


def test_what_the_hosts_cannot_carry_is_refused() -> None:
    assert refusal(lambda: bench_of(request_of("resnet50", nodes="9"))).startswith(
        "--nodes: expected 9 hosts, 4 selected: n[1-4]"
    )
    assert refusal(lambda: bench_of(request_of("resnet50", gpus="9"))).startswith(
        "--gpus: expected 9 gpus per node on 4 nodes"
    )
