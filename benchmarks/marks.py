"""The cost of progress reports by ranks: a mark, a step with two marks against one without, and the
supervisor's look.

    python benchmarks/marks.py [--step-us 1000] [--pairs 40] [--ranks 8]

Steps compute for ``--step-us`` in Python, in pairs that alternate between marks and none; the ratio
is the median over the pairs, with the range in which half of them lie. The supervisor looks once a
second: its cost is the time of one look at the progress of so many ranks, as a share of a core.
"""

from __future__ import annotations

import argparse
import importlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "remote" / "trainers" / "common"))

STEPS = 200


def steps(work: int, mark: Callable[[int, str], None]) -> float:
    """Return the processor seconds of some steps that each compute and mark two phases."""
    begun = time.process_time()
    for number in range(STEPS):
        mark(number, "input")
        mark(number, "compute")
        for _ in range(work):
            pass
    return time.process_time() - begun


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--step-us", type=float, default=1000.0)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--ranks", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("ranks").mkdir()
        from rank_progress import Progress

        make_stall: Any = importlib.import_module("noderun.stall").Stall

        marked, without = Progress(f"{folder}/ranks/0.progress").mark, Progress("").mark
        count = 100_000
        best = {}
        for name, mark in (("a mark", marked), ("a mark without ORCH_PROGRESS", without)):
            times = []
            for _ in range(7):
                begun = time.process_time()
                for number in range(count):
                    mark(number, "compute")
                times.append((time.process_time() - begun) / count * 1e6)
            best[name] = min(times)
            print(f"{name}: {best[name]:.2f} us (with the loop around it)")
        work = 1000
        while steps(work, without) / STEPS * 1e6 < args.step_us:
            work = work * 5 // 4
        ratios = []
        for pair in range(args.pairs):
            order = (marked, without) if pair % 2 else (without, marked)
            taken = {mark: steps(work, mark) for mark in order}
            ratios.append(taken[marked] / taken[without])
        low, middle, high = statistics.quantiles(ratios, n=4)
        shown = f"{middle:.4f} ({low:.4f} to {high:.4f}), {args.pairs} pairs"
        print(f"steps of {args.step_us:g} us with two marks, against none: {shown}")
        for rank in range(args.ranks):
            Progress(f"{folder}/ranks/{rank}.progress").mark(1, "compute")
        stall: Any = make_stall()
        records = [{"rank": rank} for rank in range(args.ranks)]
        begun = time.process_time()
        for second in range(1000):
            stall.look({"examines": True}, records, {}, float(second))
        look_s = (time.process_time() - begun) / 1000
        print(
            f"a look at {args.ranks} ranks, once a second: {look_s * 1e6:.0f} us, {look_s:.5%} of a core"
        )
        os.chdir("/")


if __name__ == "__main__":
    main()
