"""The speed of parsing logs, for each framework folder, compared with the least that any program
would do with the same bytes.

    python benchmarks/parse.py [--mib 8] [--rounds 5] [--folder NAME …]
    python benchmarks/parse.py --memory --mib 1024

Two logs per folder: one of 150-byte lines without information, and one of only the step lines of
the folder's sample log. The baselines run on the same bytes, alternating with orch's parser round
by round: counting `splitlines`, and `re.search` of the folder's patterns on each decoded line, with
the matches discarded. Rates are the best of the rounds in MiB per second of processor time, which
other work on the machine disturbs least; a ratio is orch's rate over the baseline's: above 1 orch
is faster.

With --memory each log is parsed once, in a separate process, which prints its own peak memory
(VmHWM, so it includes all of Python). The lines without information are one file; the step lines
are files of 16 MiB read one after another, as a file of more than 400,000 steps is refused. Files
are memory-mapped, and pages behind the reader are released; a caller that passes bytes needs memory
for them in addition.
"""

from __future__ import annotations

import argparse
import mmap
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from orchestrator.logs.grammar import LogGrammar
from orchestrator.logs.parse import parse
from orchestrator.plan import folders as library

MIB = 1 << 20
FILE_MIB = 16
TEMPLATES = Path(__file__).parent.parent / "templates"
NOISE = b"2026-01-01 00:00:00,000 worker loaded shard %07d of the training set from /data/train, 1024 records, queue depth 16"


def main() -> None:
    """Print a line per folder and log."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mib", type=float, default=8, help="size of each log")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", action="append", help="of these framework folders only")
    parser.add_argument("--memory", action="store_true", help="measure memory instead")
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    size = int(asked.mib * MIB)
    names = asked.folder or list(library.frameworks())
    if asked.file:
        understood(asked.file, library.open_framework(names[0]).framework.log, size)
    elif asked.memory:
        memory(names, size)
    else:
        speed(names, size, asked.rounds)


def speed(names: list[str], size: int, rounds: int) -> None:
    """Print orch's rates next to the baselines'."""
    print(
        f"{'folder':20} {'log':8} {'parse':>9} {'splitlines':>11} {'ratio':>6} {'re.search':>10} {'ratio':>6}   MiB/s"
    )
    for name in names:
        for kind, data in logs(name, size, size):
            ours, split, search = rates(data, library.open_framework(name).framework.log, rounds)
            print(
                f"{name:20} {kind:8} {ours:9.1f} {split:11.1f} {ours / split:6.2f} {search:10.1f} {ours / search:6.1f}",
                flush=True,
            )


def memory(names: list[str], size: int) -> None:
    """Print, for each log, the memory of a process that only parses it."""
    print(
        f"{'folder':20} {'log':8} {'MiB':>6} {'files':>6} {'peak MiB':>9} {'MiB/s':>8} {'steps':>9}"
    )
    for name in names:
        for kind, data in logs(name, size, min(size, FILE_MIB * MIB)):
            with tempfile.NamedTemporaryFile() as file:
                file.write(data)
                file.flush()
                argv = [
                    sys.executable,
                    __file__,
                    "--file",
                    file.name,
                    "--folder",
                    name,
                    "--mib",
                    str(size / MIB),
                ]
                said = subprocess.run(
                    argv, check=True, capture_output=True, text=True
                ).stdout.strip()
            print(f"{name:20} {kind:8} {said}", flush=True)


def understood(path: Path, grammar: LogGrammar, size: int) -> None:
    """Parse a file as many times as it fits into ``size``; print this process's peak memory, speed
    and steps.
    """
    files = done = steps = 0
    began = time.process_time()
    while done < 0.99 * size:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        ):

            def forget(mapped: mmap.mmap = mapped) -> None:
                mapped.madvise(mmap.MADV_DONTNEED)

            steps += len(parse(mapped, grammar, forget).samples)
            files, done = files + 1, done + len(mapped)
    seconds = time.process_time() - began
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak = int(status.partition("VmHWM:")[2].split()[0]) / 1024
    print(f"{done / MIB:6.0f} {files:6} {peak:9.1f} {done / MIB / seconds:8.1f} {steps:9}")


def logs(name: str, noise_size: int, matching_size: int) -> Iterator[tuple[str, bytes]]:
    """Yield (kind, bytes) of the two logs of a folder."""
    yield "noise", noise(noise_size)
    sample = (TEMPLATES / name / "sample.log").read_bytes()
    yield "matching", matching(sample, library.open_framework(name).framework.log, matching_size)


def noise(size: int) -> bytes:
    """Return lines of 150 bytes that match no pattern."""
    return b"".join((NOISE % number).ljust(149, b".") + b"\n" for number in range(size // 150))


def matching(sample: bytes, grammar: LogGrammar, size: int) -> bytes:
    """Return the sample's step lines repeated, their step numbers counted on by tens, an interval
    that every program prints.
    """
    patterns = results(grammar)
    parts: list[tuple[str, bool]] = []
    for line in sample.decode("utf-8", "replace").splitlines():
        for match in filter(None, (pattern.search(line) for pattern in patterns)):
            at = match.span("step") if "step" in match.re.groupindex else (len(line), len(line))
            parts.append(
                (
                    line[: at[0]]
                    + "%d" * (at[0] < at[1])
                    + line[at[1] :].replace("%", "%%")
                    + "\n",
                    at[0] < at[1],
                )
            )
    written, length, step = [], 0, 10
    while length < size:
        for text, counts in parts:
            written.append(text % step if counts else text)
            step += 10 * counts
            length += len(written[-1])
    return "".join(written).encode()


def results(grammar: LogGrammar) -> list[re.Pattern[str]]:
    """Return the patterns of lines with results: of programs with steps, and of those without any."""
    return [re.compile(pattern, re.ASCII) for pattern in (*grammar.patterns, *grammar.readings)]


def rates(data: bytes, grammar: LogGrammar, rounds: int) -> tuple[float, float, float]:
    """Return the best MiB/s of `parse`, of splitting lines and of searching each line."""
    patterns = results(grammar)

    def search() -> int:
        return sum(
            any(pattern.search(line) for pattern in patterns)
            for line in data.decode("utf-8", "replace").splitlines()
        )

    ways: tuple[Callable[[], object], ...] = (
        lambda: parse(data, grammar),
        lambda: sum(1 for _ in data.splitlines()),
        search,
    )
    taken: list[list[float]] = [[], [], []]
    for _ in range(rounds):
        for seconds, way in zip(taken, ways, strict=True):
            began = time.process_time()
            way()
            seconds.append(time.process_time() - began)
    ours, split, searched = (len(data) / MIB / min(seconds) for seconds in taken)
    return ours, split, searched


if __name__ == "__main__":
    main()
