"""What a program says of itself beside what follows from its log: which convention explains the
difference.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orchestrator.logs.metrics import SAYS, Metric
from orchestrator.plan.scaling import Step
from orchestrator.plan.spec import RunSpec
from orchestrator.plan.transformer import Transformer
from orchestrator.record.rundir import BenchDir
from orchestrator.report.tables import tables
from orchestrator.results.entries import Row
from orchestrator.results.numbers.peaks import DEVICES, devices_in
from orchestrator.results.read import read_run
from orchestrator.results.reported_figures import Figure, RunContext, doubts_about, figures
from orchestrator.results.summary import Summary, summarize
from orchestrator.results.values import Expected, Value, values_of
from tests.support.run_folders import STEPS, WARMUP, WORLD, build, rank_line

LLAMA3_8B = {
    "layers": 32, "width": 4096, "heads": 32, "kv_heads": 8, "head_width": 128, "mlp": 14336, "gated": True, "vocab": 128256,
    "tied": False,
}  # fmt: skip
TOKENS = 4096
MATMUL = 32 * (4096 * 128 * (32 + 8 + 8 + 32) + 3 * 4096 * 14336) + 4096 * 128256
PLAIN = 6 * MATMUL + 12 * 32 * 4096 * TOKENS
HALVED = PLAIN - 6 * 32 * 4096 * TOKENS
RECOMPUTED = PLAIN + 2 * (MATMUL - 4096 * 128256) + 4 * 32 * 4096 * TOKENS
WITH_TABLES = PLAIN + 6 * 4096 * 128256
H200, A100 = 989.5e12, 312e12
ATTENTION = "half of the attention, as in mfu_causal"
BARE = "no attention, 6 N alone"
TABLES = "all parameters, with those of embedding tables"
OF_A100 = "the peak of A100 (312 TFLOP/s)"
OF_PCIE = "the peak of H100 PCIe (756.5 TFLOP/s)"
SPARSE = "the peak of H200 with sparsity or H200 for fp8 (1979 TFLOP/s)"


def setting(
    nodes: int = 1, gpus: int = 8, recomputation: str = "none", micro_batches: int = 1
) -> RunContext:
    step = Step(tokens=TOKENS, micro_batches=micro_batches, recomputation=recomputation)
    spec = RunSpec(
        "lm", "llama3-8b", nodes, gpus, "cuda", 2, "bf16", "synthetic", 20, 5, 600.0, {}, step=step
    )
    return RunContext(spec, Transformer(**LLAMA3_8B), devices_in("NVIDIA H200")["H200"])


def explanations(
    says: str, said: float, of: RunContext, per_device: float = 11_452.0
) -> tuple[str, ...]:
    computed = of.compute(says, per_device * of.spec.world_size)
    assert computed
    return Figure(says, said, computed).explanations(of)


def test_what_follows_from_the_log_is_what_a_plain_script_printed() -> None:
    assert setting().compute("mfu", 8 * 11_452) == pytest.approx(59.6, abs=0.06)
    assert setting().compute("tflops_per_device", 8 * 11_452) == pytest.approx(589, abs=0.5)
    assert setting().compute("tokens_per_s_per_device", 8 * 11_452) == 11_452


@pytest.mark.parametrize(
    ("operations", "peak", "said"),
    [
        (PLAIN, H200, ()),
        (PLAIN, A100, (OF_A100,)),
        (PLAIN, 2 * H200, (SPARSE,)),
        (PLAIN, 2250e12, ("the peak of B200 (2250 TFLOP/s)",)),
        (HALVED, H200, (ATTENTION,)),
        (6 * MATMUL, H200, (BARE,)),
        (WITH_TABLES, H200, (TABLES,)),
        (HALVED, A100, (f"{ATTENTION} and {OF_A100}",)),
        (RECOMPUTED, H200, ("full recomputation, which this run does not do", OF_PCIE)),
    ],
)
def test_an_mfu_is_explained_by_operations_and_peaks(
    operations: int, peak: float, said: tuple[str, ...]
) -> None:
    assert (
        explanations("mfu", 100 * 11_452 * operations / peak, setting())[: max(1, len(said))]
        == said
    )


@pytest.mark.parametrize("dtype", ["tf32", "fp32", "fp8"])
def test_the_peak_of_nanogpt_is_known_whatever_the_type(dtype: str) -> None:
    of = setting()
    of = replace(of, spec=replace(of.spec, dtype=dtype))
    peaks = "the peak of A100 for bf16 (312 TFLOP/s)"
    assert explanations("mfu", 100 * 4_000 * PLAIN / A100, of, per_device=4_000)[0] == peaks


def test_habits_that_cancel_each_other_explain_nothing() -> None:
    """A peak of an eighth and an eighth of the tokens: what is left is 1 %, beside the 2.5 % that
    are to be explained.
    """
    h100 = replace(setting(), device=devices_in("NVIDIA H100 80GB HBM3")["H100"])
    right = h100.compute("mfu", 8 * 11_452)
    assert right and explanations("mfu", 0.975 * right, h100) == ()


@pytest.mark.parametrize(
    ("factor", "said"),
    [
        (16, "the tokens of the whole run"),
        (8, "the tokens of a node"),
        (1 / 16, "the tokens of a device, divided by all devices again"),
        (1 / 4, "the tokens of one micro-batch of 4"),
        (8 / 4, "the tokens of a node and the tokens of one micro-batch of 4"),
    ],
)
@pytest.mark.parametrize("says", ["tokens_per_s_per_device", "tflops_per_device"])
def test_tokens_of_another_part_of_the_run_are_named(says: str, factor: float, said: str) -> None:
    of = setting(nodes=2, micro_batches=4)
    right = {"tokens_per_s_per_device": 11_452, "tflops_per_device": 11_452 * PLAIN / 1e12}
    assert explanations(says, factor * right[says], of)[0] == said


@pytest.mark.parametrize(
    ("factor", "said"), [(1 / 16, "the tokens of a device"), (1 / 2, "the tokens of a node")]
)
def test_tokens_per_s_may_be_those_of_a_part(factor: float, said: str) -> None:
    assert explanations("tokens_per_s", 16 * 11_452 * factor, setting(nodes=2)) == (said,)


def test_what_is_recomputed_is_named_as_in_hfu_where_it_is() -> None:
    said = 11_452 * RECOMPUTED / 1e12
    assert explanations("tflops_per_device", said, setting(recomputation="full")) == (
        "recomputation, as in hfu",
    )


def test_what_nothing_explains_is_said_so() -> None:
    of = setting()
    figure = Figure(
        "tokens_per_s_per_device", 1.3 * 11_452, 11_452.0, metric="tps", unit="tokens/s"
    )
    expected = "the program reports tokens_per_s_per_device 14887.60 tokens/s, but its log gives 11452.00 tokens/s"
    assert figure.note(of) == f"{expected}: no known convention explains it"
    assert (
        Figure("mfu", -100.0, 59.6, unit="%")
        .note(of)
        .endswith("59.60%: no known convention explains it")
    )


def test_a_difference_within_the_printed_digits_is_none() -> None:
    assert not Figure("mfu", 0.0, 0.004, resolution=0.01).differs
    assert Figure("mfu", 0.0, 0.004, resolution=0.001).differs
    assert not Figure("mfu", 59.6 * 1.0199, 59.6).differs
    assert Figure("mfu", 59.6 * 1.0201, 59.6).differs


def test_the_doubt_of_several_runs_is_that_of_the_typical_one() -> None:
    said = [
        Figure("mfu", said, 50.0, doubt=doubt)
        for said, doubt in ((150.0, "high"), (51.0, ""), (50.5, ""))
    ]
    higher = [Figure("mfu", said, 50.0, doubt="higher") for said in (151.0, 152.0)]
    assert doubts_about(said) == []
    assert doubts_about([*said, *higher]) == ["high"]
    assert (
        doubts_about(said[:2])
        == doubts_about([Figure("mfu", 20.0, 50.0, doubt="high"), said[1]])
        == ["high"]
    )
    assert doubts_about(
        [Figure("mfu", said, 50.0, doubt=doubt) for said, doubt in ((0.0, "none"), (50.0, ""))]
    ) == ["none"]
    assert doubts_about([]) == []


def _true_case(chance: random.Random) -> tuple[Figure, ...]:
    """Return the figures that a program prints, with few digits and by orch's conventions, of
    random steps.
    """
    heads = chance.choice([4, 8, 32])
    sizes = Transformer(
        chance.randint(1, 80), 128 * heads, heads, chance.choice([1, 2, 4]), 128, chance.randint(128, 30_000),
        chance.random() < 0.5, chance.randint(100, 200_000), chance.random() < 0.5,
    )  # fmt: skip
    nodes, gpus, dtype = (
        chance.randint(1, 64),
        chance.choice([1, 2, 4, 8]),
        chance.choice(["bf16", "fp16", "fp8", "tf32"]),
    )
    device = chance.choice([row for row in DEVICES if row.peak(dtype)])
    step = Step(
        chance.choice([128, 2048, 65_536]),
        chance.randint(1, 64),
        1,
        chance.choice(["none", "full"]),
    )
    spec = RunSpec(
        "lm", "m", nodes, gpus, "cuda", 1, dtype, "synthetic", 20, 5, 600.0, {}, step=step
    )
    times = [chance.lognormvariate(0, 0.1) for _ in range(15)]
    tokens = spec.global_batch * step.tokens * 10 ** chance.uniform(-4, 2)
    attention = sizes.layers * sizes.heads * sizes.head_width * step.tokens
    operations = 6 * sizes.matmul_parameters + 12 * attention
    form = chance.choice([".2f", ".2g", ".2e"])
    factors = {
        "tokens_per_s": 1.0,
        "tokens_per_s_per_device": 1 / spec.world_size,
        "tflops_per_device": operations / spec.world_size / 1e12,
        "mfu": 100 * operations / spec.world_size / (device.peak(dtype) or 1.0),
    }
    lines = [
        {name: format(tokens / seconds * factor, form) for name, factor in factors.items()}
        for seconds in times
    ]
    over = chance.choice(["harmonic_mean", "mean", "median", "max"])
    metrics = [Metric(f"own_{name}", "", group=name, over=over, says=name) for name in SAYS]
    values = values_of(metrics, {("node1", "rank-0.out"): lines}, Expected(nodes, spec.world_size))
    speed = Value("tokens_per_s", (), tokens * len(times) / sum(times))
    return figures(metrics, values, speed, times, RunContext(spec, sizes, device))


def test_a_true_figure_raises_no_doubt_whatever_its_digits() -> None:
    chance = random.Random(20)
    cases = [_true_case(chance) for _ in range(1000)]
    assert all(len(case) == len(SAYS) for case in cases)
    assert [figure for case in cases for figure in case if figure.doubt] == []


def test_a_false_figure_of_such_a_program_does() -> None:
    chance = random.Random(21)
    said = [
        figure
        for _ in range(250)
        for figure in _true_case(chance)
        if figure.computed > 100 * figure.resolution
    ]
    assert len(said) > 300
    assert all(
        Figure(figure.says, 1.06 * figure.said, figure.computed, figure.resolution).differs
        for figure in said
    )


@pytest.mark.parametrize(
    ("ema", "explained"),
    [(0.1, f"it matches a computation with {OF_A100}"), (0.0, "no known convention explains it")],
)
def test_a_moving_average_is_compared_with_that_of_the_steps(ema: float, explained: str) -> None:
    times, running = [1.0] * 20 + [0.8] * 30, -1.0
    for seconds in times:  # as nanoGPT computes it
        share = 100 * TOKENS * PLAIN / A100 / seconds
        running = share if running == -1.0 else 0.9 * running + 0.1 * share
    metric = Metric("printed_mfu", "%", over="last", says="mfu", ema=ema)
    speed = Value("tokens_per_s", (), TOKENS * len(times) / sum(times))
    (figure,) = figures(
        [metric], [Value("printed_mfu", (), running)], speed, times, setting(gpus=1)
    )
    assert figure.doubt.endswith(explained)


# --- from collected files

MICRO, ACCUMULATION, MODEL_RANKS, SECONDS = 3, 2, 2, 1.0
SEQUENCES = MICRO * ACCUMULATION * (WORLD // MODEL_RANKS)
PER_DEVICE = SEQUENCES * TOKENS / SECONDS / WORLD
TFLOPS, MFU = PER_DEVICE * PLAIN / 1e12, 100 * PER_DEVICE * PLAIN / H200
PATTERN = (
    r"orch step=(?P<step>[0-9]+) t=(?P<timestamp>[0-9.]+) samples=(?P<samples>[0-9]+)"
    r"(?: tps=(?P<tps>[0-9,]+) tflops=(?P<tflops>[0-9.]+) mfu=(?:(?P<share>[0-9.]+)%|N/A) )?"
)
METRICS = [
    {"name": "tps", "unit": "tokens/s", "over": "harmonic_mean", "says": "tokens_per_s_per_device"},
    {"name": "tflops", "unit": "TFLOP/s", "over": "harmonic_mean", "says": "tflops_per_device"},
    {"name": "said_mfu", "unit": "%", "group": "share", "over": "median", "says": "mfu"},
]


def logged(**said: float | str) -> Callable[[dict[str, Any], list[dict[str, str]]], None]:
    """Return what makes a run one of a language model whose program says so of itself in each step
    after the first.
    """
    shown = {"tps": f"{PER_DEVICE:,.0f}", "tflops": f"{TFLOPS:.2f}", "mfu": f"{MFU:.2f}%"}
    shown |= {name: text if isinstance(text, str) else f"{text:.2f}" for name, text in said.items()}

    def change(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        planned["framework"] |= {
            "name": "lm",
            "measures": "language_model",
            "transformer": LLAMA3_8B,
        }
        planned["framework"]["log"] |= {"patterns": [PATTERN], "metrics": METRICS, "thousands": ","}
        step = {
            "tokens": TOKENS,
            "micro_batches": ACCUMULATION,
            "model_ranks": MODEL_RANKS,
            "recomputation": "none",
        }
        planned["spec"] |= {
            "framework": "lm",
            "model": "llama3-8b",
            "dtype": "bf16",
            "batch_size": MICRO,
            "step": step,
        }
        own = " ".join(f"{name}={text}" for name, text in shown.items())
        # What is printed in the warm-up must not count.
        lines = [
            f"orch step={n} t={900 + n * SECONDS} samples={SEQUENCES} {own if n > WARMUP else own.replace('mfu=', 'mfu=9')} "
            for n in range(1, STEPS + 1)
        ]
        closing = {
            "world_size": WORLD,
            "steps": STEPS,
            "dtype": "bf16",
            "batch_size": MICRO,
            "global_batch": SEQUENCES,
        }
        closing |= {"devices": [{"name": "NVIDIA H200", "count": WORLD}]}
        head = rank_line(0) + "orch step=0 t=900.0 samples=0"
        logs[0]["rank-0.out"] = "\n".join([head, *lines, f"orch done {json.dumps(closing)}\n"])

    return change


def summary_of(bench: BenchDir, **said: float | str) -> Summary:
    for repeat in (1, 2, 3):
        build(bench, f"r{repeat}", logged(**said), repeat=repeat)
    return summarize([read_run(run) for run in bench.runs()])


def doubts(row: Row) -> list[str]:
    return [text for text in row.qualifications if text.startswith("the program reports ")]


def test_true_figures_stand_beside_the_computed_ones_without_a_doubt(bench: BenchDir) -> None:
    summary = summary_of(bench)
    by_metric = {row.metric: row for row in summary.rows}
    assert list(by_metric) == [
        "tokens_per_s", "tokens_per_s_per_device", "tps", "tflops_per_device", "tflops", "mfu", "said_mfu", "mfu_causal", "hfu",
    ]  # fmt: skip
    said = by_metric["said_mfu"]
    assert (said.value, said.unit, said.n) == (pytest.approx(MFU, abs=0.005), "%", 3)
    assert (said.says, said.primary, said.speedup, said.is_speed) == ("mfu", False, None, False)
    assert (said.title, by_metric["mfu"].title) == ("mfu said by the program", "mfu")
    assert not any(doubts(row) for row in summary.rows)


def test_people_see_them_in_one_table(bench: BenchDir) -> None:
    _, derived = tables(summary_of(bench))
    names = [name for name in derived.columns if not name.endswith("95%")]
    assert names[5:8] == ["mfu %", "mfu said by the program %", "mfu_causal %"]
    assert (names[-1], derived.footnotes) == ("hfu %", ())
    _, derived = tables(summary_of(bench, mfu=f"{100 * TFLOPS / 312:.2f}%"))
    assert derived.footnotes == (
        f"the program reports mfu 202.71%, but its log gives 63.92%: it matches a computation with {OF_A100}",
    )
    assert (derived.columns[-1], derived.rows[0][-1]) == ("notes", "1")


@pytest.mark.parametrize(
    ("metric", "said", "doubt"),
    [
        ("said_mfu", {"mfu": f"{100 * TFLOPS / 312:.1f}%"}, OF_A100),
        ("said_mfu", {"mfu": f"{MFU * HALVED / PLAIN:.2f}%"}, ATTENTION),
        (
            "said_mfu",
            {"mfu": f"{MFU * RECOMPUTED / PLAIN:.2f}%"},
            f"full recomputation, which this run does not do, or with {OF_PCIE}",
        ),
        (
            "said_mfu",
            {"mfu": f"{100 * TFLOPS * HALVED / PLAIN / 312:.2f}%"},
            f"{ATTENTION} and {OF_A100}",
        ),
        ("tflops", {"tflops": TFLOPS * HALVED / PLAIN}, ATTENTION),
        (
            "tflops",
            {"tflops": TFLOPS * RECOMPUTED / PLAIN},
            "full recomputation, which this run does not do",
        ),
        ("tflops", {"tflops": TFLOPS * WITH_TABLES / PLAIN}, TABLES),
        ("tps", {"tps": f"{2 * PER_DEVICE:,.0f}"}, "the tokens of a node or a copy of the model"),
        ("tps", {"tps": f"{4 * PER_DEVICE:,.0f}"}, "the tokens of the whole run"),
        ("tps", {"tps": f"{PER_DEVICE / 2:,.0f}"}, "the tokens of one micro-batch of 2"),
    ],
)
def test_a_figure_that_differs_has_one_doubt_that_names_why(
    bench: BenchDir, metric: str, said: dict[str, Any], doubt: str
) -> None:
    rows = {row.metric: row for row in summary_of(bench, **said).rows}
    (text,) = doubts(rows[metric])
    assert f": it matches a computation with {doubt}" in text
    assert not any(doubts(row) for name, row in rows.items() if name != metric)


def test_a_figure_that_is_not_there_is_left_out(bench: BenchDir) -> None:
    rows = {row.metric: row for row in summary_of(bench, mfu="N/A").rows}
    assert (
        "said_mfu" not in rows
        and rows["tflops"].value == pytest.approx(TFLOPS, abs=0.01)
        and not rows["tflops"].failed
    )


@pytest.mark.parametrize(
    "forged", [{"says": "hfu"}, {"primary": True}, {"speedup": True}, {"keys": ["step"]}]
)
def test_a_forged_figure_is_a_damaged_manifest(bench: BenchDir, forged: dict[str, Any]) -> None:
    def change(planned: dict[str, Any], logs: list[dict[str, str]]) -> None:
        logged()(planned, logs)
        planned["framework"]["log"]["metrics"] = [METRICS[2] | forged]

    error = read_run(build(bench, "r1", change)).error
    assert error and error.kind == "state_damaged"
