"""The GPU that a rank of a PyTorch trainer sees."""

from __future__ import annotations

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
        ("0,1", "2", None),  # more ranks than GPUs: claim refuses it, and names how many are visible
        ("3", "1", None),
        ("", "0", None),
        (None, "0", None),
        ("0,1", None, None),
        ("0,1", "one", None),
    ],
)
def test_a_rank_sees_only_its_own_gpu(
    visible: str | None, local_rank: str | None, own: str | None, trainer: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that all ranks of a node call it device 0, as a run on one GPU does; a child process of a rank keeps what it sees."""
    given = {"CUDA_VISIBLE_DEVICES": visible, "LOCAL_RANK": local_rank}
    environment = {name: value for name, value in given.items() if value is not None}
    monkeypatch.setattr(os, "environ", environment)
    for _ in ("a rank", "a child process of it"):
        neighbour("torch_ranks").see_own_gpu()
        assert environment.get("CUDA_VISIBLE_DEVICES") == (visible if own is None else own)
        assert ("ORCH_OWN_GPU" in environment) is (own is not None)
