"""What is measured: one straight line of precedence, an origin for every value, and refusals that
name the remedy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.errors import ConfigError
from orchestrator.inventory.hosts import Host
from orchestrator.plan.baselines import baseline_of, missing_baselines
from orchestrator.plan.configurations import configure
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.request import Request
from orchestrator.plan.spec import RunSpec, resolve
from tests.support.mill import MILL

FOLDER = FrameworkFolder(MILL, {"launch.sh.j2": ""}, {"rank_wrapper.py": b""})
SHAPE = {"nodes": 2, "gpus": 4}


def resolved(
    device: str = "cuda",
    model: str = "resnet50",
    *,
    choices: Mapping[str, Any] = {},
    sets: Mapping[str, str] = {},
    run_file: Mapping[str, Any] = {},
) -> RunSpec:
    given = SHAPE | choices | {f"options.{name}": text for name, text in sets.items()}
    commanded = {name for name, value in given.items() if value is not None}
    origins = dict.fromkeys(run_file.keys() - commanded, "run file")
    whole = {**given, **{name: run_file[name] for name in origins}}
    return resolve(MILL, model, device=device, choices=whole, origins=origins)


@pytest.mark.parametrize(
    ("device", "choices", "run_file", "value", "origin"),
    [
        ("cuda", {}, {}, 128, "mill default"),
        ("cpu", {}, {}, 2, "mill default on cpu"),
        ("cpu", {}, {"batch_size": 64}, 64, "run file"),
        ("cuda", {"batch_size": 32}, {}, 32, "command line"),
        ("cuda", {"batch_size": 32}, {"batch_size": 64}, 32, "command line"),
        ("cuda", {"batch_size": None}, {"batch_size": 64}, 64, "run file"),
    ],
)
def test_defaults_yield_to_the_run_file_and_both_to_the_command_line(
    device: str, choices: dict[str, Any], run_file: dict[str, Any], value: int, origin: str
) -> None:
    spec = resolved(device, choices=choices, run_file=run_file)
    assert (spec.batch_size, spec.origins["batch_size"]) == (value, origin)


@pytest.mark.parametrize(
    ("device", "sets", "run_file", "value", "origin"),
    [
        ("cuda", {}, {}, 224, "mill default"),
        ("cpu", {}, {}, 32, "mill default on cpu"),
        ("cpu", {}, {"options.image_size": "64"}, 64, "run file"),
        ("cpu", {"image_size": "48"}, {"options.image_size": "64"}, 48, "command line"),
    ],
)
def test_options_follow_the_same_line(
    device: str, sets: dict[str, str], run_file: dict[str, Any], value: int, origin: str
) -> None:
    spec = resolved(device, sets=sets, run_file=run_file)
    assert (spec.options["image_size"], spec.origins["options.image_size"]) == (value, origin)


def test_every_value_has_an_origin() -> None:
    spec = resolved()
    names = {key for key in spec.as_dict() if key not in ("options", "device")}
    assert names | {f"options.{name}" for name in MILL.options} == set(spec.origins)
    assert "origins" not in spec.as_dict()


def test_what_follows_from_a_spec() -> None:
    spec = resolved()
    assert (spec.world_size, spec.global_batch, spec.shape) == (8, 1024, "2n4g")


def test_origins_do_not_make_two_specs_different() -> None:
    spec = resolved()
    assert spec == replace(spec, origins={})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("YES", True),
        ("on", True),
        ("1", True),
        ("false", False),
        ("no", False),
        ("Off", False),
        ("0", False),
    ],
)
def test_words_for_yes_and_no(text: str, value: bool) -> None:
    assert resolved(sets={"compile": text}).options["compile"] is value


@given(st.text(st.characters(exclude_characters="\0\r"), max_size=200))
def test_a_free_text_is_taken_as_it_is(text: str) -> None:
    assert resolved(sets={"note": text}).options["note"] == text


@pytest.mark.parametrize("text", ["\r", "line\r\n", "a\0b"])
def test_a_text_that_no_file_could_hold_is_refused_naming_the_option(text: str) -> None:
    with pytest.raises(
        ConfigError, match="expected text without NUL and carriage return"
    ) as raised:
        resolved(sets={"note": text})
    assert raised.value.where == "--set note"


@given(st.text(max_size=30))
def test_no_text_makes_an_option_of_another_type(text: str) -> None:
    for name, kind in (("image_size", int), ("rate", float), ("compile", bool)):
        try:
            value = resolved(sets={name: text}).options[name]
        except ConfigError as error:
            assert error.where == f"--set {name}"
        else:
            assert type(value) is kind


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"model": "resnet5"}, "model: mill has no model 'resnet5'. it has resnet50, vgg16; did you mean 'resnet50'?"),
        ({"choices": {"nodes": 0}}, "--nodes: expected a whole number ≥ 1, got 0"),
        ({"choices": {"gpus": -1}}, "--gpus: expected a whole number ≥ 1, got -1"),
        ({"choices": {"batch_size": 0}}, "--batch-size: expected a whole number ≥ 1, got 0"),
        ({"run_file": {"batch_size": "128"}}, "--batch-size: expected a whole number ≥ 1, got '128'"),
        ({"run_file": {"steps": True}}, "--steps: expected a whole number ≥ 1, got True"),
        ({"run_file": {"timeout_s": "soon"}}, "--timeout: expected seconds above 0, got 'soon'"),
        ({"choices": {"timeout_s": 0.0}}, "--timeout: expected seconds above 0, got 0.0"),
        ({"choices": {"timeout_s": float("nan")}}, "--timeout: expected seconds above 0, got nan"),
        ({"choices": {"steps": 20}}, "--steps: expected more steps than the 20 warm-up steps, got 20. "
                                     "--steps includes the warm-up; the steps after it are measured"),
        ({"choices": {"loader": "dali"}}, "--loader: expected one of synthetic, native for mill, got 'dali'"),
        ({"choices": {"dtype": "fp61"}}, "--dtype: expected one of fp32, fp16 for mill on cuda, got 'fp61'. "
                                         "did you mean 'fp16'?"),
        ({"device": "cpu", "choices": {"dtype": "fp16"}}, "--dtype: expected one of fp32 for mill on cpu, got 'fp16'"),
        ({"sets": {"image_size": "16"}}, "--set image_size: expected a whole number ≥ 32, got '16'"),
        ({"sets": {"image_size": "big"}}, "--set image_size: expected a whole number ≥ 32, got 'big'"),
        ({"sets": {"rate": "nan"}}, "--set rate: expected a number ≥ 0, got 'nan'"),
        ({"sets": {"rate": "inf"}}, "--set rate: expected a number ≥ 0, got 'inf'"),
        ({"sets": {"compile": "maybe"}}, "--set compile: expected true or false, got 'maybe'"),
        ({"sets": {"layout": "of"}}, "--set layout: expected one of auto, on, off, got 'of'"),
        ({"sets": {"imagesize": "64"}}, "--set imagesize: mill has no option 'imagesize'. it has image_size=224, rate=0.1, "
                                        "compile=False, layout=auto, note=; did you mean 'image_size'?"),
        ({"run_file": {"options.colour": "1"}}, "--set colour: mill has no option 'colour'. it has image_size=224, "
                                                   "rate=0.1, compile=False, layout=auto, note="),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused_with_place_expectation_and_remedy(
    kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(**kwargs)
    assert str(caught.value) == message


HOSTS = [Host(f"n{n}", f"10.0.0.{n}", gpus=8) for n in range(1, 5)]


def shapes(request: Request, hosts: list[Host] = HOSTS) -> list[str]:
    return [spec.shape for spec in configure(request, [FOLDER], hosts).specs]


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Request("resnet50"), ["4n8g"]),
        (Request("resnet50", nodes=(4,)), ["4n8g"]),
        (Request("resnet50", nodes=(1, 2), gpus=(1, 8)), ["1n1g", "1n8g", "2n1g", "2n8g"]),
        (Request("resnet50", gpus=(2,)), ["4n2g"]),
        (Request("resnet50", shapes=((1, 1), (4, 8))), ["1n1g", "4n8g"]),
        (Request("resnet50", ladder=True), ["1n1g", "1n2g", "1n4g", "1n8g", "2n8g", "4n8g"]),
        (Request("resnet50", ladder=True, nodes=(2,), gpus=(2,)), ["1n1g", "1n2g", "2n2g"]),
        (Request("resnet50", nodes=(2, 2)), ["2n8g"]),
    ],
)
def test_the_shapes_that_a_request_means(request_: Request, expected: list[str]) -> None:
    assert shapes(request_) == expected


def test_axes_make_cells_with_shapes_varying_fastest() -> None:
    request = Request("resnet50", nodes=(1, 2), axes={"dtype": ("fp32", "fp16")})
    made = configure(request, [FOLDER], HOSTS).specs
    assert [(spec.dtype, spec.nodes) for spec in made] == [
        ("fp32", 1),
        ("fp32", 2),
        ("fp16", 1),
        ("fp16", 2),
    ]


def test_the_smallest_host_of_those_used_sets_the_ranks_per_node() -> None:
    mixed = [*HOSTS[:2], Host("n9", "10.0.0.9", gpus=4)]
    assert shapes(Request("resnet50", nodes=(2,)), mixed) == ["2n8g"]
    assert shapes(Request("resnet50", nodes=(3,)), mixed) == ["3n4g"]


def test_hosts_with_and_without_gpus_do_not_mix_and_the_remedy_is_given() -> None:
    with pytest.raises(ConfigError) as caught:
        configure(Request("resnet50"), [FOLDER], [*HOSTS, Host("c1", "10.0.0.9", gpus=0)])
    assert str(caught.value) == (
        "--hosts: expected hosts of one kind, got n[1-4] with GPUs and c1 without. exclude one kind: -x c1"
    )


def test_unknown_numbers_of_gpus_must_be_said() -> None:
    hosts = [Host("n1", "10.0.0.1"), Host("n2", "10.0.0.2", gpus=8)]
    with pytest.raises(
        ConfigError,
        match="--gpus: the inventory does not give the number of GPUs of n1. give --gpus N, or set "
        "gpus: in the inventory, to 0 for nodes without GPUs",
    ):
        configure(Request("resnet50"), [FOLDER], hosts)
    assert shapes(Request("resnet50", gpus=(4,)), hosts) == ["2n4g"]


def test_a_baseline_is_the_same_spec_on_one_rank_and_wanted_once() -> None:
    wide = configure(
        Request("resnet50", nodes=(2, 4), axes={"dtype": ("fp32", "fp16")}), [FOLDER], HOSTS
    ).specs
    missing = missing_baselines(wide)
    assert [(spec.shape, spec.dtype) for spec in missing] == [("1n1g", "fp32"), ("1n1g", "fp16")]
    assert missing[0] == replace(wide[0], nodes=1, gpus=1) == baseline_of(wide[1])
    assert missing[0].origins["nodes"] == "baseline"
    assert missing_baselines([*missing, *wide]) == ()
