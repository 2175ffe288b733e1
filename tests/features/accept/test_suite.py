"""Suites: what a file may say, what fits a budget, and that those that come with orch can be
planned on either device.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from orchestrator import yamlfile
from orchestrator.errors import ConfigError, Faults
from orchestrator.features.accept.suite import choices_of, fit_stages, references_of, suite_of
from orchestrator.features.accept.suite_files import open_references, open_suite, suites
from orchestrator.plan.run_file import run_file_of

SMALL = """\
title: small
stages:
  - {name: checks, checks: [gpus, ecc], framework: gemm, run: 30s}
  - name: gemm
    bench: gemm
    choices: {dtype: bf16, repeats: 3, options: {sizes: "8192"}}
    run: 20s
    per_node: 2s
    needs: [checks]
    bars: [{metric: tflops_rank, at: {size: 8192}, peers: 3%, earlier: 5%}]
    cpu: {choices: {dtype: fp32, options: {group: $ranks, all: [$nodes]}}, run: 5s, bars: []}
"""


def test_a_stage_has_choices_of_a_run_file_and_others_on_a_cpu() -> None:
    document = yamlfile.loads(SMALL, "small.yaml")
    on_gpu, on_cpu = (suite_of(document, "small", device).stages[1] for device in ("cuda", "cpu"))
    assert (on_gpu.run_s, on_gpu.bars[0].peers, on_gpu.bars[0].at) == (20.0, 0.03, {"size": "8192"})
    assert on_gpu.estimate_s(runs=3, nodes=4) == 3 * (20 + 2 * 4)
    assert (on_cpu.run_s, on_cpu.per_node_s, on_cpu.bars) == (5.0, 2.0, ())
    assert run_file_of(choices_of(document, on_gpu, 4, 8)).single["dtype"] == "bf16"
    filled = choices_of(document, on_cpu, nodes=4, ranks=8)
    assert filled.value["options"] == {"group": 8, "all": [4]}
    assert (
        filled.where(("options",))
        == f"small.yaml:{document.line(('stages', 1, 'cpu'))}: stages[1].cpu.choices.options"
    )
    assert (
        on_cpu.paths["bench"] == ("stages", 1, "bench")
        and choices_of(document, on_cpu, 4, 8) == filled
    )


def test_every_fault_is_named_with_its_place() -> None:
    text = (
        SMALL.replace("dtype: bf16", "dtypes: bf16")
        .replace("needs: [checks]", "needs: [check]")
        .replace("3%", "3")
    )
    with pytest.raises(Faults) as caught:
        suite_of(yamlfile.loads(text, "small.yaml"), "small", "cuda")
    texts = [str(error) for error in caught.value.errors]
    assert len(texts) == 3 and all(text.startswith("small.yaml:") for text in texts)
    assert any("unknown key dtypes" in text for text in texts) and any(
        "did you mean 'checks'" in text for text in texts
    )


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("needs: [checks]", "optional: maybe", "optional: expected true or false, got 'maybe'"),
        ("framework: gemm, run: 30s", "run: 30s", "expected a framework, whose interpreter the checks start"),
        ("run: 20s", "run: 1e12", "run: expected a time of 0s or more, at most "),
        ("checks: [gpus, ecc]", "checks: []", "stages[0].checks: expected all, or a list of names of checks, got []"),
        ("bench: gemm", "title: gemm", "stages[1]: expected either checks or bench, got neither"),
        ("bench: gemm", "bench: gemm\n    checks: all", "stages[1]: expected either checks or bench, got both"),
        ("framework: gemm, ", "framework: gemm, bars: [], ", "stages[0].bars: expected no bars beside checks"),
        ("framework: gemm, ", "framework: gemm, optional: true, ", "stages[0].optional: expected no optional beside checks"),
        ("framework: gemm, ", "framework: gemm, choices: {steps: 3}, ", "stages[0].choices: expected no choices beside"),
        ("name: gemm", "name: ../../etc", "stages[1].name: expected a name of at most 60 letters, digits, '.', '_' and '-'"),
        ("choices: {dtype: bf16, repeats: 3, options: {sizes: \"8192\"}}", "choices: 3",
         "small.yaml:6: stages[1].choices: expected a mapping of choices"),
        ("title: small", "title: [small]", "title: expected text, got ['small']"),
        ("run: 5s", "run: soon", "run: expected a time such as"),
        ("peers: 3%", "peers: 3", "peers: expected a percentage"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_mistake_is_refused_on_either_device(
    device: str, before: str, after: str, message: str
) -> None:
    assert before in SMALL
    with pytest.raises(ConfigError) as refused:
        suite_of(yamlfile.loads(SMALL.replace(before, after), "small.yaml"), "small", device)
    assert str(refused.value).startswith("small.yaml:") and message in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "stages: []",
        "stages: 3",
        "[]",
        "stages: [{name: a}]",
        "stages: [{name: a, checks: all, bench: b}]",
    ],
)
def test_what_is_no_suite_is_refused(text: str) -> None:
    with pytest.raises(ConfigError if text != "[]" else (ConfigError, Faults)):
        suite_of(yamlfile.loads(text, "odd.yaml"), "odd", "cpu")


def test_a_text_is_no_suite_and_is_refused_with_its_line() -> None:
    with pytest.raises(Faults) as refused:
        suite_of(yamlfile.loads("foo", "odd.yaml"), "odd", "cpu")
    assert str(refused.value.errors[0]) == "odd.yaml:1: expected a mapping, got 'foo'"


def test_a_budget_leaves_out_what_does_not_fit_and_what_needs_it() -> None:
    stages = suite_of(open_suite("accept"), "accept", "cuda").stages
    times = {"checks": 30.0, "gemm": 1000.0, "resnet50": 60.0, "soak": 60.0}
    kept, left = fit_stages(
        [(stage, times.get(stage.name, 60.0)) for stage in stages], 600.0, {"storage": "no fio"}
    )
    assert "gemm" in left and left["gemm"] == "takes about 16m40s, 9m30s of the budget is left"
    assert (
        left["soak"] == left["resnet50"] == "needs gemm, which is left out"
        and left["storage"] == "no fio"
    )
    assert [stage.name for stage in kept][:3] == ["checks", "memory", "host-device"]
    assert {stage.name for stage in kept} | set(left) == {stage.name for stage in stages}
    everything, nothing = fit_stages([(stage, 1e9) for stage in stages], None)
    assert tuple(everything) == stages and nothing == {}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("name", suites())
def test_a_suite_that_comes_with_orch_is_read(name: str, device: str) -> None:
    suite = suite_of(open_suite(name), name, device)
    assert suite.stages[0].checks == ("all",) and all(stage.run_s for stage in suite.stages)


def test_reference_data_has_sources_and_tolerances() -> None:
    figures = [figure for document in open_references() for figure in references_of(document)]
    assert {"NVIDIA H200", "*V100-SXM2*"} <= {figure.device for figure in figures}
    assert all(figure.source and 0 < figure.tolerance < 0.5 for figure in figures)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("NVIDIA B200", 1),
        ("NVIDIA GB200", 1),
        ("NVIDIA A100-SXM4-80GB", 1),
        ("NVIDIA A100-SXM4-40GB", 0),
        ("NVIDIA H100 80GB HBM3", 1),
        ("NVIDIA H100 PCIe", 0),
        ("AMD Instinct MI300X", 1),
        ("AMD Instinct MI300A", 0),
    ],
)
def test_reference_data_is_of_one_device_and_not_of_its_siblings(name: str, files: int) -> None:
    patterns = [document.value["device"] for document in open_references()]
    assert [fnmatchcase(name, pattern) for pattern in patterns].count(True) == files


@pytest.mark.parametrize(
    "seen",
    [
        "seen: [1, 2]",
        "devices: 3",
        "seen: [6, 7], devices: 3",
        "seen: [7, 4], devices: 3",
        "seen: [4], devices: 3",
        "seen: 5, devices: 3",
        "seen: [4, 7], devices: 1",
    ],
)
def test_a_range_that_no_devices_can_have_is_refused(seen: str) -> None:
    text = f"device: d\nsource: s\nfigures: [{{framework: gemm, metric: m, value: 5, {seen}}}]\n"
    with pytest.raises(
        ConfigError, match=r"seen: expected seen: \[LEAST, LARGEST\] around the value"
    ):
        references_of(yamlfile.loads(text, "own.yaml"))


def test_the_projects_own_suite_wins_and_an_unknown_one_lists_the_others(tmp_path: Path) -> None:
    (tmp_path / "quick.yaml").write_text(SMALL)
    assert suite_of(open_suite("quick", [tmp_path]), "quick", "cuda").title == "small"
    with pytest.raises(ConfigError, match="no suite 'quik'") as caught:
        open_suite("quik", [tmp_path])
    assert "did you mean 'quick'" in caught.value.hint
