"""What the trainer of language models is asked: what it refuses, counts and is passed."""

from __future__ import annotations

import sys

import pytest

from tests.remote.lm_arguments import MODELS, common

pytestmark = pytest.mark.usefixtures("torch_of_trainers")


@pytest.mark.parametrize("model", list(MODELS))
def test_parameters_are_those_that_the_folder_declares(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import train_lm
    from trainer import Identity

    monkeypatch.setattr(sys, "argv", ["train_lm.py", *common(model)])
    _, layout, parameters = train_lm.spread(train_lm.arguments(), Identity(0, 0, 8, 0))
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
    shape, layout, _ = train_lm.spread(args, Identity(0, 0, 2, 0))
    assert (embedding_of(args, shape, layout) == "row-wise") is expected


def test_a_launch_script_of_an_earlier_version_that_splits_no_layers_still_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import train_lm

    earlier = ["--tensor-parallel", "1", "--pipeline-parallel", "1", "--pipeline-schedule", "gpipe"]
    monkeypatch.setattr(sys, "argv", ["train_lm.py", *common("gpt-tiny"), *earlier])
    facts = vars(train_lm.arguments())
    assert not [name for name in facts if "tensor" in name or "pipeline" in name]


@pytest.mark.parametrize(("millions", "mib"), [(124, 25), (1558, 92), (8030, 478)])
def test_large_models_reduce_more_gradients_at_once(millions: int, mib: int) -> None:
    """A 64th of the gradients in fp32, and not less than what DistributedDataParallel takes by
    itself.
    """
    from lm_parallel import bucket_cap_mib

    assert bucket_cap_mib(millions * 10**6) == mib
