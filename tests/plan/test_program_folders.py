"""Folders for programs that measure a machine: what their patterns read in real output, and how
their launch scripts end.

Lines are from logs of these programs that users have published, and where there are none, composed
from the programs' own format strings. Where a program needs hardware that is not here, a stand-in
prints its output; what reads it is the real thing.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import ConfigError
from orchestrator.inventory.hosts import Host
from orchestrator.logs.parse import parse
from orchestrator.plan import folders as library
from orchestrator.plan.bench import plan_run
from orchestrator.plan.render import Plan
from orchestrator.plan.spec import resolve
from orchestrator.results.values import Expected, values_of
from tests.support.judge import LIMIT_S
from tests.support.rendering import opened

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parents[1] / "data" / "programs"
PROGRAMS = tuple(
    name
    for name in library.frameworks()
    if opened(name).framework.measures == "readings"
    and "trainer.py" not in opened(name).framework.payload
)
VARS = {
    "interface": "ib0",
    "nccl_tests_dir": "/opt/nccl-tests",
    "hpl_dir": "/opt/hpl",
    "stream_dir": "/opt/stream",
    "gpu_burn_dir": "/opt/gpu-burn",
}


def readings(framework: str, text: str) -> list[dict[str, str]]:
    return [
        dict(reading) for reading in parse(text.encode(), opened(framework).framework.log).readings
    ]


def planned(
    framework: str, shape: tuple[int, int], device: str = "cuda", model: str = "", **sets: str
) -> Plan:
    folder = opened(framework)
    gpus = 8 if device == "cuda" else 0
    hosts = [
        Host(f"node{n}", f"10.11.0.{n + 1}", gpus=gpus, slots=8, vars=VARS)
        for n in range(1, shape[0] + 1)
    ]
    options = {key: value for key, value in sets.items() if key in folder.framework.options}
    choices: dict[str, Any] = {"nodes": shape[0], "gpus": shape[1]}
    choices |= {key: int(sets[key]) for key in ("steps", "warmup_steps") if key in sets}
    spec = resolve(
        folder.framework,
        model or next(iter(folder.framework.models)),
        device=device,
        choices=choices | {f"options.{name}": text for name, text in options.items()},
    )
    return plan_run(folder, spec, hosts, run_id="b1.001", repeat=1, port=20000)


def file_of(plan: Plan, node: int, path: str = "launch.sh") -> str:
    return next(file.content for file in plan.nodes[node].files if file.path == path)


def words_of(script: str) -> str:
    """Return the script with each command on one line."""
    return re.sub(r" *\\\n *", " ", script)


@pytest.mark.parametrize("framework", PROGRAMS)
def test_a_line_cut_anywhere_and_glued_to_the_next_never_gives_another_value(
    framework: str,
) -> None:
    log = (ROOT / "templates" / framework / "sample.log").read_text(encoding="utf-8")
    true = readings(framework, log)
    assert true
    for cut in random.Random(2).sample(range(len(log)), min(300, len(log))):
        glued = log[:cut] + log[log.find("\n", cut) + 1 :]
        assert [reading for reading in readings(framework, glued) if reading not in true] == [], (
            log[max(0, cut - 60) : cut]
        )
        assert [reading for reading in readings(framework, log[:cut]) if reading not in true] == []


@pytest.mark.parametrize("framework", PROGRAMS)
def test_the_sample_log_has_every_metric(framework: str) -> None:
    log = (ROOT / "templates" / framework / "sample.log").read_text(encoding="utf-8")
    groups = {name for reading in readings(framework, log) for name in reading}
    metrics = opened(framework).framework.log.metrics
    assert {metric.group for metric in metrics} <= groups
    assert {key for metric in metrics for key in metric.keys} <= groups


VALUES = {
    "nccl_tests": {
        ("busbw", (134217728,)): 22.86,
        ("time", (1048576,)): 339.61,
        ("busbw_in_place", (8388608,)): 15.0,
    },
    "perftest_bw": {("bandwidth", (65536,)): 392.34, ("message_rate", (65536,)): 0.748336},
    "perftest_lat": {("latency", (2,)): 1.27, ("latency_p99", (2,)): 1.37},
    "fio": {
        ("bandwidth", ("read",)): 20.898256,
        ("iops", ("write",)): 2191.389,
        ("lat_p99", ("write",)): 46923.776,
    },
    "stream": {("bandwidth", ("Triad",)): 7785.9},
    # Both are from one run: HPC Challenge says in TFLOP/s what HPL says in GFLOP/s.
    "hpcc": {("hpl", ()): 1.29438, ("ring_latency", ()): 5.70936},
    "hpl": {("gflops", (400,)): 1.294},
    "gpu_burn": {("gflops", (0, "node1")): 15251.5, ("temperature", (0, "node1")): 45.0},
}


@pytest.mark.parametrize("framework", PROGRAMS)
def test_the_sample_log_becomes_values_in_the_units_of_its_metrics(framework: str) -> None:
    log = (ROOT / "templates" / framework / "sample.log").read_text(encoding="utf-8")
    metrics = opened(framework).framework.log.metrics
    found = values_of(
        metrics, {("node1", "rank-0.out"): readings(framework, log)}, Expected(nodes=1, ranks=1)
    )
    values = {(value.metric, value.key): value.number for value in found}
    assert {name for name, _ in values} == {metric.name for metric in metrics}
    for place, number in VALUES.get(framework, {}).items():
        assert values[place] == pytest.approx(number)


def test_a_latency_whose_deviation_perftest_cannot_compute_is_read() -> None:
    # Of soft RoCE on a busy machine: the root of a sum that its rounding made negative.
    row = (
        " 2       1000          232.88         323514.23      1647.74  \t       4382.23     \t-nan"
        "   \t\t86226.68 \t\t323514.23\n"
    )
    (reading,) = readings("perftest_lat", row)
    assert (reading["typical"], reading["p99"]) == ("1647.74", "86226.68")


# ------------------------------------------------------------------ NCCL tests

ROWS = {
    "all_reduce, 2.19 with unchanged columns": (
        "   134217728      33554432     float     sum      -1  5871.07   22.86   22.86       0"
        "  5867.43   22.88   22.88       0",
        (134217728, "5871.07", "22.86", "5867.43", "22.88"),
    ),
    "all_reduce, 2.13": (
        " 10737418240    2684354560     float     sum      -1    90330  118.87  222.88      0    91945  116.78  218.96      0",
        (10737418240, "90330", "222.88", "91945", "218.96"),
    ),
    "not verified": (
        "  8589934592    2147483648     float     sum      -1  5111454    1.68    3.15    N/A  5220040    1.65    3.09    N/A",
        (8589934592, "5111454", "3.15", "5220040", "3.09"),
    ),
    "alltoall, in place not verified": (
        "    16777216       1048576     float    none      -1    288.0   58.25   43.69      0    155.6   53.90   40.43    N/A",
        (16777216, "288.0", "43.69", "155.6", "40.43"),
    ),
    "all_reduce before 2.13, without root, errors of rounding": (
        "    33554432       8388608     float     sum   4393.9    7.64   14.32  4e-07   4384.4    7.65   14.35  4e-07",
        (33554432, "4393.9", "14.32", "4384.4", "14.35"),
    ),
    "broadcast before 2.13, without operation": (
        "    40046416      40046416      int8       0   1268.1   31.58   31.58  0e+00   1279.3   31.30   31.30  0e+00",
        (40046416, "1268.1", "31.58", "1279.3", "31.30"),
    ),
    "all_gather before 2.13, with neither": (
        "          32             1   float    35.03    0.00    0.00    N/A    33.98    0.00    0.00    N/A",
        (32, "35.03", "0.00", "33.98", "0.00"),
    ),
    "reduce before 2.13, with both": (
        "    33554432       8388608     float     sum       0   4393.9    7.64    7.64  1e-06   4384.4    7.65    7.65  1e-06",
        (33554432, "4393.9", "7.64", "4384.4", "7.65"),
    ),
    "with -S, the time of day": (
        "    33554432       8388608     float     sum      -1  1537.62   21.82   21.82       0  1538.74   21.81   21.81       0"
        "  2026-07-09 16:03:21",
        (33554432, "1537.62", "21.82", "1538.74", "21.81"),
    ),
    "with -I, columns of single iterations": (
        "    33554432       8388608     float     sum      -1  1537.62   21.82   21.82       0"
        "  1519.20  1561.31  1560.02     0.91"
        "  1538.74   21.81   21.81       0  1520.18  1580.98  1580.11     1.02",
        (33554432, "1537.62", "21.82", "1538.74", "21.81"),
    ),
}


@pytest.mark.parametrize("kind", ROWS)
def test_rows_of_all_versions_of_the_nccl_tests_are_read(kind: str) -> None:
    row, (size, time, busbw, time_in_place, busbw_in_place) = ROWS[kind]
    (reading,) = readings("nccl_tests", row + "\n")
    assert (int(reading["size_bytes"]), reading["time_us"], reading["busbw"]) == (size, time, busbw)
    assert (reading["time_in_place_us"], reading["busbw_in_place"]) == (
        time_in_place,
        busbw_in_place,
    )


@pytest.mark.parametrize(
    "row",
    [
        "    67108864     16777216     float     sum      -1  2982.38   22.50   22.50      12  2983.25   22.50   22.50       0",
        "    67108864     16777216     float     sum      -1  2982.38   22.50   22.50       0  2983.25   22.50   22.50   1e+06",
        "    33554432       8388608     float     sum   4393.9    7.64   14.32  2e+00   4384.4    7.65   14.35  4e-07",
        "    33554432       8388608     float     sum   4393.9    7.64   14.32  4e-07   4384.4    7.65   14.35    nan",
        "           0             0   float    34.27    0.00    0.00    N/A    33.57    0.00    0.00    N/A",
        "#  Rank  0 Group  0 Pid  15784 on  nid007106 device  0 [0009:01:00] NVIDIA GH200 120GB",
        "    1048576        262144     float     sum      -1   339.61    3.09    3.09       0   335.85    3.12    3.12",
    ],
)
def test_a_row_with_wrong_results_or_of_no_bytes_is_no_value(row: str) -> None:
    assert readings("nccl_tests", row + "\n") == []


def test_a_model_is_a_program_and_all_ranks_start_from_the_first_node() -> None:
    plan = planned(
        "nccl_tests",
        (2, 8),
        model="reduce_scatter_perf",
        suffix="_mpi",
        steps="30",
        warmup_steps="10",
    )
    script = words_of(file_of(plan, 0))
    assert "-np 16 -H 10.11.0.2:8,10.11.0.3:8" in script
    assert (
        "/opt/nccl-tests/reduce_scatter_perf_mpi" in script
        and "--iters 20 --warmup_iters 10" in script
    )
    assert "-x ORCH_RUN_ID" in script
    assert "reduce_scatter" not in file_of(plan, 1)
    alone = words_of(file_of(planned("nccl_tests", (1, 8), launcher="none"), 0))
    assert "mpirun" not in alone and '"${program[@]}" --nthreads 1 --ngpus 8' in alone


REFUSED: list[tuple[str, tuple[int, int], Mapping[str, str], str]] = [
    ("nccl_tests", (1, 1), {}, "expected 2 or more ranks"),
    ("nccl_tests", (2, 8), {"launcher": "none"}, "expected --nodes 1, got 2"),
    (
        "nccl_tests",
        (2, 8),
        {"min_bytes": "64", "max_bytes": "32"},
        "expected at most max_bytes, 32, got 64",
    ),
    ("nccl_tests", (2, 8), {"root": "16"}, "expected a rank below 16"),
    ("perftest_bw", (1, 1), {}, "expected 2, one that serves and one that measures, got 1"),
    ("perftest_lat", (4, 1), {}, "expected 2, one that serves and one that measures, got 4"),
    ("perftest_lat", (2, 1), {"warmup_steps": "1"}, "expected 0: all messages are counted"),
    ("stream", (1, 1), {"steps": "20"}, "compiled into STREAM"),
    ("hpcc", (1, 1), {"steps": "2"}, "runs once"),
    ("gpu_burn", (1, 1), {"memory_percent": "101"}, "expected 1 to 100"),
]


@pytest.mark.parametrize(("framework", "shape", "sets", "words"), REFUSED)
def test_what_a_program_cannot_do_is_refused_while_planning(
    framework: str, shape: tuple[int, int], sets: Mapping[str, str], words: str
) -> None:
    device = next(iter(opened(framework).framework.dtypes))
    with pytest.raises(ConfigError, match=re.escape(words)) as caught:
        planned(framework, shape, device, **sets)
    assert caught.value.kind != "template_error"


# ------------------------------------------------------------------ perftest


@pytest.mark.parametrize(
    ("framework", "row", "expected"),
    [
        (
            "perftest_bw",
            " 8388608    5000             196.56             196.55\t\t     0.002929",
            {
                "size_bytes": "8388608",
                "peak": "196.56",
                "bandwidth": "196.55",
                "message_rate": "0.002929",
            },
        ),
        (
            "perftest_bw",
            " 2          5000           0.045656            0.045526            2.845402",
            {
                "size_bytes": "2",
                "peak": "0.045656",
                "bandwidth": "0.045526",
                "message_rate": "2.845402",
            },
        ),
        (
            "perftest_bw",
            " 65536      5000             195.89             190.24\t\t     0.362863\t    12.50",
            {
                "size_bytes": "65536",
                "peak": "195.89",
                "bandwidth": "190.24",
                "message_rate": "0.362863",
            },
        ),
        (
            "perftest_lat",
            " 2       1000          5.35           11.78        5.49               5.50           0.18"
            "            5.74                   11.78",
            {
                "size_bytes": "2",
                "min": "5.35",
                "max": "11.78",
                "typical": "5.49",
                "mean": "5.50",
                "p99": "5.74",
            },
        ),
    ],
)
def test_rows_of_perftest_are_read(framework: str, row: str, expected: Mapping[str, str]) -> None:
    assert readings(framework, row + "\n") == [expected]
    other = "perftest_lat" if framework == "perftest_bw" else "perftest_bw"
    assert readings(other, row + "\n") == []


STAND_IN = """\
#!/bin/bash
printf '%s\\n' "$*" >> {record}
if [ "$(wc -l < {record})" -le {failures} ]; then
  echo "{words}" >&2
  exit 1
