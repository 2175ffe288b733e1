"""Folders for other people's trainers of language models: what their patterns read in real output,
and what they are given.

Which sample logs are from real runs, and which are composed from the programs' format strings, is
in docs/frameworks.md.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
from array import array
from dataclasses import asdict
from pathlib import Path

import pytest

from orchestrator.errors import ConfigError
from orchestrator.logs.parse import parse
from orchestrator.logs.steps import StepSample
from orchestrator.plan import folders as library
from orchestrator.plan.measures import LANGUAGE_MODEL
from orchestrator.plan.spec import RunSpec, resolve
from orchestrator.results.numbers.throughput import Terms, throughput
from tests.support.rendering import file_of, opened, planned

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = tuple(
    name for name in library.frameworks() if opened(name).framework.measures == LANGUAGE_MODEL
)
FOREIGN = tuple(name for name in FOLDERS if "trainer.py" not in opened(name).framework.payload)


def log_of(framework: str) -> bytes:
    return (ROOT / "templates" / framework / "sample.log").read_bytes()


def samples(framework: str, log: bytes) -> tuple[StepSample, ...]:
    return parse(log, opened(framework).framework.log).samples


def values_in(framework: str, log: bytes) -> set[tuple[int, str, float]]:
    """Every value of a log: step, name, value."""
    rows = [asdict(sample) for sample in samples(framework, log)]
    return {
        (row["step"], name, value)
        for row in rows
        for name, value in row.items()
        if value is not None
    }


def tokens_per_s(spec: RunSpec, steps: tuple[StepSample, ...]) -> float:
    """The speed of the window of a log, as a run with this spec has it."""
    terms = Terms(warmup_steps=spec.warmup_steps, steps=spec.steps, global_batch=spec.global_batch)
    return throughput(steps, terms).samples_per_s * spec.items


# Where values follow the line of their step, a lost line of a step is one that nobody can miss.
WHOLE_LINES = [
    name
    for name in FOREIGN
    if all("(?P<step>" in text for text in opened(name).framework.log.patterns)
]


@pytest.mark.parametrize("framework", WHOLE_LINES)
def test_a_line_cut_anywhere_and_glued_to_the_next_never_gives_another_value(
    framework: str,
) -> None:
    log = log_of(framework)
    true = values_in(framework, log)
    assert true
    last = max(step for step, _, _ in true)
    for cut in random.Random(2).sample(range(len(log) - 1), min(300, len(log) - 1)):
        glued = log[:cut] + log[log.find(b"\n", cut) + 1 :]
        # Where a line begins with its step, 10 and 11 make a step 1011: no window reaches that far.
        assert {row for row in values_in(framework, glued) if row[0] <= last} <= true, log[
            max(0, cut - 60) : cut
        ]


@pytest.mark.parametrize("framework", FOLDERS)
def test_every_metric_of_a_folder_is_in_its_sample_log(framework: str) -> None:
    grammar = opened(framework).framework.log
    groups = {name for reading in parse(log_of(framework), grammar).readings for name in reading}
    assert {metric.group for metric in grammar.metrics} <= groups


@pytest.mark.parametrize("framework", FOLDERS)
def test_published_sizes_count_the_published_parameters(framework: str) -> None:
    """What is not in a matrix product is the embedding table, positions, norms and biases: at most
    5 % of a tiny model.
    """
    for name, model in opened(framework).framework.models.items():
        transformer = opened(framework).framework.transformer(name)
        table = 0 if transformer.tied else transformer.vocab * transformer.width
        idle = (transformer.experts - transformer.active_experts) * (3 if transformer.gated else 2)
        matrices = (
            transformer.matmul_parameters
            + table
            + transformer.layers * idle * transformer.width * transformer.mlp
        )
        assert matrices <= model["parameters"] <= matrices * 1.05, name


# ------------------------------------------------------------------ nanoGPT


def test_nanogpt_times_are_milliseconds_of_steps_that_count_from_0() -> None:
    steps = samples("nanogpt", log_of("nanogpt"))
    assert [step.step for step in steps] == list(range(1, 13))
    assert (steps[0].step_time_s, steps[11].step_time_s, steps[11].loss) == pytest.approx(
        (0.06584, 0.02377, 6.2296)
    )


def test_nanogpt_tokens_per_s_come_from_the_times_of_the_window() -> None:
    spec = planned("nanogpt", (1, 1), "cpu", "gpt-tiny").spec
    # iter 4 to 11: 2 sequences of 64 tokens in each.
    milliseconds = 15.75 + 18.74 + 17.23 + 28.25 + 19.65 + 22.78 + 18.10 + 23.77
    assert tokens_per_s(spec, samples("nanogpt", log_of("nanogpt"))) == pytest.approx(
        8 * 2 * 64 / milliseconds * 1000
    )


def test_nanogpt_micro_batches_are_those_of_all_ranks() -> None:
    plan = planned("nanogpt", (2, 8), accumulation="5")
    script = file_of(plan, 1)
    assert "--batch_size=12 --gradient_accumulation_steps=80" in " ".join(script.split())
    assert "--max_iters=59 --eval_interval=60 --eval_iters=1" in script
    assert (
        "--nnodes 2 --nproc_per_node 8 --node_rank 1" in script
        and "--master_addr 10.11.0.2 --master_port 20000" in script
    )
    # What train.py prints as tokens per iteration: micro-batches of all ranks, sequences, tokens.
    assert plan.spec.global_batch * plan.spec.items == 80 * 12 * 1024
    # One rank is no process group, which a RANK in the environment would make of it.
    assert "env -u RANK /opt/python -u" in file_of(planned("nanogpt", (1, 1)), 0)


@pytest.mark.parametrize(
    ("shape", "device", "sets", "where"),
    [
        ((1, 2), "cpu", {}, "--gpus"),
        ((2, 1), "cpu", {}, "--gpus"),
        ((1, 1), "cuda", {"steps": "6", "warmup_steps": "1"}, "--steps"),
        ((1, 1), "cuda", {"seq_len": "200000"}, "--set seq_len"),
    ],
)
def test_nanogpt_refuses_what_it_cannot_do(
    shape: tuple[int, int], device: str, sets: dict[str, str], where: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned("nanogpt", shape, device, **sets)
    assert caught.value.where == where


def test_random_tokens_are_in_the_vocabulary_and_the_same_every_time(tmp_path: Path) -> None:
    program = ROOT / "templates" / "nanogpt" / "random_tokens.py"
    for folder in ("one", "two"):
        subprocess.run([sys.executable, program, "300", "5000", tmp_path / folder], check=True)
    tokens = array("H", (tmp_path / "one" / "train.bin").read_bytes())
    assert len(tokens) == 5000 and set(tokens) == set(range(300))
    for name in ("train.bin", "val.bin", "meta.pkl"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    refused = subprocess.run(
        [sys.executable, program, "70000", "1", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (
        refused.returncode == 1
        and "expected 2 to 65536, which uint16 holds, got 70000" in refused.stderr
    )


# ------------------------------------------------------------------ Megatron-LM


def test_megatron_lines_are_of_the_last_node_and_in_milliseconds() -> None:
    grammar = opened("megatron_lm").framework.log
    assert (grammar.nodes, grammar.files) == ("last", ("node.out",))
    steps = samples("megatron_lm", log_of("megatron_lm"))
    assert [step.step for step in steps] == list(range(1, 13))
    assert steps[2].step_time_s == pytest.approx(1.2177) and steps[2].loss == pytest.approx(
        11.87729
    )
    assert {step.skipped for step in steps} == {0}
    spec = planned("megatron_lm", (2, 8), model="llama3-8b", steps="12", warmup_steps="2").spec
    milliseconds = [
        float(text) for text in re.findall(rb"\(ms\): ([0-9.]+) ", log_of("megatron_lm"))
    ][2:]
    tokens = len(milliseconds) * 16 * 8192
    assert tokens_per_s(spec, steps) == pytest.approx(tokens / sum(milliseconds) * 1000)


def test_megatron_lines_of_older_copies_and_of_lost_losses_count() -> None:
    """Copies of before 2024-07 print no clock; an iteration that is skipped, or whose loss is NaN,
    has no loss.
    """
    line = (
        " iteration       10/  500000 | consumed samples:        10240 | elapsed time per iteration (ms): 13035.3 |"
        " throughput per GPU (TFLOP/s/GPU): 812.5 | learning rate: 0.000000E+00 | global batch size:  1024 |"
        " loss scale: 8388608.0 | number of skipped iterations:  10 | number of nan iterations:   0 |\n"
    )
    (step,) = samples("megatron_lm", line.encode())
    assert (step.step, step.loss, step.skipped) == (
        10,
        None,
        10,
    ) and step.step_time_s == pytest.approx(13.0353)


def test_megatron_gets_the_global_batch_of_its_replicas() -> None:
    plan = planned("megatron_lm", (4, 8), model="llama3-70b")
    script = " ".join(file_of(plan, 3).split())
    # 32 ranks, 16 of them for one copy of the model: 2 copies with 16 micro-batches of 1 sequence.
    assert "--micro-batch-size 1 --global-batch-size 32 --train-iters 50" in script
    assert (
        "--tensor-model-parallel-size 4 --pipeline-model-parallel-size 4 --context-parallel-size 1"
        in script
    )
    assert "--vocab-size 128255 --make-vocab-size-divisible-by 32" in script
    assert (
        "--group-query-attention --num-query-groups 8" in script
        and "--swiglu" in script
        and "--sequence-parallel" in script
    )
    assert "--node_rank 3" in script and script.endswith(
        '/opt/megatron_lm_dir/pretrain_gpt.py "${arguments[@]}"'
    )
    experts = " ".join(file_of(planned("megatron_lm", (1, 8), model="mixtral-8x7b"), 0).split())
    assert (
        "--num-experts 8 --moe-router-topk 2" in experts
        and "--expert-model-parallel-size 8" in experts
    )


@pytest.mark.parametrize(
    ("shape", "model", "sets", "where"),
    [
        ((1, 8), "gpt2-124m", {"warmup_steps": "1"}, "--warmup-steps"),
        ((1, 8), "gpt2-124m", {"tensor_parallel": "8"}, "--set tensor_parallel"),  # of 12 heads
        (
            (1, 8),
            "gpt2-124m",
            {"pipeline_parallel": "8"},
            "--set pipeline_parallel",
        ),  # of 12 layers
        ((1, 8), "llama3-8b", {"expert_parallel": "2"}, "--set expert_parallel"),
        ((1, 4), "mixtral-8x7b", {"expert_parallel": "8"}, "--set expert_parallel"),
        ((1, 8), "llama3-8b", {"context_parallel": "4", "seq_len": "100"}, "--set seq_len"),
        ((1, 2), "llama3-8b", {"tensor_parallel": "2", "seq_len": "4095"}, "--set seq_len"),
        ((1, 2), "llama3-8b", {"dtype": "fp8", "seq_len": "100"}, "--dtype"),
        (
            (1, 2),
            "llama3-8b",
            {"dtype": "fp8", "seq_len": "1000", "tensor_parallel": "2"},
            "--dtype",
        ),  # 500 on each rank
    ],
)
def test_megatron_refuses_what_does_not_divide(
    shape: tuple[int, int], model: str, sets: dict[str, str], where: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned("megatron_lm", shape, model=model, **sets)
    assert caught.value.where == where


# ------------------------------------------------------------------ torchtitan


def test_torchtitans_own_numbers_agree_with_its_clock_and_our_count_of_operations() -> None:
    """Its documentation shows a run of Llama 3 8B on 8 GPUs, 8,192 tokens each in a step, a line
    every 10 steps.
    """
    steps = samples("torchtitan", log_of("torchtitan"))
    assert [step.step for step in steps] == [1, 10, 20, 30]
    spec = planned("torchtitan", (1, 8), model="llama3-8b", steps="30", warmup_steps="10").spec
    (*_, twenty, thirty) = parse(log_of("torchtitan"), opened("torchtitan").framework.log).readings
    printed = [float(line["printed_tps"].replace(",", "")) for line in (twenty, thirty)]
    assert printed == [7022, 7014]
    # 20 steps in 23.346 s by the clock, whose last digit is a millisecond; the program leaves out
    # its own printing.
    assert tokens_per_s(spec, steps) / 8 == pytest.approx(
        2 / (1 / printed[0] + 1 / printed[1]), rel=5e-4
    )
    flops = opened("torchtitan").framework.transformer("llama3-8b").flops_per_token(8192)
    # torchtitan counts norms as well, which are 3 in 100,000; tps is printed to one in 7,000.
    assert float(thirty["printed_tflops"]) * 1e12 / printed[1] == pytest.approx(flops, rel=1e-4)


def test_torchtitan_reads_its_settings_from_a_file() -> None:
    plan = planned("torchtitan", (4, 8), model="llama3-70b", accumulation="2")
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 or newer")
    settings = tomllib.loads(file_of(plan, 2, "config.toml"))
    assert settings["training"] == {
        "dataset": "c4_test", "dataset_path": "words", "local_batch_size": 8, "global_batch_size": 64, "seq_len": 8192,
        "steps": 60, "mixed_precision_param": "bfloat16",
    }  # fmt: skip
    assert (
        settings["parallelism"]["tensor_parallel_degree"] == 8
        and settings["activation_checkpoint"]["mode"] == "full"
    )
    assert settings["compile"] == {"enable": True} and settings["model"]["flavor"] == "70B"
    assert "-m torchtitan.train --job.config_file config.toml" in file_of(plan, 2)


@pytest.mark.parametrize(
    ("sets", "where"),
    [
        ({"steps": "65"}, "--steps and --warmup-steps"),
        ({"warmup_steps": "5"}, "--steps and --warmup-steps"),
        ({"replicas": "3"}, "--set replicas"),
        ({"tensor_parallel": "3"}, "--set tensor_parallel"),
        ({"context_parallel": "2", "seq_len": "4094"}, "--set seq_len"),
        ({"tensor_parallel": "2", "seq_len": "4095"}, "--set seq_len"),
    ],
)
def test_torchtitan_refuses_what_it_does_not_print_or_divide(
    sets: dict[str, str], where: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned("torchtitan", (1, 8), **sets)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("framework", "device", "sets", "where"),
    [
        ("jax_lm", "cpu", {"seq_len": "65"}, "--set seq_len"),
        ("hf_trainer", "cpu", {"seq_len": "1"}, "--set seq_len"),
        ("hf_trainer", "cpu", {"seq_len": "65"}, "--set seq_len"),
        ("hf_trainer", "cpu", {"seed": "99999999999"}, "--set seed"),
        ("pytorch_lm", "cpu", {"attention": "flash"}, "--set attention"),
        ("pytorch_lm", "cpu", {"threads": "10000000"}, "--set threads"),
    ],
)
def test_tiny_models_are_not_planned_as_their_ranks_would_refuse_them(
    framework: str, device: str, sets: dict[str, str], where: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(framework, (1, 1), device, "gpt-tiny", **sets)
    assert caught.value.where == where


def test_random_words_are_tokens_of_the_tokenizer(tmp_path: Path) -> None:
    program = ROOT / "templates" / "torchtitan" / "random_words.py"
    subprocess.run(
        [sys.executable, program, tmp_path / "tokenizer", tmp_path / "words"], check=True
    )
    vocabulary = json.loads((tmp_path / "tokenizer" / "tokenizer.json").read_text())["model"][
        "vocab"
    ]
    # The smallest model has 2,048 rows.
    assert sorted(vocabulary.values()) == list(range(2003))
    documents = [
        json.loads(line)["text"].split(" ")
        for line in (tmp_path / "words" / "data.json").read_text().splitlines()
    ]
    assert len(documents) == 8192 and {len(words) for words in documents} == {510}
    assert {word for words in documents[:100] for word in words} <= set(vocabulary)


# ------------------------------------------------------------------ MaxText


def test_maxtext_lines_count_from_0_and_are_of_all_devices() -> None:
    steps = samples("maxtext", log_of("maxtext"))
    assert [step.step for step in steps] == list(range(1, 13)) and steps[0].step_time_s == 48.205
    spec = planned("maxtext", (1, 8), steps="12", warmup_steps="2", batch_size="2").spec
    lines = parse(log_of("maxtext"), opened("maxtext").framework.log).readings[2:]
    printed = [float(line["printed_tokens"]) for line in lines]
    # Seconds have three digits after the point: 1 in 1,400.
    assert tokens_per_s(spec, steps) / 8 == pytest.approx(
        len(printed) / sum(1 / tokens for tokens in printed), rel=4e-4
    )


def test_maxtext_has_a_process_per_node_and_ranks_share_weights_over_all_nodes() -> None:
    plan = planned("maxtext", (4, 8), accumulation="2", batch_size="3")
    script = " ".join(file_of(plan, 2).split())
    assert (
        "NNODES=4 NODE_RANK=2" in script
        and "JAX_COORDINATOR_IP=10.11.0.2 JAX_COORDINATOR_PORT=20000" in script
    )
    assert "per_device_batch_size=3 max_target_length=8192 gradient_accumulation_steps=2" in script
    assert "dcn_data_parallelism=1 dcn_fsdp_parallelism=4 ici_fsdp_parallelism=8" in script
    assert plan.spec.global_batch == 4 * 8 * 3 * 2
    copies = " ".join(file_of(planned("maxtext", (4, 8), shard_nodes="false"), 0).split())
    assert "dcn_data_parallelism=4 dcn_fsdp_parallelism=1 ici_fsdp_parallelism=8" in copies


@pytest.mark.parametrize(
    ("shape", "model", "sets", "where"),
    [
        ((2, 8), "llama3-8b", {"replicas": "2", "parallel": "ddp"}, "--set parallel"),
        ((2, 8), "llama3-8b", {"embedding": "row-wise", "parallel": "ddp"}, "--set embedding"),
        ((2, 8), "llama3-8b", {"embedding": "row-wise", "replicas": "2"}, "--set embedding"),
        ((1, 5), "llama3-8b", {"embedding": "row-wise"}, "--set embedding"),  # of 128,256 rows
        ((1, 1), "llama-tiny", {"embedding": "row-wise", "parallel": "ddp"}, "--set embedding"),
        ((1, 2), "llama-tiny", {"embedding": "row-wise"}, "--set embedding"),  # auto is ddp
        (
            (1, 2),
            "llama3-1b",
            {"embedding": "row-wise", "parallel": "fsdp"},
            "--set embedding",
        ),  # tied
        ((1, 1), "gpt2-124m", {"dtype": "fp16", "loss_chunks": "2"}, "--set loss_chunks"),
        ((1, 1), "gpt2-124m", {"dtype": "tf32", "weights": "bf16"}, "--set weights"),
        ((1, 1), "gpt2-124m", {"dtype": "fp8", "seq_len": "7", "batch_size": "1"}, "--dtype"),
        ((1, 2), "gpt2-124m", {"compile_split": "whole"}, "--set compile_split"),
        ((1, 1), "gpt2-124m", {"seed": "2147483648"}, "--set seed"),
        ((1, 3), "llama3-8b", {"replicas": "2"}, "--set replicas"),
    ],
)
def test_our_own_trainer_is_not_planned_as_its_ranks_would_refuse_it(
    shape: tuple[int, int], model: str, sets: dict[str, str], where: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned("pytorch_lm", shape, model=model, **sets)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("framework", "device", "model", "sets", "where"),
    [
        ("pytorch", "cpu", "resnet50", {"loader": "dali-gpu"}, "--loader"),
        ("pytorch", "cpu", "resnet50", {"backend": "nccl"}, "--set backend"),
        ("pytorch", "cpu", "resnet50", {"cuda_graphs": "true"}, "--set cuda_graphs"),
        ("pytorch", "cpu", "resnet50", {"find_batch_size": "64"}, "--set find_batch_size"),
        ("pytorch", "cuda", "resnet50", {"max_pool": "gathered"}, "--set max_pool"),
        ("pytorch", "cuda", "vgg16", {"max_pool": "gathered", "compile": "true"}, "--set max_pool"),
        ("pytorch", "cuda", "vgg16", {"reduce": "packed", "compress": "fp16"}, "--set compress"),
        ("pytorch", "cuda", "vgg16", {"cuda_graphs": "true", "compress": "fp16"}, "--set compress"),
        (
            "pytorch",
            "cuda",
            "vgg16",
            {"cuda_graphs": "true", "backend": "gloo"},
            "--set cuda_graphs",
        ),
        ("pytorch", "cuda", "vgg16", {"cuda_graphs": "true", "steps": "12"}, "--steps"),
        ("pytorch", "cuda", "vgg16", {"reduce": "packed", "steps": "11"}, "--steps"),
        ("paddle", "cpu", "resnet50", {"loader": "dali-gpu"}, "--loader"),
        ("tensorflow", "cpu", "resnet50", {"all_reduce": "nccl"}, "--set all_reduce"),
    ],
)
def test_our_image_trainers_are_not_planned_with_what_they_cannot_do(
    framework: str, device: str, model: str, sets: dict[str, str], where: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(framework, (1, 1), device, model, **sets)
    assert caught.value.where == where


def test_who_asks_for_a_llama_in_jax_is_told_which_folders_have_it() -> None:
    with pytest.raises(ConfigError, match="jax_lm has no model 'llama3-70b'") as caught:
        planned("jax_lm", (1, 1), model="llama3-70b")
    assert "; " in str(caught.value.hint) and str(caught.value.hint).endswith("have llama3-70b")
    assert "maxtext" in str(caught.value.hint)


@pytest.mark.parametrize("option", ["tensor_parallel", "pipeline_parallel"])
def test_who_asks_our_own_trainer_to_split_layers_is_told_which_folders_do(option: str) -> None:
    with pytest.raises(ConfigError, match=f"pytorch_lm has no option '{option}'") as caught:
        resolve(
            opened("pytorch_lm").framework,
            "llama3-8b",
            device="cuda",
            choices={"nodes": 2, "gpus": 8, f"options.{option}": "2"},
        )
    folders = "megatron_lm, torchtitan have" if option == "tensor_parallel" else "megatron_lm has"
    assert str(caught.value.hint).endswith(f"; {folders} {option}")


@pytest.mark.parametrize(
    ("shape", "model", "sets"),
    [
        ((2, 8), "llama3-8b", {}),
        ((1, 2), "llama-tiny", {"parallel": "fsdp"}),
        ((1, 1), "llama-tiny", {}),  # one rank holds all rows
    ],
)
def test_rows_of_the_embedding_are_spread_where_ranks_can(
    shape: tuple[int, int], model: str, sets: dict[str, str]
) -> None:
    plan = planned("pytorch_lm", shape, model=model, embedding="row-wise", **sets)
    assert "--embedding row-wise" in file_of(plan, 0)
