"""Measured language models beside published rows: which row is the nearest, what differs, and MFU
of one kind.
"""

from __future__ import annotations

import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from rich.console import Console

from orchestrator.features.published.folders import open_published
from orchestrator.features.published.language_report import nearest_table, nearest_text
from orchestrator.features.published.nearest import NearestRecord, nearest_records
from orchestrator.features.published.reference import reference_tables
from orchestrator.record.rundir import BenchDir
from orchestrator.results.read import read_run
from orchestrator.results.summary import Summary, summarize
from tests.support.run_folders import STEPS, WORLD, build, rank_line

TEMPLATES = Path(__file__).resolve().parents[3] / "templates"
SCHEMAS = TEMPLATES.parent / "orchestrator" / "report" / "formats"
FILES = tuple(open_published(name, TEMPLATES / name) for name in ("llm_foundry", "megatron_lm"))
MPT_7B = {
    "layers": 32,
    "width": 4096,
    "heads": 32,
    "kv_heads": 32,
    "head_width": 128,
    "mlp": 16384,
    "gated": False,
}
MPT_7B |= {"vocab": 50368, "tied": True}
SECONDS = 1.2

Planned = dict[str, Any]


def measured(
    tmp_path: Path, model: str = "mpt-7b", gpu: str = "NVIDIA H100 80GB HBM3", **choices: Any
) -> Summary:
    """Return the summary of three runs of a language model whose steps take 1.2 s."""
    sizes = choices.pop("sizes", MPT_7B)
    step = {
        "tokens": 2048,
        "micro_batches": 1,
        "model_ranks": 1,
        "recomputation": "none",
    } | choices.pop("step", {})
    batch_size = choices.pop("batch_size", 6)
    sequences = batch_size * step["micro_batches"] * WORLD

    def change(planned: Planned, logs: list[dict[str, str]]) -> None:
        planned["framework"] |= {"name": "lm", "measures": "language_model", "transformer": sizes}
        planned["spec"] |= {
            "framework": "lm",
            "model": model,
            "dtype": "bf16",
            "batch_size": batch_size,
            "step": step,
            **choices,
        }
        lines = [
            f"orch step={n} t={900 + n * SECONDS} step_time_s={SECONDS} samples={sequences}"
            for n in range(1, STEPS + 1)
        ]
        closing = {
            "world_size": WORLD,
            "steps": STEPS,
            "dtype": planned["spec"]["dtype"],
            "batch_size": batch_size,
        }
        closing |= {
            "devices": [{"name": gpu, "count": WORLD}],
            "max_memory_bytes": 3 << 30,
            "global_batch": sequences,
        }
        head = rank_line(0) + "orch step=0 t=900.0 step_time_s=0 samples=0"
        logs[0]["rank-0.out"] = "\n".join([head, *lines, f"orch done {json.dumps(closing)}\n"])

    bench = BenchDir.create(
        tmp_path / "runs", {"bench_id": "b1", "created": "2025-01-01", "runs": ["r1", "r2", "r3"]}
    )
    for repeat in (1, 2, 3):
        build(bench, f"r{repeat}", change, repeat=repeat)
    return summarize([read_run(run) for run in bench.runs()])


def nearest(summary: Summary) -> NearestRecord:
    (record,) = nearest_records(summary, FILES)
    return record


def test_the_same_model_on_the_same_gpu_has_its_own_row(tmp_path: Path) -> None:
    found = nearest(measured(tmp_path))
    assert found.record == "mpt-7b, 2048 tokens, 8 GPUs, b6x1" and found.table == "H100 80GB, BF16"
    assert {text.partition(":")[0] for text in found.differences} == {
        "program",
        "GPUs",
        "tokens of a step",
    }


def test_mfu_of_both_sides_is_of_the_same_operations(tmp_path: Path) -> None:
    found = nearest(measured(tmp_path))
    assert found.our_tokens_per_s == pytest.approx(6 * 2048 / SECONDS)
    assert found.published_tokens_per_s == 10643
    assert found.our_mfu and found.published_mfu and found.ratio
    # of the same model, sequence and peak: the ratio of shares is that of speeds
    assert found.ratio == pytest.approx(
        found.our_tokens_per_s / found.published_tokens_per_s, rel=2e-4
    )
    assert found.published_mfu < 46.44  # printed with embeddings among N


def test_a_published_share_of_another_peak_is_compared_as_one_of_the_devices_own(
    tmp_path: Path,
) -> None:
    sparse = [
        replace(
            file,
            language=tuple(
                replace(table, peak_tflops=2 * (table.peak_tflops or 0)) for table in file.language
            ),
        )
        for file in FILES
    ]
    summary = measured(tmp_path)
    (record,) = nearest_records(summary, sparse)
    own = nearest(summary)
    assert record.record == own.record and own.published_mfu
    assert record.published_mfu == pytest.approx(2 * own.published_mfu)


