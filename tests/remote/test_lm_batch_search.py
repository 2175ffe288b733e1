"""The search for the largest micro-batch: what fits is found by real steps, by every rank alone,
and trained with.
"""

from __future__ import annotations

import io
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.lm_arguments import PROGRAM, SPREAD, SPREAD_UNTIED, common
from tests.support.ranks import OPTIMIZERS, ranks
from tests.support.trainers import closing, needs, samples

LIMITED = f"""
import os, resource, runpy, sys
import torch
used_kb = int(open("/proc/self/status").read().partition("VmData:")[2].split()[0])
limit = (used_kb << 10) + ((585 if os.environ["RANK"] == "0" else 265) << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
sys.argv[0], sys.path[0] = {str(PROGRAM)!r}, {str(PROGRAM.parent)!r}
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""The trainer with less memory beside PyTorch on rank 1 than on rank 0."""


@pytest.fixture(autouse=True)
def _torch() -> None:
    needs("torch")


def test_all_ranks_train_with_the_largest_batch_that_fits_on_each(tmp_path: Path) -> None:
    program = tmp_path / "limited.py"
    program.write_text(LIMITED)
    # Few large sizes: after each that does not fit, another process imports PyTorch.
    arguments = ["--batch-size", "4", "--find-batch-size", "4", "--seq-len", "1024", "--steps", "2"]
    texts = ranks(program, [*common("gpt-tiny"), *arguments], tmp_path, 2, imports=OPTIMIZERS)
    tried = [
        re.findall(r"^orch tried batch_size=(\d+): (.*)$", text, re.MULTILINE) for text in texts
    ]
    fitting = [max(int(size) for size, result in of_rank if result == "fits") for of_rank in tried]
    assert 0 < fitting[1] < fitting[0] == 4
    assert "can't allocate memory" in dict(tried[1])["4"]
    facts = closing("pytorch_lm", texts[0])
    assert (facts["batch_size"], facts["find_batch_size"], facts["global_batch"]) == (
        fitting[1],
        4,
        2 * fitting[1],
    )
    assert {step["samples"] for step in samples("pytorch_lm", texts[0])[1:]} == {2 * fitting[1]}


# --- one attempt, in a world whose messages are made up


@pytest.fixture
def world() -> Iterator[None]:
    import torch.distributed as dist

    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def attempts(
    sizes: str,
    arguments: list[str],
    rank: int,
    world_size: int,
    monkeypatch: pytest.MonkeyPatch,
    model: str = "gpt-tiny",
) -> None:
    """Try batch sizes as the process beside a rank does."""
    import train_lm

    monkeypatch.setattr(
        sys, "argv", ["train_lm.py", *common(model), *arguments, "--attempts", "true"]
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO(sizes))
    for name, value in {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": world_size,
        "MASTER_ADDR": "x",
        "MASTER_PORT": 1,
    }.items():
        monkeypatch.setenv(name, str(value))
    train_lm.main()


@pytest.mark.parametrize("how", [*SPREAD, *SPREAD_UNTIED])
@pytest.mark.usefixtures("world")
@pytest.mark.filterwarnings(
    "ignore:`broadcast_buffers` is deprecated:FutureWarning", "ignore:FSDP2-wrapped:UserWarning"
)
def test_a_rank_tries_every_way_to_spread_a_model_alone(
    how: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    nproc, arguments = {**SPREAD, **SPREAD_UNTIED}[how]
    model = "llama-tiny" if how in SPREAD_UNTIED else "gpt-tiny"
    attempts("1\n3\n", arguments, nproc - 1, nproc, monkeypatch, model)
    assert capfd.readouterr().out.splitlines() == ["attempt: fits", "attempt: fits"]


@pytest.mark.usefixtures("world")
def test_an_attempt_that_runs_out_of_memory_says_so_and_is_the_last(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    attempts(f"2\n{2**40}\n2\n", ["--parallel", "fsdp"], 0, 2, monkeypatch)
    first, second = capfd.readouterr().out.splitlines()
    assert first == "attempt: fits" and "can't allocate memory" in second


def test_it_needs_a_limit_on_a_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import train_lm

    monkeypatch.setattr(sys, "argv", ["train_lm.py", *common("gpt-tiny"), "--find-batch-size", "8"])
    said = r"--find-batch-size: expected 0 on cpu, or a limit of memory \(ulimit -d\)"
    with pytest.raises(SystemExit, match=said):
        train_lm.largest_batch(train_lm.arguments())
