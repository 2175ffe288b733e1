"""Run files: what they may hold, and refusals with file, line and key."""

from __future__ import annotations

import pytest

from orchestrator import yamlfile
from orchestrator.errors import ConfigError
from orchestrator.plan.run_file import choices_of

KEYS = "valid keys: batch_size, dtype, loader, steps, warmup_steps, timeout_s, repeats, options"


def test_every_key_is_handed_on_as_it_was_written() -> None:
    text = (
        "batch_size: 64\ndtype: fp16\nloader: native\nsteps: 40\nwarmup_steps: 0\ntimeout_s: 12.5\nrepeats: 3\n"
        "options: {image_size: 64, rate: 0.5, compile: true, note: on}\n"
    )
    assert choices_of(yamlfile.loads(text, "choices.yaml")) == {
        "batch_size": 64, "dtype": "fp16", "loader": "native", "steps": 40, "warmup_steps": 0, "timeout_s": 12.5, "repeats": 3,
        "options": {"image_size": 64, "rate": 0.5, "compile": True, "note": "on"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", f"choices.yaml: expected a mapping of choices. {KEYS}"),
        ("dtype: fp16\ncolour: red\n", f"choices.yaml:2: unknown key colour. {KEYS}"),
        ("batch_size: many\n",
         "choices.yaml:1: batch_size: expected a whole number ≥ 1, got 'many'. for several use --batch-size"),
        ("batch_size: [8]\n",
         "choices.yaml:1: batch_size: expected a whole number ≥ 1, got [8]. for several use --batch-size"),
        ("steps: 9\ndtype: [fp32, fp16]\n",
         "choices.yaml:2: dtype: expected one type as text, got ['fp32', 'fp16']. for several use --dtype"),
        ("dtype: 16\n",
         "choices.yaml:1: dtype: expected one type as text, got 16. for several use --dtype"),
        ("loader: {a: 1}\n",
         "choices.yaml:1: loader: expected one loader as text, got {'a': 1}. for several use --loader"),
        ("steps:\n", "choices.yaml:1: steps: expected a whole number ≥ 1, got None"),
        ("warmup_steps: yes\n", "choices.yaml:1: warmup_steps: expected a whole number ≥ 0, got 'yes'"),
        ("timeout_s: soon\n", "choices.yaml:1: timeout_s: expected seconds above 0, got 'soon'"),
        ("timeout_s: true\n", "choices.yaml:1: timeout_s: expected seconds above 0, got True"),
        ("repeats: 0\n", "choices.yaml:1: repeats: expected a whole number ≥ 1, got 0"),
        ("repeats: true\n", "choices.yaml:1: repeats: expected a whole number ≥ 1, got True"),
        ("steps: 9\noptions: [1]\n", "choices.yaml:2: options: expected a mapping, got [1]"),
        ("options:\n", "choices.yaml:1: options: expected a mapping, got None"),
        ("options:\n  image_size: [64]\n", "choices.yaml:2: options.image_size: expected one value, got [64]"),
        ("options: {bucket_mb:}\n", "choices.yaml:1: options.bucket_mb: expected one value, got None"),
    ],
)  # fmt: skip
def test_a_choice_that_cannot_be_is_refused_with_file_line_and_key(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choices_of(yamlfile.loads(text, "choices.yaml"))
    assert str(caught.value) == message
