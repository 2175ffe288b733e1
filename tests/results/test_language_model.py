"""Tokens/s of a language model, and what follows from it: against figures that others computed, and
from collected files.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from orchestrator.plan.spec import RunSpec, Step
from orchestrator.plan.transformer import Transformer
from orchestrator.record.rundir import BenchDir
from orchestrator.report.formats import json as jsonout
from orchestrator.report.tables import tables
from orchestrator.results.language_model import language_values, peak_note
from orchestrator.results.read import read_run
from orchestrator.results.summary import Summary, summarize
from tests.support.run_folders import GPUS, NODES, STEPS, WORLD, build, rank_line

LLAMA3_8B = Transformer(32, 4096, 32, 8, 128, 14336, gated=True, vocab=128256, tied=False)
H200 = {"devices": [{"name": "NVIDIA H200", "count": 2}]}


def spec(tokens: int, ranks: int = 1, dtype: str = "bf16", recomputation: str = "none") -> RunSpec:
    step = Step(tokens=tokens, recomputation=recomputation)
    return RunSpec(
        "lm", "llama3-8b", 1, ranks, "cuda", 2, dtype, "synthetic", 20, 5, 600.0, {}, step=step
    )


def numbers(
    spec: RunSpec, tokens_per_s: float, observed: dict[str, Any] = H200
) -> dict[str, float]:
    return {
        value.metric: value.number
        for value in language_values(spec, LLAMA3_8B, tokens_per_s / spec.items, observed)
    }


@pytest.mark.parametrize(
    ("tokens", "ranks", "per_gpu", "tflops", "mfu", "causal"),
    [
        (4096, 1, 11_452, 589, 59.6, 55.9),
        (4096, 2, 10_008, 515, 52.1, 48.8),
        (8192, 2, 9_353, 542, 54.8, 48.7),
    ],
)
def test_shares_of_the_peak_are_those_that_a_plain_script_printed(
    tokens: int, ranks: int, per_gpu: float, tflops: float, mfu: float, causal: float
) -> None:
    values = numbers(spec(tokens, ranks), per_gpu * ranks)
    assert values["tokens_per_s_per_device"] == per_gpu
    assert values["tflops_per_device"] == pytest.approx(tflops, abs=0.5)
    assert (values["mfu"], values["mfu_causal"]) == (
        pytest.approx(mfu, abs=0.06),
        pytest.approx(causal, abs=0.06),
    )
    assert values["hfu"] == values["mfu"]


def test_full_recomputation_is_in_hfu_alone() -> None:
    plain, again = (numbers(spec(4096, recomputation=kind), 9_003) for kind in ("none", "full"))
    assert again["mfu"] == plain["mfu"]
    # a quarter of all products again, but for those of the output layer
    assert 1.30 < again["hfu"] / again["mfu"] < 4 / 3


def test_eight_bit_products_have_a_peak_of_their_own() -> None:
    assert numbers(spec(4096, dtype="fp8"), 14_983)["mfu"] == pytest.approx(78.0 / 2, abs=0.05)


@pytest.mark.parametrize(
    ("devices", "dtype", "said"),
    [
        (
            [{"name": "cpu AMD EPYC", "count": 4}],
            "bf16",
            "no MFU: the dense peak of cpu AMD EPYC for bf16 is not known",
        ),
        (
            [{"name": "NVIDIA A100-SXM4-80GB", "count": 8}],
            "fp8",
            "no MFU: the dense peak of NVIDIA A100-SXM4-80GB for fp8",
        ),
        (
            [{"name": "NVIDIA H200", "count": 1}, {"name": "NVIDIA A100-SXM4-80GB", "count": 1}],
            "bf16",
            "no MFU: the dense peak",
        ),
        (
            [{"name": "NVIDIA H200", "count": 1}, {"name": "L20", "count": 1}],
            "bf16",
            "no MFU: the dense peak of NVIDIA H200 and L20",
        ),
        ("nonsense", "bf16", "no MFU: the dense peak of the device"),
        # a seventh of a GPU has not its peak
        (
            [{"name": "NVIDIA H200 MIG 1g.18gb", "count": 1}],
            "bf16",
            "no MFU: the dense peak of NVIDIA H200 MIG 1g.18gb",
        ),
        # tensor cores before Ampere multiply fp16 alone
        (
            [{"name": "Tesla V100-SXM2-32GB", "count": 1}],
            "bf16",
            "no MFU: the dense peak of Tesla V100-SXM2-32GB for bf16",
        ),
        ([{"name": "Tesla T4", "count": 1}], "bf16", "no MFU: the dense peak of Tesla T4 for bf16"),
    ],
)
def test_without_a_peak_there_is_no_share_of_it_and_a_note_says_so(
    devices: Any, dtype: str, said: str
) -> None:
    observed = {"devices": devices}
    assert not {"mfu", "mfu_causal", "hfu"} & set(numbers(spec(4096, dtype=dtype), 100, observed))
    assert numbers(spec(4096, dtype=dtype), 100, observed)["tflops_per_device"] > 0
    assert peak_note(spec(4096, dtype=dtype), observed)[0].startswith(said)


def test_a_device_without_bf16_has_a_share_of_its_peak_in_fp16() -> None:
    v100 = {"devices": [{"name": "Tesla V100-SXM2-32GB", "count": 1}]}
    operations = 6 * LLAMA3_8B.matmul_parameters + 12 * 32 * 4096 * 4096
    assert numbers(spec(4096, dtype="fp16"), 1000, v100)["mfu"] == pytest.approx(
        100 * 1000 * operations / 125e12
    )


def test_the_peak_is_named_beside_the_share() -> None:
    assert peak_note(spec(4096), H200) == [
        "MFU and HFU are shares of 989.5 TFLOP/s, the dense peak of H200 for bf16",
    ]


def test_more_than_the_peak_is_impossible() -> None:
    def notes(samples_per_s: float) -> list[str]:
        return peak_note(
            spec(4096), H200, language_values(spec(4096), LLAMA3_8B, samples_per_s, H200)
        )

    operations = 6 * LLAMA3_8B.matmul_parameters + 6 * 32 * 4096 * 4096
    at_peak = 989.5e12 / (operations * 4096)
    assert len(notes(1.09 * at_peak)) == 1
    assert notes(2 * at_peak)[0] == "impossible: 200.0% of the peak of H200 for bf16, by mfu_causal"


# --- from collected files

TOKENS, MICRO, ACCUMULATION, MODEL_RANKS, SECONDS = 128, 3, 2, 2, 0.5
SEQUENCES = MICRO * ACCUMULATION * (WORLD // MODEL_RANKS)
SIZES = {
    "layers": 4,
    "width": 128,
    "heads": 4,
    "kv_heads": 4,
    "head_width": 32,
    "mlp": 512,
    "gated": False,
    "vocab": 512,
}


def _language_model(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
    planned["framework"] |= {
        "name": "lm",
        "measures": "language_model",
        "transformer": SIZES | {"tied": True},
    }
    planned["spec"] |= {
        "framework": "lm",
        "model": "gpt-tiny",
        "dtype": "bf16",
        "batch_size": MICRO,
    }
    step = {
        "tokens": TOKENS,
        "micro_batches": ACCUMULATION,
        "model_ranks": MODEL_RANKS,
        "recomputation": "none",
    }
    planned["spec"]["step"] = step
    lines = [
        f"orch step={n} t={900 + n * SECONDS} step_time_s={SECONDS} samples={SEQUENCES}"
        for n in range(1, STEPS + 1)
    ]
    closing = {
        "world_size": WORLD,
        "steps": STEPS,
        "dtype": "bf16",
        "batch_size": MICRO,
        "global_batch": SEQUENCES,
    }
    closing |= {"devices": [{"name": "NVIDIA H200", "count": WORLD}], "max_memory_bytes": 3 << 30}
    logs[0]["rank-0.out"] = "\n".join(
        [
            rank_line(0) + "orch step=0 t=900.0 step_time_s=0 samples=0",
            *lines,
            f"orch done {json.dumps(closing)}\n",
        ]
    )


@pytest.fixture
def summary(bench: BenchDir) -> Summary:
    for repeat in (1, 2, 3):
        build(bench, f"r{repeat}", _language_model, repeat=repeat)
    return summarize([read_run(run) for run in bench.runs()])


def test_its_json_is_as_the_schema_says(summary: Summary) -> None:
    schema = json.loads(
        (Path(jsonout.__file__).parent / "summary.schema.json").read_text(encoding="utf-8")
    )
    Draft202012Validator(schema).validate(json.loads(jsonout.render(summary)))


def test_the_speed_of_a_run_is_its_tokens_over_its_time(summary: Summary) -> None:
    (row,) = summary.speeds()
    per_s = SEQUENCES * TOKENS / SECONDS
    assert (row.metric, row.unit, row.value, row.n) == (
        "tokens_per_s",
        "tokens/s",
        pytest.approx(per_s),
        3,
    )
    assert (row.global_batch, row.step_s) == (SEQUENCES, pytest.approx(SECONDS))
    assert row.per_rank == pytest.approx(per_s / (NODES * GPUS))


def test_what_follows_from_it_has_rows_of_its_own(summary: Summary) -> None:
    by_metric = {row.metric: row for row in summary.rows}
    assert list(by_metric) == [
        "tokens_per_s", "tokens_per_s_per_device", "tflops_per_device", "mfu", "mfu_causal", "hfu", "peak_memory",
    ]  # fmt: skip
    # 6 operations for each of 4 · (4·128² + 2·128·512) + 128·512 weights, and 12·4·128·128 for
    # attention
    tflops = (
        SEQUENCES
        * TOKENS
        / SECONDS
        / WORLD
        * (6 * (4 * (4 * 128**2 + 2 * 128 * 512) + 128 * 512) + 12 * 4 * 128 * 128)
        / 1e12
    )
    assert by_metric["tflops_per_device"].value == pytest.approx(tflops)
    assert by_metric["mfu"].value == pytest.approx(100 * tflops / 989.5)
    assert (by_metric["peak_memory"].value, by_metric["peak_memory"].better) == (
        pytest.approx(3.0),
        "lower",
    )


def test_people_see_one_table_of_speeds_and_one_of_what_follows(summary: Summary) -> None:
    speeds, derived = tables(summary)
    work = "speeds in tokens/s, of sequences of 128 tokens; weak scaling: each rank computes as much in every shape"
    assert speeds.head == ("no baseline: no speedup", work, "NVIDIA H200")
    assert derived.columns[:3] == (
        "case",
        "tokens_per_s_per_device tokens/s",
        "tokens_per_s_per_device 95%",
    )
    assert len(derived.rows) == 1 and derived.footnotes == ()


@pytest.mark.parametrize(
    ("name", "mig", "mfu"),
    [
        ("NVIDIA H200", "Disabled", True),
        ("NVIDIA L20", "Disabled", False),
        ("NVIDIA H200", "Enabled", False),
    ],
)
def test_a_program_that_does_not_name_its_devices_ran_on_those_of_its_nodes(
    bench: BenchDir, name: str, mig: str, mfu: bool
) -> None:
    def silent(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        _language_model(planned, logs)
        for node in planned["facts"].values():
            node["gpus"] = [{"name": name, "mig": mig}] * GPUS
        text, _, facts = logs[0]["rank-0.out"].rpartition("orch done ")
        without = {key: value for key, value in json.loads(facts).items() if key != "devices"}
        logs[0]["rank-0.out"] = f"{text}orch done {json.dumps(without)}\n"

    run = read_run(build(bench, "r1", silent))
    assert ("mfu" in {value.metric for value in run.metric_values}) is mfu
    assert any(name.removeprefix("NVIDIA ") in note for note in run.qualifications if "MFU" in note)


@pytest.mark.parametrize(
    ("asked", "reported", "notes"),
    [
        ("auto", "fsdp", ["parallel=auto ran as fsdp"]),
        ("auto", "none", []),
        ("fsdp", "fsdp", []),
        ("auto", ["ddp"], []),
    ],
)
def test_how_ranks_held_the_model_is_said_where_the_program_chose(
    bench: BenchDir, asked: str, reported: Any, notes: list[str]
) -> None:
    def spread(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        _language_model(planned, logs)
        planned["spec"]["options"] = {"parallel": asked}
        logs[0]["rank-0.out"] = logs[0]["rank-0.out"].replace(
            "orch done {", f'orch done {{"parallel": {json.dumps(reported)}, '
        )

    run = read_run(build(bench, "r1", spread))
    assert run.error is None
    assert [note for note in run.qualifications if note.startswith("parallel")] == notes


def test_a_closing_line_of_another_global_batch_is_refused(bench: BenchDir) -> None:
    def other(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        _language_model(planned, logs)
        planned["spec"]["step"]["micro_batches"] = 1

    run = build(bench, "r1", other)
    error = read_run(run).error
    assert (
        error
        and f"expected global_batch {MICRO * 2} as planned, the program reports {SEQUENCES}"
        in str(error)
    )


def _found(found: int, up_to: int = 64, shape: int = NODES) -> Any:
    """Return what makes a run that was planned with another batch size, and found this one."""

    def change(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        _shaped(
            shape, 1.0, nodes_origin="command line, baseline" if shape == 1 else "command line"
        )(planned, logs)
        planned["spec"]["batch_size"] = 7
        planned["spec"]["step"]["batch_size_up_to"] = up_to
        sequences = 2 * found * shape * GPUS
        log = re.sub(r"samples=(?!0)\d+", f"samples={sequences}", logs[0]["rank-0.out"]).partition(
            "orch done"
        )[0]
        facts = {"world_size": shape * GPUS, "global_batch": sequences, "batch_size": found}
        logs[0]["rank-0.out"] = f"{log}orch done {json.dumps(facts)}\n"

    return change


def test_a_batch_size_that_runs_find_is_that_of_every_number(bench: BenchDir) -> None:
    build(bench, "r1", _found(12, shape=1))
    build(bench, "r2", _found(12))
    build(bench, "r3", _found(12), repeat=2)
    one, two = summarize([read_run(run) for run in bench.runs()]).speeds()
    assert [(row.batch_size, row.global_batch, row.n) for row in (one, two)] == [
        (12, 48, 1),
        (12, 96, 2),
    ]
    assert (two.value, two.speedup, two.step_s) == (
        pytest.approx(96 * TOKENS),
        pytest.approx(2.0),
        pytest.approx(1.0),
    )


def test_shapes_that_find_different_batch_sizes_are_not_compared(bench: BenchDir) -> None:
    build(bench, "r1", _found(12, shape=1))
    build(bench, "r2", _found(16))
    summary = summarize([read_run(run) for run in bench.runs()])
    assert [row.speedup for row in summary.speeds()] == [1.0, None]
    assert "no 1n2g run found this batch size; --batch-size sets one for all shapes" in " ".join(
        summary.notes
    )


def test_a_baseline_that_failed_before_it_found_a_batch_size_is_what_a_speedup_lacks(
    bench: BenchDir,
) -> None:
    def refused(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        _found(12, shape=1)(planned, logs)
        logs[0]["rank-0.out"] = "train_lm.py: error: out of memory\n"

    build(bench, "r1", refused)
    build(bench, "r2", _found(16))
    notes = [
        note
        for note in summarize([read_run(run) for run in bench.runs()]).notes
        if "no speedup" in note
    ]
    assert len(notes) == 2 and all("because there is no good 1n2g run" in note for note in notes)


@pytest.mark.parametrize("found", [0, 65, 12.0])
def test_a_batch_size_that_no_run_can_have_found_is_refused(bench: BenchDir, found: Any) -> None:
    error = read_run(build(bench, "r1", _found(found))).error
    assert error and f"expected a batch size from 1 to 64, the program reports {found}" in str(
        error
    )


@pytest.mark.parametrize(
    "step",
    [{"tokens": -1}, {"micro_batches": 0}, {"model_ranks": 3}, {"recomputation": "some"}, {"x": 1}],
)
def test_a_forged_step_is_a_damaged_manifest(bench: BenchDir, step: dict[str, Any]) -> None:
    def forged(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        _language_model(planned, logs)
        planned["spec"]["step"] |= step

    error = read_run(build(bench, "r1", forged)).error
    assert error and error.kind == "state_damaged"


# --- over which shape, and with what constant


def _shaped(
    nodes: int, seconds: float, follows: str = "", nodes_origin: str = "command line"
) -> Any:
    """Return what makes a run of one or two nodes with two ranks each; both have eight sequences in
    a step, if ``follows``.
    """

    def change(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        _language_model(planned, logs)
        ranks = nodes * GPUS
        micro_batches = 8 // ranks if follows else 2
        planned["spec"] |= {
            "nodes": nodes,
            "batch_size": 1,
            "options": {"accumulation": micro_batches},
            "follows": follows,
        }
        planned["spec"]["step"] = {
            "tokens": TOKENS,
            "micro_batches": micro_batches,
            "model_ranks": 1,
            "recomputation": "none",
        }
        planned["origins"] |= {"nodes": nodes_origin, "options.accumulation": "from --global-batch"}
        placement = planned["placement"]
        placement |= {"slots": placement["slots"][:nodes], "world_size": ranks}
        sequences = micro_batches * ranks
        lines = [
            f"orch step={n} t={900 + n * seconds} step_time_s={seconds} samples={sequences}"
            for n in range(STEPS + 1)
        ]
        closing = {"world_size": ranks, "global_batch": sequences, "batch_size": 1}
        for node, log in enumerate(logs):
            for rank in range(node * GPUS, (node + 1) * GPUS):
                log[f"rank-{rank}.out"] = rank_line(rank, ranks)
        logs[0]["rank-0.out"] += "\n".join([*lines, f"orch done {json.dumps(closing)}\n"])

    return change


@pytest.mark.parametrize(("follows", "scaling"), [("", "weak"), ("options.accumulation", "strong")])
def test_efficiency_is_per_rank_over_the_requested_shape(
    bench: BenchDir, follows: str, scaling: str
) -> None:
    build(bench, "r1", _shaped(1, 1.0, follows, "command line, baseline"))
    build(bench, "r2", _shaped(2, 0.6 if follows else 1.2, follows))
    one, two = summarize([read_run(run) for run in bench.runs()]).speeds()
    assert (one.shape, two.shape, one.scaling, two.scaling) == ("1n2g", "2n2g", scaling, scaling)
    assert (one.speedup, one.efficiency) == (1.0, 1.0)
    assert (two.speedup, two.efficiency) == (pytest.approx(1 / 0.6), pytest.approx(1 / 1.2))
    assert one.series == two.series
    shown = tables(summarize([read_run(run) for run in bench.runs()]))[0]
    assert [line[0] for line in shown.rows] == ["1n2g", "2n2g"]


def test_weak_and_strong_scaling_are_never_in_one_table(bench: BenchDir) -> None:
    build(bench, "r1", _shaped(1, 1.0, "", "command line, baseline"))
    build(bench, "r2", _shaped(2, 0.6, "options.accumulation"))
    shown = [
        table
        for table in tables(summarize([read_run(run) for run in bench.runs()]))
        if "speedup" in table.columns
    ]
    words = [line.partition("; ")[2] for table in shown for line in table.head if "scaling" in line]
    assert words == [
        "weak scaling: each rank computes as much in every shape",
        "strong scaling: a global batch of 8 in every shape",
    ]
