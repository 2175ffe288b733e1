"""The program that copies between host and GPU: what it refuses, and, where there is a GPU, what it
prints.
"""

from __future__ import annotations

import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from tests.support.judge import LIMIT_S
from tests.support.ranks import ranks
from tests.support.trainers import FLAT, PYTHON, closing, grammar, needs, torchrun

PROGRAM = FLAT / "host_device.py"
KINDS = [
    ("h2d", "pinned"),
    ("d2h", "pinned"),
    ("both", "pinned"),
    ("h2d", "pageable"),
    ("d2h", "pageable"),
]


@cache
def gpus() -> int:
    """Return how many GPUs PyTorch finds."""
    code = "import torch; print(torch.cuda.device_count())"
    return int(
        subprocess.run(
            [PYTHON, "-c", code], capture_output=True, text=True, timeout=LIMIT_S, check=True
        ).stdout
    )


def test_a_machine_without_a_gpu_is_refused_in_words(tmp_path: Path) -> None:
    needs("torch")
    if gpus():
        pytest.skip("there is a GPU here")
    with pytest.raises(
        AssertionError,
        match=r"\[1\]: --device: expected a usable GPU for LOCAL_RANK=0, PyTorch \S+ finds 0",
    ):
        ranks(PROGRAM, ["--sizes", "4096"], tmp_path, 1)
    assert "Traceback" not in (tmp_path / "rank.sh-0.err").read_text()


def test_every_kind_of_copy_is_measured_at_every_size(tmp_path: Path) -> None:
    needs("torch")
    if not gpus():
        pytest.skip("needs a GPU")
    arguments = [
        "--sizes",
        "65536,16777216",
        "--steps",
        "3",
        "--warmup-steps",
        "1",
        "--step-seconds",
        "0.02",
    ]
    readings = re.compile(grammar("host_device")["readings"])
    best = dict.fromkeys(KINDS, 0.0)
    for _ in range(10):  # others may copy at the same time
        (out,) = torchrun(arguments, tmp_path, 1, PROGRAM.name)
        read = [match.groupdict() for match in map(readings.match, out.splitlines()) if match]
        assert [(one["direction"], one["memory"], one["size_bytes"]) for one in read] == [
            (*kind, size) for size in ("65536", "16777216") for kind in KINDS
        ]
        for kind, one in zip(KINDS, read[len(KINDS) :], strict=True):
            best[kind] = max(best[kind], float(one["gb_per_s"]))
        if best["both", "pinned"] > best["h2d", "pinned"] > best["h2d", "pageable"]:
            break
    else:
        pytest.fail(f"expected pinned memory and both directions to be faster, got {best}")
    assert closing("host_device", out)["model"] == "host_device"
