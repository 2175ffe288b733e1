"""What the trainer of language models is asked: what it refuses, counts and is passed."""

from __future__ import annotations

import sys

import pytest

from tests.remote.lm_arguments import FOLDER, MODELS, PROGRAM, common
from tests.support.trainers import flags

pytestmark = pytest.mark.usefixtures("torch_of_trainers")

REFUSED = [
    (
        "gpt-tiny",
        ["--tensor-parallel", "2"],
        2,
        "--tensor-parallel: expected 1, this program does not split layers",
    ),
    (
        "gpt-tiny",
        ["--pipeline-parallel", "2"],
        2,
        "--pipeline-parallel: expected 1, this program does not split layers",
    ),
    (
        "gpt-tiny",
        ["--replicas", "2"],
        3,
        "--replicas: expected a divisor of the 3 data-parallel ranks, got 2",
    ),
    (
        "gpt-tiny",
        ["--replicas", "2", "--parallel", "ddp"],
        2,
        "--replicas: expected 1 with --parallel ddp",
    ),
    (
        "gpt-tiny",
        ["--parallel", "fsdp", "--embedding", "row-wise"],
        2,
        "--embedding row-wise: expected an output layer of its own (--tied false)",
    ),
    (
        "llama-tiny",
        ["--parallel", "fsdp", "--embedding", "row-wise"],
        3,
        "--embedding row-wise: expected a number of ranks that divides the 512 rows",
    ),
    (
        "llama-tiny",
        ["--embedding", "row-wise"],
        2,
        "--embedding row-wise: expected --parallel fsdp without replicas",
    ),
    (
        "gpt-tiny",
        ["--compile", "true", "--compile-split", "whole"],
        2,
        "--compile-split: expected blocks on several ranks",
    ),
    ("gpt-tiny", ["--kv-heads", "3"], 1, "--kv-heads: expected a divisor of the 4 heads, got 3"),
    ("gpt-tiny", ["--dtype", "fp8"], 1, "--dtype: expected fp32, bf16 or fp16 on cpu, got fp8"),
    ("gpt-tiny", ["--weights", "bf16"], 1, "--weights: expected fp32 with --dtype fp32, got bf16"),
    (
        "gpt-tiny",
        ["--attention", "cudnn"],
        1,
        "--attention: expected auto or math on cpu, got cudnn",
    ),
    ("gpt-tiny", ["--seed", str(2**31)], 1, "--seed: expected less than 2^31, got 2147483648"),
    ("gpt-tiny", ["--seq-len", "0"], 1, "--seq-len: expected 1 or more, got 0"),
    (
        "gpt-tiny",
        ["--loss-chunks", "2", "--dtype", "fp16"],
        1,
        "--loss-chunks: expected 1 with --dtype fp16",
    ),
]


@pytest.mark.parametrize(
    ("model", "arguments", "world_size", "sentence"), REFUSED, ids=[row[-1] for row in REFUSED]
)
def test_what_cannot_be_is_refused_in_one_sentence_before_ranks_meet(
    model: str,
    arguments: list[str],
    world_size: int,
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import train_lm
    from trainer import Identity

    monkeypatch.setattr(sys, "argv", ["train_lm.py", *common(model), *arguments])
    with pytest.raises(SystemExit) as refusal:
        train_lm.refuse(train_lm.arguments(), Identity(0, 0, world_size, 0))
    said = (
        capsys.readouterr().err.splitlines()
        if refusal.value.code == 2
        else [str(refusal.value.code)]
    )
    assert sentence in said[-1]


@pytest.mark.parametrize("model", list(MODELS))
def test_parameters_are_those_that_the_folder_declares(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import train_lm
    from trainer import Identity

    monkeypatch.setattr(sys, "argv", ["train_lm.py", *common(model)])
    _, layout, parameters = train_lm.refuse(train_lm.arguments(), Identity(0, 0, 8, 0))
    assert parameters == MODELS[model]["parameters"]
    assert layout.kind == ("fsdp" if parameters > 2e9 else "ddp")


@pytest.mark.parametrize(
    ("model", "arguments", "expected"),
    [
        ("llama-tiny", ["--batch-size", "2"], True),  # 128 tokens of two ranks
        (
            "llama-tiny",
            ["--batch-size", "7"],
            True,
        ),  # 448 tokens there and back in fp32, 512 rows and their gradients in fp32
        ("llama-tiny", ["--batch-size", "8"], False),
        (
            "llama-tiny",
            ["--batch-size", "4", "--accumulation", "2"],
            True,
        ),  # the table is gathered twice
        ("llama-tiny", ["--batch-size", "4", "--accumulation", "2", "--reshard", "false"], False),
        (
            "llama-tiny",
            ["--batch-size", "11", "--dtype", "bf16"],
            True,
        ),  # 704 tokens of 2 bytes, 512 rows of 2 and of 4
        ("llama-tiny", ["--batch-size", "12", "--dtype", "bf16"], False),
        ("llama-tiny", ["--batch-size", "8", "--embedding", "row-wise"], True),
        ("llama-tiny", ["--batch-size", "2", "--embedding", "gathered"], False),
        ("gpt-tiny", ["--batch-size", "2"], False),
    ],
)
def test_a_table_is_gathered_where_exchanging_what_is_looked_up_would_send_more(
    model: str, arguments: list[str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import train_lm
    from lm_embedding import embedding_of
    from trainer import Identity

    monkeypatch.setattr(
        sys, "argv", ["train_lm.py", *common(model), "--parallel", "fsdp", *arguments]
    )
    args = train_lm.arguments()
    shape, layout, _ = train_lm.refuse(args, Identity(0, 0, 2, 0))
    assert (embedding_of(args, shape, layout) == "row-wise") is expected


def test_a_launch_script_of_an_earlier_version_that_splits_no_layers_still_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import train_lm

    earlier = ["--tensor-parallel", "1", "--pipeline-parallel", "1", "--pipeline-schedule", "gpipe"]
    monkeypatch.setattr(sys, "argv", ["train_lm.py", *common("gpt-tiny"), *earlier])
    facts = vars(train_lm.arguments())
    assert not [name for name in facts if "tensor" in name or "pipeline" in name]


def test_the_launch_script_passes_every_flag() -> None:
    template = (FOLDER / "launch.sh.j2").read_text()
    own = {
        "--attempts"
    }  # the program gives it to the process that its search for a batch size starts
    declared = flags(PROGRAM) - own | {
        f"--{name}" for name in ("layers", "width", "heads", "mlp", "vocab")
    }
    assert [flag for flag in declared if f"{flag} " not in template] == []


@pytest.mark.parametrize(("millions", "mib"), [(124, 25), (1558, 92), (8030, 478)])
def test_large_models_reduce_more_gradients_at_once(millions: int, mib: int) -> None:
    """A 64th of the gradients in fp32, and not less than what DistributedDataParallel takes by
    itself.
    """
    from lm_parallel import bucket_cap_mib

    assert bucket_cap_mib(millions * 10**6) == mib