@pytest.mark.parametrize(
    ("choices", "record", "said"),
    [
        (
            {"step": {"tokens": 8192}},
            "mpt-7b, 8192 tokens, 8 GPUs",
            "recomputation: none or selective, published full",
        ),
        (
            {"gpu": "NVIDIA A100-SXM4-80GB"},
            "mpt-7b, 2048 tokens, 8 GPUs, b6x2",
            "tokens of a step: ",
        ),
        ({"gpu": "NVIDIA H200"}, "mpt-7b, 2048 tokens, 8 GPUs, b6x1", "GPU: H200, published H100"),
        ({"dtype": "fp16"}, "mpt-7b, 2048 tokens, 8 GPUs, b6x1", "dtype: fp16, published bf16"),
        (
            {"model": "own-7b"},
            "mpt-7b, 2048 tokens, 8 GPUs, b6x1",
            "model: own-7b, published mpt-7b",
        ),
        (
            {"batch_size": 1},
            "mpt-7b, 2048 tokens, 8 GPUs, b6x1",
            "batch of a forward pass: 1, published 6",
        ),
    ],
    ids=["sequence", "GPU", "unpublished GPU", "type", "name", "batch"],
)
def test_what_differs_is_said(
    tmp_path: Path, choices: dict[str, Any], record: str, said: str
) -> None:
    found = nearest(measured(tmp_path, **choices))
    assert found.record.startswith(record)
    assert any(text.startswith(said) for text in found.differences), found.differences


def test_recomputation_is_compared_where_the_rest_is_equal(tmp_path: Path) -> None:
    tokens = {"tokens": 4096}
    kinds = {}
    for kind in ("none", "full"):
        summary = measured(tmp_path / kind, step=tokens | {"recomputation": kind})
        kinds[kind] = nearest(summary)
    # the published row of 4096 tokens recomputes
    assert "recomputation: none or selective, published full" in kinds["none"].differences
    assert not any(text.startswith("recomputation") for text in kinds["full"].differences)


def test_a_small_model_is_beside_a_small_one_whatever_its_gpu(tmp_path: Path) -> None:
    sizes = MPT_7B | {
        "layers": 12,
        "width": 768,
        "heads": 12,
        "kv_heads": 12,
        "head_width": 64,
        "mlp": 3072,
    }
    found = nearest(measured(tmp_path, model="gpt2-124m", sizes=sizes, step={"tokens": 1024}))
    assert found.record.startswith("mpt-125m, 1024 tokens, 8 GPUs")
    assert any(text.startswith("GPU: H100, published A100") for text in found.differences)


def test_simulated_and_cpu_runs_say_so(tmp_path: Path) -> None:
    summary = measured(tmp_path, gpu="cpu AMD EPYC", device="cpu")
    row = replace(summary, rows=tuple(replace(row, simulated=True) for row in summary.rows))
    found = nearest(row)
    assert found.notes == ("ours is simulated: not a speed of any hardware", "ours ran on CPUs")
    assert found.our_mfu is None and found.ratio is None
    assert any(text.startswith("GPU: cpu, published ") for text in found.differences)


def test_tables_of_images_have_no_rows_of_language_models(tmp_path: Path) -> None:
    summary = measured(tmp_path)
    assert reference_tables(summary, FILES) == ((), ())
    assert nearest_records(summary, ()) == ()


def test_text_says_both_sides_and_the_differences(tmp_path: Path) -> None:
    found = nearest(measured(tmp_path))
    console = Console(width=120, record=True, file=io.StringIO())
    nearest_table((found,), console)
    text = console.export_text()
    assert "10240.0" in text and "10643.0" in text and "program: lm, published llm_foundry" in text
    assert "beside mpt-7b, 2048 tokens, 8 GPUs, b6x1 (MosaicML LLM Foundry" in text
    assert "program: lm, published llm_foundry" in nearest_text(found)


def test_json_of_a_record_is_as_the_schema_says(tmp_path: Path) -> None:
    schema = json.loads((SCHEMAS / "summary.schema.json").read_text("utf-8"))
    validator = jsonschema.Draft202012Validator(
        {"$ref": "#/$defs/nearest", "$defs": schema["$defs"]}
    )
    for gpu in ("NVIDIA H100 80GB HBM3", "an unknown one"):
        validator.validate(
            json.loads(json.dumps(asdict(nearest(measured(tmp_path / gpu[:2], gpu=gpu)))))
        )
