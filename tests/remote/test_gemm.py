"""The program that multiplies matrices: what each rank prints, that times and products are true,
and what is refused.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.support.judge import LIMIT_S
from tests.support.ranks import ranks
from tests.support.trainers import FLAT, PYTHON, closing, grammar, needs, rank_lines, torchrun

PROGRAM = FLAT / "gemm.py"
BRIEF = ["--device", "cpu", "--steps", "3", "--warmup-steps", "1", "--step-seconds", "0.02"]
LINE = re.compile(
    r"^orch gemm size=(\d+) calls=(\d+) time_s=([\d.]+) min_time_s=([\d.]+) tflops=([\d.]+)$",
    re.MULTILINE,
)


def changed(folder: Path, *changes: tuple[str, str]) -> Path:
    """Return a copy of the program in which code is replaced."""
    source = PROGRAM.read_text()
    for right, wrong in changes:
        assert source.count(right) == 1, right
        source = source.replace(right, wrong)
    path = folder / PROGRAM.name
    path.write_text(source)
    return path


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_every_rank_prints_its_own_speed_of_each_size(tmp_path: Path, dtype: str) -> None:
    needs("torch")
    out = ranks(PROGRAM, [*BRIEF, "--dtype", dtype, "--sizes", "32,128,32"], tmp_path, 2)
    readings = re.compile(grammar("gemm")["readings"])
    for rank, text in enumerate(out):
        assert rank_lines("gemm", text) == [(rank, 2)]
        lines = LINE.findall(text)
        assert [int(size) for size, *_ in lines] == [32, 128]
        for size, calls, time_s, min_time_s, tflops in lines:
            assert float(tflops) * 1e12 * float(time_s) == pytest.approx(
                2 * int(size) ** 3, rel=0.02, abs=1e-3
            )
            assert 0 < float(min_time_s) <= float(time_s) and int(calls) % 2 == 0
        read = [match.groupdict() for match in map(readings.match, text.splitlines()) if match]
        assert read == [
            {"size": size, "time_s": time_s, "min_time_s": min_time_s, "tflops": tflops}
            for size, _, time_s, min_time_s, tflops in lines
        ]
    facts = closing("gemm", out[0])
    assert (facts["world_size"], facts["ranks"], facts["model"], facts["dtype"]) == (
        2,
        [0, 1],
        "gemm",
        dtype,
    )
    assert "orch done" not in out[1]


def test_it_runs_under_torchrun(tmp_path: Path) -> None:
    needs("torch")
    out = torchrun([*BRIEF, "--sizes", "64"], tmp_path, 2, PROGRAM.name)
    assert [len(LINE.findall(text)) for text in out] == [1, 1]


def test_the_time_is_that_of_a_call(tmp_path: Path) -> None:
    """A product that also sleeps 200 ms: a call takes that, and the shortest less than twice that."""
    needs("torch")
    slow = changed(
        tmp_path,
        (
            "lambda: torch.mm(a, b, out=out)",
            "lambda: (torch.mm(a, b, out=out), __import__('time').sleep(0.2))",
        ),
    )
    out = ranks(
        slow,
        ["--device", "cpu", "--sizes", "32", "--steps", "6", "--step-seconds", "0.4"],
        tmp_path,
        1,
    )
    ((_, calls, time_s, min_time_s, tflops),) = LINE.findall(out[0])
    assert 0.2 <= float(min_time_s) <= float(time_s) and float(min_time_s) < 0.4
    assert int(calls) >= 4 and float(tflops) == pytest.approx(
        2 * 32**3 / float(time_s) / 1e12, rel=0.2, abs=1e-6
    )


@pytest.mark.parametrize(
    ("dtype", "wrong"),
    [
        ("fp32", "(torch.mm(a, b, out=out), out[40, 7].add_(1))"),
        ("bf16", "(torch.mm(a, b, out=out), out[40, 7].add_(30))"),
        ("fp16", "(torch.mm(a, b, out=out), out[40, 7].fill_(float('nan')))"),
    ],
)
def test_a_single_wrong_element_ends_the_run(tmp_path: Path, dtype: str, wrong: str) -> None:
    needs("torch")
    program = changed(tmp_path, ("lambda: torch.mm(a, b, out=out)", f"lambda: {wrong}"))
    said = rf"wrong result: gemm of size 64, {dtype}, rank 0 on \S+: row 40, column 7: expected \S+, got \S+"
    with pytest.raises(AssertionError, match=said):
        ranks(program, [*BRIEF, "--dtype", dtype, "--sizes", "64"], tmp_path, 1)


def test_a_product_in_fewer_bits_than_the_type_has_is_wrong(tmp_path: Path) -> None:
    needs("torch")
    fewer = "lambda: out.copy_(torch.mm(a.bfloat16(), b.bfloat16()))"
    program = changed(tmp_path, ("lambda: torch.mm(a, b, out=out)", fewer))
    with pytest.raises(AssertionError, match="wrong result: gemm of size 256, fp32"):
        ranks(program, [*BRIEF, "--dtype", "fp32", "--sizes", "256"], tmp_path, 1)


def test_a_product_that_is_never_computed_is_wrong(tmp_path: Path) -> None:
    needs("torch")
    program = changed(tmp_path, ("lambda: torch.mm(a, b, out=out)", "lambda: None"))
    with pytest.raises(AssertionError, match="row 0, column 0: expected .*, got nan"):
        ranks(program, [*BRIEF, "--sizes", "64"], tmp_path, 1)


def has_fp8() -> bool:
    """Tell whether this PyTorch multiplies fp8 on a CPU; the newest ones do."""
    code = """
import torch
a, one = torch.ones(16, 16).to(torch.float8_e4m3fn), torch.ones(())
out = torch.empty(16, 16, dtype=torch.bfloat16)
torch._scaled_mm(a, a.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, out=out)
"""
    return (
        subprocess.run(
            [PYTHON, "-c", code], capture_output=True, timeout=LIMIT_S, check=False
        ).returncode
        == 0
    )


def test_fp8_is_a_product_of_both_matrices(tmp_path: Path) -> None:
    needs("torch")
    if not has_fp8():
        pytest.skip("this PyTorch has no fp8 product on a CPU")
    arguments = [*BRIEF, "--dtype", "fp8", "--sizes", "128"]
    assert len(LINE.findall(ranks(PROGRAM, arguments, tmp_path, 1)[0])) == 1
    program = changed(
        tmp_path,
        ("by_columns = b.t()", "by_columns = a.t()"),
        ("a,\n        by_columns,", "a,\n        b.t(),"),
    )
    with pytest.raises(AssertionError, match="wrong result: gemm of size 128, fp8"):
        ranks(program, arguments, tmp_path, 1)


def test_a_size_that_does_not_fit_is_refused_in_words_before_anything_is_measured(
    tmp_path: Path,
) -> None:
    needs("torch")
    with pytest.raises(
        AssertionError, match=r"--sizes: 1048576 needs \d+ bytes, \d+ are free on cpu"
    ):
        ranks(PROGRAM, [*BRIEF, "--sizes", "16,1048576"], tmp_path, 1)
    assert "orch gemm" not in (tmp_path / "rank.sh-0.out").read_text()
    assert "Traceback" not in (tmp_path / "rank.sh-0.err").read_text()
