"""The GPU that a rank of a PyTorch trainer sees, and what is said where there is none."""

from __future__ import annotations

import argparse
import os
from types import ModuleType

import pytest

from tests.remote.torch_in_process import neighbour

UUIDS = "GPU-5a0c0b1e, GPU-7d1e8f32"


@pytest.mark.parametrize(
    ("visible", "local_rank", "own"),
    [
        ("0,1,2,3", "2", "2"),
        ("4,5,6,7", "0", "4"),
        (UUIDS, "1", "GPU-7d1e8f32"),
        ("3", "0", "3"),
        ("0,1", "2", None),
        ("3", "1", None),
        ("0,0", "1", None),  # CUDA sees no GPU at all in such a list, and none after -1
        ("0,-1,1", "2", None),
        ("0,,1", "2", None),
        ("-1", "0", None),
        ("", "0", None),
        (None, "0", None),
        ("0,1", None, None),
        ("0,1", "one", None),
    ],
)
def test_a_rank_sees_only_its_own_gpu(
    visible: str | None,
    local_rank: str | None,
    own: str | None,
    trainer: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that all ranks of a node call it device 0, as a run on one GPU does; a child process of a
    rank keeps what it sees.
    """
    given = {"CUDA_VISIBLE_DEVICES": visible, "LOCAL_RANK": local_rank}
    environment = {name: value for name, value in given.items() if value is not None}
    monkeypatch.setattr(os, "environ", environment)
    for _ in ("a rank", "a child process of it"):
        neighbour("torch_ranks").see_own_gpu()
        assert environment.get("CUDA_VISIBLE_DEVICES") == (visible if own is None else own)
        assert environment.get("ORCH_OWN_GPU") == (None if own is None else visible)


def test_a_rank_of_an_old_pytorch_sees_all_gpus(
    trainer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its NCCL would take a GPU that it cannot see for a peer that it can reach."""
    import torch

    environment = {"CUDA_VISIBLE_DEVICES": "0,1", "LOCAL_RANK": "1"}
    monkeypatch.setattr(os, "environ", environment)
    monkeypatch.setattr(torch, "__version__", "2.1.2+cu121")
    neighbour("torch_ranks").see_own_gpu()
    assert environment["CUDA_VISIBLE_DEVICES"] == "0,1"


def test_a_rank_without_a_gpu_says_which_one_it_was_to_have(
    trainer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    monkeypatch.setattr(os, "environ", {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "LOCAL_RANK": "2"})
    ranks = neighbour("torch_ranks")
    asked = argparse.Namespace(device="cuda")
    expected = "--device: expected a usable GPU for LOCAL_RANK=2"
    with pytest.raises(SystemExit, match=f"{expected}, PyTorch .* finds 0"):
        ranks.claim(asked, 2)
    ranks.see_own_gpu()
    place = "at place 2 of CUDA_VISIBLE_DEVICES=0,1,2,3"
    with pytest.raises(SystemExit, match=f"{expected} {place}, PyTorch .* finds 0"):
        ranks.claim(asked, 2)
