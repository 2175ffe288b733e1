"""Run rows of the fault suite many times and print what was counted.

    python -m tests.faults [ROW…] [--trials N] [--jobs N] [--seed N] [--json FILE] [--list]

A row is named whole (``N1``) or by how it begins (``N``). Every job has a lab of its own. The exit
status is 1 where a trial failed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from orchestrator import lab as labs
from tests.faults import worker
from tests.faults.suite import ROWS, Result, Row, select


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(
        description="Run rows of the fault suite and print what was counted."
    )
    parser.add_argument("rows", nargs="*", metavar="ROW")
    parser.add_argument("--trials", type=int, help="trials of each row, in place of its own number")
    parser.add_argument("--jobs", type=int, default=2, help="labs side by side")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--json", type=Path, help="write every trial to this file")
    parser.add_argument("--list", action="store_true", help="list the rows and leave")
    options = parser.parse_args()
    chosen = select(options.rows)
    if options.list:
        for row in chosen:
            print(f"{row.name:4} {row.trials:4} x  {row.fault}")
        return 0
    reasons = {row.name: reason for row in chosen if (reason := row.skip())}
    for name, reason in reasons.items():
        print(f"{name} is not run: {reason}")
    chosen = [row for row in chosen if row.name not in reasons]
    print(f"seed {options.seed}, {options.jobs} labs", flush=True)
    results: list[Result] = []
    with suppress(KeyboardInterrupt):  # what was counted until then is printed all the same
        for result in _run(chosen, options.trials, options.jobs, options.seed):
            results.append(result)
    if options.json:
        options.json.write_text(json.dumps([asdict(result) for result in results], indent=1) + "\n")
    print(table(chosen, results))
    return 0 if all(result.passed for result in results) else 1


def _run(chosen: Sequence[Row], trials: int | None, jobs: int, seed: int) -> Iterable[Result]:
    """Yield the result of every trial as it comes, with a line for each failure and each finished
    row.
    """
    open_trials = {row.name: trials or row.trials for row in chosen}
    planned = [
        (row.name, number) for row in chosen for number in range(1, open_trials[row.name] + 1)
    ]
    with _labs(jobs) as (base, pool):
        for future in as_completed(
            [pool.submit(worker.trial, base, name, number, seed) for name, number in planned]
        ):
            result = future.result()
            open_trials[result.row] -= 1
            if not result.passed:
                print(f"FAILED {result.row} trial {result.number}: {result.text}", flush=True)
            if not open_trials[result.row]:
                print(f"{result.row} done", flush=True)
            yield result


@contextmanager
def _labs(jobs: int) -> Iterator[tuple[str, ProcessPoolExecutor]]:
    """Have so many workers, each with a lab of its own in the folder that is returned; nothing of
    it is left afterwards.
    """
    base = Path(tempfile.mkdtemp(prefix="faults-"))
    context = multiprocessing.get_context("spawn")
    try:
        with ProcessPoolExecutor(
            jobs, mp_context=context, initializer=worker.start_lab, initargs=(str(base),)
        ) as pool:
            try:
                yield str(base), pool
            finally:  # an interrupt reaches this process alone where it is sent by number: what is under way ends, no more
                pool.shutdown(cancel_futures=True)
    finally:
        for directory in base.glob("lab-*"):
            labs.down(directory)
        shutil.rmtree(base, ignore_errors=True)


def table(chosen: Sequence[Row], results: Sequence[Result]) -> str:
    """Return a line for each row: trials, passes, worst times in seconds, what was left, what was
    lost.
    """
    lines = [
        f"{'row':4} {'trials':>6} {'passed':>6} {'detect':>7} {'stop':>7} {'left':>5} {'lost':>6}  fault"
    ]
    for row in chosen:
        mine = [result for result in results if result.row == row.name]
        detect = max(
            (result.detected_s for result in mine if result.detected_s is not None), default=None
        )
        stop = max(
            (result.stopped_s for result in mine if result.stopped_s is not None), default=None
        )
        counts = len(mine), sum(result.passed for result in mine)
        sums = sum(result.leftovers for result in mine), sum(result.lost_bytes for result in mine)
        worst = f"{_seconds(detect):>7} {_seconds(stop):>7}"
        lines.append(
            f"{row.name:4} {counts[0]:6} {counts[1]:6} {worst} {sums[0]:5} {sums[1]:6}  {row.fault}"
        )
    return "\n".join(lines)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


if __name__ == "__main__":
    assert ROWS
    sys.exit(main())
