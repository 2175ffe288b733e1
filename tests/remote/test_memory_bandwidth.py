"""The program that measures memory bandwidth: the kernels of STREAM, their bytes, and that their
results are verified.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.ranks import ranks
from tests.support.trainers import FLAT, closing, grammar, needs, rank_lines

PROGRAM = FLAT / "memory_bandwidth.py"
BRIEF = ["--device", "cpu", "--steps", "3", "--warmup-steps", "1", "--step-seconds", "0.02"]
LINE = re.compile(
    r"^orch memory kernel=(\w+) size_bytes=(\d+) calls=\d+ time_s=([\d.]+) min_time_s=([\d.]+) gb_per_s=([\d.]+)"
    r" best_gb_per_s=([\d.]+)$",
    re.MULTILINE,
)
ARRAYS = {"copy": 2, "scale": 2, "add": 3, "triad": 3}
"""stream.c 5.10, `bytes`: 2, 2, 3 and 3 times the size of an array."""


@pytest.mark.parametrize("dtype", ["fp64", "fp32"])
def test_bytes_are_counted_as_stream_does(tmp_path: Path, dtype: str) -> None:
    needs("torch")
    out = ranks(PROGRAM, [*BRIEF, "--dtype", dtype, "--sizes", "65536,1048576"], tmp_path, 2)
    readings = re.compile(grammar("memory_bandwidth")["readings"])
    for rank, text in enumerate(out):
        assert rank_lines("memory_bandwidth", text) == [(rank, 2)]
        lines = LINE.findall(text)
        assert [(kernel, int(size)) for kernel, size, *_ in lines] == [
            (k, s) for s in (65536, 1048576) for k in ARRAYS
        ]
        for kernel, size, time_s, min_time_s, rate, best in lines:
            moved = ARRAYS[kernel] * int(size)
            assert float(rate) * 1e9 * float(time_s) == pytest.approx(moved, rel=1e-3)
            assert float(best) * 1e9 * float(min_time_s) == pytest.approx(moved, rel=1e-3)
        read = [match.groupdict() for match in map(readings.match, text.splitlines()) if match]
        assert [(one["kernel"], one["gb_per_s"], one["best_gb_per_s"]) for one in read] == [
            (kernel, rate, best) for kernel, _, _, _, rate, best in lines
        ]
    assert closing("memory_bandwidth", out[0])["dtype"] == dtype


def test_larger_arrays_take_longer(tmp_path: Path) -> None:
    needs("torch")
    # 256 times the bytes, and the fastest of several calls: far from what other processes do to
    # either.
    out = ranks(PROGRAM, [*BRIEF, "--sizes", "65536,16777216"], tmp_path, 1)
    fastest = {
        (kernel, int(size)): float(time_s) for kernel, size, _, time_s, _, _ in LINE.findall(out[0])
    }
    assert all(fastest[kernel, 16777216] > 4 * fastest[kernel, 65536] for kernel in ARRAYS)


def test_arrays_that_a_cache_holds_are_remarked(tmp_path: Path) -> None:
    needs("torch")
    (remark,) = closing(
        "memory_bandwidth", ranks(PROGRAM, [*BRIEF, "--sizes", "4096"], tmp_path, 1)[0]
    )["remarks"]
    assert re.fullmatch(
        r"arrays of 4096 bytes may show the cache: STREAM asks for .*, which has \d{5,} bytes",
        remark,
    )


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        (
            "lambda: c.copy_(a)",
            "lambda: None",
            "copy of 4096 bytes, rank 0 on .*: element 0: expected 1, got -1",
        ),
        (
            "out=b)",
            "out=b)[9:10].add_(1)",
            "scale of 4096 bytes, rank 0 on .*: element 9: expected 30, got 31",
        ),
        (
            "torch.add(a, b, out=c)",
            "torch.sub(a, b, out=c)",
            "add of 4096 bytes, rank 0 on .*: element 0: expected 4, got -2",
        ),
        (
            "alpha=SCALAR",
            "alpha=1",
            "triad of 4096 bytes, rank 0 on .*: element 0: expected 15, got 7",
        ),
    ],
)
def test_a_wrong_result_ends_the_run(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    needs("torch")
    source = PROGRAM.read_text()
    assert source.count(right) == 1
    program = tmp_path / PROGRAM.name
    program.write_text(source.replace(right, wrong))
    with pytest.raises(AssertionError, match=f"wrong result: {said}"):
        ranks(program, [*BRIEF, "--sizes", "4096"], tmp_path, 1)


def test_a_size_that_does_not_fit_is_refused_in_words(tmp_path: Path) -> None:
    needs("torch")
    with pytest.raises(
        AssertionError,
        match=r"--sizes: 1099511627776 needs 3298534883328 bytes, \d+ are free on cpu",
    ):
        ranks(PROGRAM, [*BRIEF, "--sizes", "4096,1099511627776"], tmp_path, 1)
    assert "Traceback" not in (tmp_path / "rank.sh-0.err").read_text()
