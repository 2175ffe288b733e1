"""The log grammars of seven programs, and lines that they print."""

from __future__ import annotations

from functools import cache

from orchestrator.logs.grammar import LogGrammar
from orchestrator.logs.steps import StepSample
from orchestrator.plan import folders as library
from tests.support.rendering import opened

OURS = LogGrammar(
    files=("rank-0.out",),
    patterns=(
        r"orch step=(?P<step>[0-9]+) t=(?P<timestamp>[0-9.]+) step_time_s=(?P<step_time_s>[0-9.]+) samples=(?P<samples>[0-9]+)",
    ),
    rank=r"orch rank=(?P<rank>[0-9]+) local_rank=[0-9]+ world_size=(?P<world_size>[0-9]+)",
    rank_files=("rank-*.out",),
    closing=r"orch done (?P<json>\{.*\})",
)
PYTORCH = LogGrammar(
    files=("*.out",),
    patterns=(r"Epoch: \[[0-9]+\]\[ *(?P<step>[0-9]+)/[0-9]+\]\tTime +(?P<step_time_s>[0-9.]+)",),
    scope="process",
)
TENSORFLOW = LogGrammar(
    files=("*.log",),
    patterns=(
        r"(?P<timestamp>[0-9:.]{8,15}) [0-9]+ [a-z_]+[.]py:[0-9]+\] TimeHistory: [0-9.]+ seconds, "
        r"(?P<samples_per_s>[0-9.]+) examples/second between steps [0-9]+ and (?P<step>[0-9]+)",
    ),
)
PADDLE = LogGrammar(
    files=("*.log",),
    patterns=(
        r"(?P<timestamp>[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:,]{12})-INFO: \[Pass [0-9]+, train batch (?P<step>[0-9]+)\] "
        r"[^\n]{0,200}elapse (?P<step_time_s>[0-9.]+) sec",
    ),
)
TENSORPACK = LogGrammar(
    files=("*.log",),
    patterns=(
        r"Epoch [0-9]+ \(global_step (?P<step>[0-9]+)\) finished",
        r"Throughput \(samples/sec\): (?P<samples_per_s>[0-9.]+)",
    ),
)
ONEFLOW = LogGrammar(
    files=("*.log",),
    patterns=(r"iter (?P<step>[0-9]+), [^\n]{0,200}samples/s: [0-9.]+ (?P<timestamp>[0-9.]+)",),
)
TF_CNN = LogGrammar(
    files=("*.log",),
    patterns=(r"(?P<step>[0-9]+)\timages/sec: (?P<samples_per_s>[0-9.]+) \+/-",),
    cumulative=True,
)
LOG = (
    b"+ exec python train.py\n"
    b"orch rank=0 local_rank=0 world_size=2 node_rank=0 host=node1 pid=7 device=NVIDIA H200\n"
    b"orch step=0 t=100.000000 step_time_s=0 samples=0 loss=nan\n"
    b"orch step=1 t=100.500000 step_time_s=0.500000 samples=64 loss=6.9\n"
    b"\xff\xfe noise \x00 >>>Finished Test Case 1!<<<\n"
    b"orch step=2 t=101.000000 step_time_s=0.500000 samples=64 loss=6.8\n"
    b'orch done {"world_size": 2, "steps": 2}\n'
)


def steps(samples: tuple[StepSample, ...]) -> list[int]:
    return [sample.step for sample in samples]


def step_line(step: int, at: float) -> bytes:
    return f"orch step={step} t={at:.3f} step_time_s=0.5 samples=64 loss=1\n".encode()


@cache
def grammars() -> list[LogGrammar]:
    """Return these grammars and those of all framework folders, whose reading takes a second."""
    above = [OURS, PYTORCH, TENSORFLOW, PADDLE, TENSORPACK, ONEFLOW, TF_CNN]
    number = LogGrammar(("x",), (r"(?P<step>[0-9]+)",))
    return [*above, number, *(opened(name).framework.log for name in library.frameworks())]
