"""A folder of a language model: its sizes, what a step computes, the defaults of its models, and
what is said of mistakes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError, OrchError
from orchestrator.plan.folders import read_folder
from orchestrator.plan.spec import RunSpec, Step, resolve
from tests.support.own_folders import LANGUAGE_MODEL, WHOLE, folder_of

SHAPE = {"nodes": 2, "gpus": 4}


def spec_of(tmp_path: Path, device: str = "cuda", model: str = "nine", **kwargs: Any) -> RunSpec:
    framework = read_folder(folder_of(tmp_path / "lm", LANGUAGE_MODEL)).framework
    choices = SHAPE | kwargs.get("choices", {})
    choices |= {f"options.{name}": text for name, text in kwargs.get("sets", {}).items()}
    return resolve(framework, model, device=device, choices=choices)


def test_a_step_is_what_its_options_say(tmp_path: Path) -> None:
    spec = spec_of(
        tmp_path,
        sets={
            "accumulation": "3",
            "tensor_parallel": "2",
            "pipeline_parallel": "2",
            "recompute": "full",
        },
    )
    assert spec.step == Step(tokens=2048, micro_batches=3, model_ranks=4, recomputation="full")
    assert spec.global_batch == 5 * 3 * (8 // 4)
    assert spec.as_dict()["step"] == {
        "tokens": 2048,
        "micro_batches": 3,
        "model_ranks": 4,
        "recomputation": "full",
        "batch_size_up_to": 0,
    }


@pytest.mark.parametrize(
    ("device", "model", "sets", "batch_size", "tokens", "origin"),
    [
        ("cuda", "nine", {}, 5, 2048, "lm default for nine"),
        ("cuda", "four", {}, 8, 1024, "lm default"),
        ("cpu", "nine", {}, 1, 64, "lm default on cpu"),
        ("cpu", "nine", {"seq_len": "96"}, 1, 96, "command line"),
    ],
)
def test_a_model_has_defaults_of_its_own_but_not_on_a_device_for_rehearsals(
    tmp_path: Path,
    device: str,
    model: str,
    sets: dict[str, str],
    batch_size: int,
    tokens: int,
    origin: str,
) -> None:
    spec = spec_of(tmp_path, device, model, sets=sets)
    assert (spec.batch_size, spec.step.tokens, spec.origins["options.seq_len"]) == (
        batch_size,
        tokens,
        origin,
    )


def test_copies_of_a_model_must_fit_the_ranks(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"expected a multiple of 3 ranks for tensor_parallel=3, got 8"
    ):
        spec_of(tmp_path, sets={"tensor_parallel": "3"})


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "measures: language_model\n",
            "",
            "per_step: expected no per_step: in a folder that measures training",
        ),
        (
            "  recomputation: recompute\n",
            "  recomputation: recomputes\n",
            "per_step.recomputation: expected the name of an option",
        ),
        (
            "  recomputation: recompute\n",
            "  recomputation: mode\n",
            "per_step.recomputation: expected an option whose choices are among",
        ),
        (
            "  recomputation: recompute\n",
            "  batch_size_up_to: largest\n",
            "per_step.batch_size_up_to: expected the name of an option, got 'largest'",
        ),
        (
            "  recomputation: recompute\n",
            "  batch_size_up_to: mode\n",
            "per_step.batch_size_up_to: expected an option of type int with minimum: 0, got mode",
        ),
        (
            "  tokens: seq_len\n",
            "  tokens: mode\n",
            "per_step.tokens: expected an option of type int with minimum: 1, got mode",
        ),
        (
            "  tokens: seq_len\n",
            "",
            "per_step.tokens: expected the option that holds the tokens of a sequence, got nothing",
        ),
        ("  tokens: seq_len\n", "  tokens: seqlen\n", "did you mean 'seq_len'"),
        (
            "pipeline_parallel]",
            "pipelines]",
            "per_step.shared_by.1: expected the name of an option, got 'pipelines'",
        ),
        (
            "heads: 16, kv_heads: 4",
            "heads: 16, kv_heads: 5",
            "transformer.kv_heads: expected a divisor of the 16 heads, got 5",
        ),
        (
            "heads: 16, kv_heads: 4",
            "heads: 15",
            "transformer.heads: expected a divisor of the width 1024, got 15",
        ),
        ("kv_heads: 4", "kv_heds: 4", "transformer.kv_heds: expected a known key, got 'kv_heds'"),
        ("layers: 9, ", "", "transformer.layers: expected number of layers, got nothing"),
        (
            "vocab: 512}",
            "vocab: 512, active_experts: 2}",
            "active_experts: expected at most the 1 of experts, got 2",
        ),
        (
            "{seq_len: 2048}",
            "{seq_len: none}",
            "models.nine.defaults.options.seq_len: expected a whole number ≥ 1, got 'none'",
        ),
        (
            "{seq_len: 2048}",
            "{seqlen: 2048}",
            "models.nine.defaults.options.seqlen: expected the name of an option",
        ),
        (
            "{batch_size: 5,",
            "{batch: 5,",
            "models.nine.defaults.batch: expected a known key, got 'batch'",
        ),
    ],
)
def test_a_mistake_is_said_with_its_key(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in LANGUAGE_MODEL
    with pytest.raises(OrchError) as caught:
        read_folder(folder_of(tmp_path / "lm", LANGUAGE_MODEL.replace(old, new, 1)))
    assert said in str(caught.value)


def test_a_rate_in_tokens_needs_a_language_model_and_what_its_step_is(tmp_path: Path) -> None:
    rate = WHOLE.replace("(?P<step_time_s>", "(?P<tokens_per_s>")
    with pytest.raises(OrchError) as caught:
        read_folder(folder_of(tmp_path / "mlp", rate))
    assert (
        "log.patterns: expected no tokens_per_s in a folder that measures training. write measures: language_model"
        in str(caught.value)
    )


def test_steps_are_needed_in_a_folder_of_a_language_model_and_sizes_are_not(tmp_path: Path) -> None:
    with pytest.raises(OrchError) as caught:
        read_folder(folder_of(tmp_path / "mlp", "measures: language_model\n" + WHOLE))
    text = str(caught.value)
    assert (
        "per_step: expected a description of what a step of a language model computes, got nothing. write per_step:"
        in text
    )
    assert "transformer" not in text


def test_the_names_of_speeds_are_taken(tmp_path: Path) -> None:
    text = (
        LANGUAGE_MODEL
        + "  readings: '^m (?P<mfu>[0-9]+)'\n  metrics: {mfu: {unit: '%', better: higher}}\n"
    )
    with pytest.raises(OrchError, match=r"log\.metrics\.mfu: expected another name"):
        read_folder(folder_of(tmp_path / "lm", text))


FIGURE = "mfu (?P<said_mfu>[0-9.]+)%"
SAID = "{said_mfu: {unit: '%', better: higher, over: median, says: mfu}}"


def with_figure(text: str, metrics: str = SAID) -> str:
    assert text.count("s/step'") == 1
    return text.replace("s/step'", f"s/step {FIGURE}'") + f"  metrics: {metrics}\n"


def test_lines_of_steps_may_have_what_a_program_says_of_itself(tmp_path: Path) -> None:
    log = read_folder(folder_of(tmp_path / "lm", with_figure(LANGUAGE_MODEL))).framework.log
    (metric,) = log.metrics
    assert (metric.name, metric.group, metric.says, metric.over) == (
        "said_mfu",
        "said_mfu",
        "mfu",
        "median",
    )


@pytest.mark.parametrize(
    ("text", "metrics", "said"),
    [
        (
            WHOLE,
            SAID,
            "says: expected no says: in a folder that measures training, got mfu. write measures: language_model",
        ),
        (
            LANGUAGE_MODEL,
            SAID.replace("'%'", "share"),
            "unit: expected the unit of mfu, '%', got 'share'. write factor: 100",
        ),
        (
            LANGUAGE_MODEL,
            SAID.replace("says: mfu", "says: tflops_per_device"),
            "unit: expected the unit of tflops_per_device",
        ),
        (
            LANGUAGE_MODEL,
            SAID.replace("higher", "lower"),
            "better: expected higher, as for mfu, got lower",
        ),
        (
            LANGUAGE_MODEL,
            SAID.replace("says:", "primary: true, says:"),
            "primary: expected false for a figure that the program reports",
        ),
        (
            LANGUAGE_MODEL,
            SAID.replace("says:", "speedup: true, says:"),
            "speedup: expected false for a figure that the program reports",
        ),
        (
            LANGUAGE_MODEL,
            SAID.replace("over: median, ", ""),
            "over: expected a rule to combine the lines of all steps",
        ),
        (
            LANGUAGE_MODEL,
            SAID.replace("says: mfu", "says: hfu"),
            "says: expected tokens_per_s, tokens_per_s_per_device",
        ),
        (
            LANGUAGE_MODEL,
            SAID.replace("says:", "ema: 0.1, says:"),
            "ema: expected ema: only beside says: and over: last",
        ),
        (
            LANGUAGE_MODEL,
            SAID.replace("median, says: mfu", "last, ema: 0.1"),
            "ema: expected ema: only beside says:",
        ),
        (
            LANGUAGE_MODEL,
            SAID.replace("median,", "last, ema: 1,"),
            "ema: expected a number above 0 and below 1, got the number 1",
        ),
        (
            LANGUAGE_MODEL,
            SAID.replace(
                "}}",
                "}, other: {unit: '%', better: higher, over: max, group: said_mfu, says: mfu}}",
            ),
            "expected one metric that says mfu, got said_mfu and other",
        ),
    ],
)
def test_a_figure_of_a_program_must_fit_the_number_that_it_says(
    tmp_path: Path, text: str, metrics: str, said: str
) -> None:
    with pytest.raises(OrchError) as caught:
        read_folder(folder_of(tmp_path / "lm", with_figure(text, metrics)))
    assert said in str(caught.value) and "log.metrics" in str(caught.value)
    assert "log.patterns" not in str(caught.value)


def test_a_group_of_no_metric_in_a_line_of_steps_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(OrchError, match=r"log\.patterns\.0: .*, got said_mfu"):
        read_folder(folder_of(tmp_path / "lm", with_figure(LANGUAGE_MODEL, "{}")))
