"""How fast logs are understood, for each framework folder, beside the least that anyone would do with the same bytes.

    python benchmarks/parse.py [--mib 8] [--rounds 5]

Two logs per folder: one of 150-byte lines that say nothing, and one of nothing but the step lines of the folder's sample log.
The baselines run on the same bytes in turn with ours, round by round: counting `splitlines`, and `re.search` of the folder's
patterns on each decoded line, whose matches are thrown away. Rates are the best of the rounds in MiB per second of processor
time, which other work on the machine disturbs least; a ratio is our rate over the baseline's: above 1 we are faster.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Callable
from pathlib import Path

from orchestrator import library
from orchestrator.framework import LogGrammar
from orchestrator.logparse import parse

MIB = 1 << 20
TEMPLATES = Path(__file__).parent.parent / "templates"
NOISE = b"2026-01-01 00:00:00,000 worker loaded shard %07d of the training set from /data/train, 1024 records, queue depth 16"


def main() -> None:
    """Print a line per folder and log."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=8, help="size of each log")
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    size = int(asked.mib * MIB)
    print(f"{'folder':20} {'log':8} {'parse':>9} {'splitlines':>11} {'ratio':>6} {'re.search':>10} {'ratio':>6}   MiB/s")
    for name in library.frameworks():
        sample = (TEMPLATES / name / "sample.log").read_bytes()
        grammar = library.open_framework(name).framework.log
        for kind, data in (("noise", noise(size)), ("matching", matching(sample, grammar, size))):
            ours, split, search = rates(data, grammar, asked.rounds)
            print(
                f"{name:20} {kind:8} {ours:9.1f} {split:11.1f} {ours / split:6.2f} {search:10.1f} {ours / search:6.1f}",
                flush=True,
            )


def noise(size: int) -> bytes:
    """Lines of 150 bytes that match nothing."""
    return b"".join((NOISE % number).ljust(149, b".") + b"\n" for number in range(size // 150))


def matching(sample: bytes, grammar: LogGrammar, size: int) -> bytes:
    """The sample's step lines again and again, their steps counted on by tens, which every program prints."""
    patterns = [re.compile(pattern, re.ASCII) for pattern in grammar.patterns]
    parts: list[tuple[str, bool]] = []
    for line in sample.decode("utf-8", "replace").splitlines():
        for match in filter(None, (pattern.search(line) for pattern in patterns)):
            at = match.span("step") if "step" in match.re.groupindex else (len(line), len(line))
            parts.append((line[: at[0]] + "%d" * (at[0] < at[1]) + line[at[1] :].replace("%", "%%") + "\n", at[0] < at[1]))
    found, length, step = [], 0, 10
    while length < size:
        for text, counts in parts:
            found.append(text % step if counts else text)
            step += 10 * counts
            length += len(found[-1])
    return "".join(found).encode()


def rates(data: bytes, grammar: LogGrammar, rounds: int) -> tuple[float, float, float]:
    """Return the best MiB/s of `parse`, of splitting lines and of searching each."""
    patterns = [re.compile(pattern, re.ASCII) for pattern in grammar.patterns]

    def search() -> int:
        return sum(any(pattern.search(line) for pattern in patterns) for line in data.decode("utf-8", "replace").splitlines())

    ways: tuple[Callable[[], object], ...] = (lambda: parse(data, grammar), lambda: sum(1 for _ in data.splitlines()), search)
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
