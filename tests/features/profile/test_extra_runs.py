"""The extra run that is traced: what is asked for, and what becomes of a configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.errors import ConfigError
from orchestrator.features.profile.extra_runs import Profile, read_extra_runs
from orchestrator.plan.bench import Bench
from orchestrator.plan.folders import open_framework
from orchestrator.plan.schedule import Schedule
from tests.support.cells import SPEC

FOUR = replace(SPEC, nodes=2, gpus=2, env={"NCCL_ALGO": "Ring"})


@pytest.mark.parametrize(
    ("text", "profile"),
    [
        ("torch", Profile(5, ())),
        ("torch:steps=2", Profile(2, ())),
        ("torch:ranks=3,0,3:steps=7", Profile(7, (3, 0))),
    ],
)
def test_what_is_written_is_what_is_read_back(text: str, profile: Profile) -> None:
    assert read_extra_runs(text) == profile == read_extra_runs(str(profile))


@pytest.mark.parametrize(
    "text",
    ["", "perf", "nsys", "torch:", "torch:steps=0", "torch:steps=51", "torch:steps=x", "torch:ranks=", "torch:ranks=1,,2",
     "torch:ranks=-1", "torch:3", "torch:ranks=" + ",".join(map(str, range(17)))],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--profile: expected"):
        read_extra_runs(text)


def test_the_first_and_the_last_rank_are_traced_if_none_is_named_and_no_rank_that_is_not_there() -> (
    None
):
    assert [Profile().ranks_of(world) for world in (1, 2, 8)] == [(0,), (0, 1), (0, 7)]
    assert Profile(5, (0, 3, 9)).ranks_of(4) == (0, 3)


def test_ranks_that_no_configuration_has_are_refused() -> None:
    read_extra_runs("torch:ranks=3,9").check([SPEC, FOUR])
    with pytest.raises(ConfigError, match="expected ranks from 0 to 3, got torch:steps=5:ranks=9"):
        read_extra_runs("torch:ranks=9").check([SPEC, FOUR])


def test_the_extra_run_is_shorter_and_differs_in_one_variable() -> None:
    spec = Profile(steps=3).spec_of(FOUR)
    assert spec and spec.env == {"NCCL_ALGO": "Ring", "ORCH_PROFILE": "steps=3 ranks=0,3"}
    assert (spec.steps, spec.warmup_steps, spec.options) == (23, 20, FOUR.options)
    assert not spec.is_run_of(FOUR)
    short = replace(FOUR, steps=6, warmup_steps=4)
    traced = Profile(steps=5).spec_of(short)
    assert traced and (traced.steps, traced.env["ORCH_PROFILE"]) == (6, "steps=2 ranks=0,3")


def test_a_configuration_without_the_ranks_has_no_extra_run_and_the_others_keep_their_cells() -> (
    None
):
    folder = open_framework("pytorch")
    bench = Bench("b", (SPEC, FOUR), {"pytorch": folder}, Schedule(), extra=Profile(ranks=(3,)))
    ((run, cell),) = bench.extra_runs()
    assert (run.run_id, cell) == ("b.profile-002-pytorch-resnet50-2n2g-fp32", FOUR)


def test_extra_runs_are_none_of_the_planned_ones() -> None:
    folder = open_framework("pytorch")
    bench = Bench("b", (SPEC, FOUR), {"pytorch": folder}, Schedule(repeats=3))
    assert bench.extra_runs() == []
    traced = replace(bench, extra=Profile())
    assert traced.list_runs() == bench.list_runs()
    assert [run.run_id for run, _ in traced.extra_runs()] == [
        "b.profile-001-pytorch-resnet50-1n1g-fp32",
        "b.profile-002-pytorch-resnet50-2n2g-fp32",
    ]
    assert {run.repeat for run, _ in traced.extra_runs()} == {4}


def test_a_program_that_cannot_trace_its_steps_is_refused() -> None:
    traced = [open_framework(name).framework for name in ("pytorch", "pytorch_lm")]
    Profile().check_frameworks(traced)
    with pytest.raises(
        ConfigError, match="expected a framework whose trainer traces its steps, got simulated"
    ):
        Profile().check_frameworks([*traced, open_framework("simulated").framework])