fi
cat {output}
"""


@pytest.mark.parametrize(
    ("failures", "words", "code", "starts"),
    [
        (0, "", 0, 1),
        (3, "Couldn't connect to 10.11.0.3:20000", 0, 4),
        (3, " Unable to find the Infiniband/RoCE device", 1, 1),
        (99, "Couldn't connect to 10.11.0.3:20000", 1, 40),
    ],
    ids=["at once", "the server listens later", "no device", "no server"],
)
def test_the_client_starts_again_until_the_server_listens(
    failures: int, words: str, code: int, starts: int, tmp_path: Path
) -> None:
    record, program = tmp_path / "record", tmp_path / "bin" / "ib_write_bw"
    program.parent.mkdir()
    output = ROOT / "templates" / "perftest_bw" / "sample.log"
    program.write_text(
        STAND_IN.format(record=record, failures=failures, words=words, output=output)
    )
    program.chmod(0o700)
    (program.parent / "sleep").symlink_to("/bin/true")
    record.touch()
    plan = planned("perftest_bw", (2, 1), "cpu")
    done = started(plan, 0, tmp_path, {"PATH": f"{program.parent}:/usr/bin:/bin"})
    calls = record.read_text().splitlines()
    assert (done.returncode, len(calls)) == (code, starts)
    assert words in done.stderr
    assert bool(readings("perftest_bw", done.stdout)) == (code == 0)
    server = words_of(file_of(plan, 1))
    assert calls[-1].split()[-1] == "10.11.0.3" and calls[-1].split()[0] == "--port=20000"
    assert "10.11.0.3" not in server and 'exec "${program[@]}"' in server


def started(
    plan: Plan, node: int, folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a node's launch script in a folder of its own."""
    run = folder / f"run-{node}"
    (run / "logs").mkdir(parents=True)
    for file in plan.nodes[node].files:
        (run / file.path).write_text(file.content)
    return subprocess.run(
        plan.nodes[node].argv, cwd=run, env={"HOME": str(folder), **environment}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip


# ------------------------------------------------------------------ HPL and HPC Challenge


@pytest.mark.parametrize(
    ("shape", "grid"),
    [
        ((1, 1), (1, 1)),
        ((1, 2), (1, 2)),
        ((2, 2), (2, 2)),
        ((2, 3), (2, 3)),
        ((1, 7), (1, 7)),
        ((4, 8), (4, 8)),
        ((3, 8), (4, 6)),
    ],
)
@pytest.mark.parametrize(("framework", "path"), [("hpl", "HPL.dat"), ("hpcc", "hpccinf.txt")])
def test_ranks_form_the_grid_nearest_to_a_square(
    framework: str, path: str, shape: tuple[int, int], grid: tuple[int, int]
) -> None:
    lines = file_of(planned(framework, shape, "cpu", n="3000", nb="96"), 0, path).splitlines()
    # The places of these values in the file are HPL's format: lines are counted, words behind a
    # value are not read.
    assert [lines[at].split()[0] for at in (5, 7, 10, 11)] == [
        "3000",
        "96",
        str(grid[0]),
        str(grid[1]),
    ]
    assert len(lines) == (31 if framework == "hpl" else 36)


@pytest.mark.parametrize(
    "row",
    [
        "WR11C2R4         200    80     2     2               0.02              3.471e-01",
        "WC00L2L2       83328   192     4     4            1047.20             3.6835e+02",
        "WR03L4R2      192000  1024     2     4              60.49              7.8012e+04 ( 9.7515e+03)",
    ],
)
def test_results_of_hpl_are_read_in_the_formats_of_its_versions(row: str) -> None:
    (reading,) = readings("hpl", row + "\n")
    _, n, _, _, _, time_s, gflops, *_ = row.split()
    assert reading == {"n": n, "time_s": time_s, "gflops": gflops}


# ------------------------------------------------------------------ GPU Burn

TWO_GPUS = (
    "GPU 0: NVIDIA H100 (UUID: GPU-1)\nGPU 1: NVIDIA H100 (UUID: GPU-2)\n"
    "\r20.0%  proc'd: 405 (26255 Gflop/s) - 0 (0 Gflop/s)   errors: 0 - 0   temps: 67 C - -- "
    "\r60.0%  proc'd: 810 (26545 Gflop/s) - 405 (20000 Gflop/s)   errors: 0 - 0   temps: 70 C - 61 C "
    "\r80.0%  proc'd: 810 (26545 Gflop/s) - 810 (26100 Gflop/s)   errors: 0 - {errors}  temps: 71 C - 64 C "
    "\r100.0%  proc'd: 1215 (26400 Gflop/s) - 810 (26100 Gflop/s)   errors: 0 - {errors}  temps: 87 C - 74 C "
    "\nKilling processes with SIGTERM (soft kill)\ndone\n\nTested 2 GPUs:\n\tGPU 0: OK\n\tGPU 1: {verdict}\n"
)


def burn(output: Path, folder: Path, *, status: int = 0) -> subprocess.CompletedProcess[str]:
    program = folder / "gpu_burn"
    program.write_text(f"#!/bin/bash\ncat {output}\nexit {status}\n")
    program.chmod(0o700)
    lines = ROOT / "templates" / "gpu_burn" / "gpu_burn_lines.py"
    argv = [
        sys.executable,
        "-I",
        "-S",
        str(lines),
        "--directory",
        str(folder),
        "--seconds",
        "10",
        "--warmup-seconds",
        "1",
    ]
    argv += ["--log", str(folder / "log"), "--", "./gpu_burn", "-m", "90%", "10"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)


def test_each_round_of_each_gpu_is_a_line_but_for_the_first(tmp_path: Path) -> None:
    done = burn(DATA / "gpu_burn.txt", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (ROOT / "templates" / "gpu_burn" / "sample.log").read_text()
    assert "7987 Gflop/s" in (tmp_path / "log").read_text()
    (tmp_path / "two").write_text(TWO_GPUS.format(errors="0 ", verdict="OK"))
    found = readings("gpu_burn", burn(tmp_path / "two", tmp_path).stdout)
    assert [(line["gpu"], line["gflops"]) for line in found if "gflops" in line] == [
        ("0", "26545"), ("1", "26100"), ("0", "26400"),
    ]  # fmt: skip
    assert [(line["gpu"], line["temperature"]) for line in found if "temperature" in line] == [
        ("0", "70"),
        ("1", "64"),
        ("0", "87"),
    ]


def test_temperatures_of_some_of_the_gpus_are_nobodys(tmp_path: Path) -> None:
    listed = "GPU 2: NVIDIA H100 (UUID: GPU-3)\n" + TWO_GPUS.format(errors="0 ", verdict="OK")
    (tmp_path / "two").write_text(listed)
    found = readings("gpu_burn", burn(tmp_path / "two", tmp_path).stdout)
    assert len(found) == 3 and not any("temperature" in line for line in found)


@pytest.mark.parametrize(
    ("text", "status", "code", "words"),
    [
        (
            TWO_GPUS.format(errors="3  (WARNING!)", verdict="FAULTY"),
            0,
            1,
            "expected correct results, got wrong ones from GPU 1",
        ),
        ("Burning for 10 seconds.\n", 0, 1, "expected gpu_burn's verdict on each GPU, got none"),
        ("No CUDA devices\n", 19, 19, ""),
    ],
    ids=["a faulty GPU", "no verdict", "no device"],
)
def test_a_burn_with_a_fault_fails(
    text: str, status: int, code: int, words: str, tmp_path: Path
) -> None:
    (tmp_path / "output").write_text(text)
    done = burn(tmp_path / "output", tmp_path, status=status)
    assert done.returncode == code
    assert words in done.stderr and "Traceback" not in done.stderr
    assert not any(
        line.get("gpu") == "1" and "gflops" in line for line in readings("gpu_burn", done.stdout)
    )
