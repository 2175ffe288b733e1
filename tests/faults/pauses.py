"""Run the simulated trainer with pauses for hours, and print how often that was taken for a hang.

    python -m tests.faults.pauses HOURS [--jobs N]

Nothing is broken: ranks pause as checkpoints, evaluations, compilations and late samples do, for so
many hours of runs together, ``--jobs`` of them side by side on nodes as those of `hangs`. Every
stop is a false alarm.
"""

from __future__ import annotations

import argparse
import json
import re
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.faults.hangs import ACCUSING, World

PAUSES = (
    ("reports nothing", "INJECT_PAUSES='60 5 45' INJECT_SILENT=1"),
    ("reports its steps", "INJECT_PAUSES='30 2 8'"),
    ("reports its pauses", "INJECT_PAUSES='60 5 45' INJECT_DECLARED=1"),
)
"""Kinds of programs; how often they pause, and for how long at least and at most, in seconds."""


def pausing(number: int, hours: float) -> dict[str, Any]:
    """Run with pauses for so long; return what was said, of it what names a rank that did not
    pause, and why it was stopped.
    """
    kind, given = PAUSES[number % len(PAUSES)]
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pause-", ignore_cleanup_errors=True) as name:
        paused = Path(name) / "paused"
        paused.touch()
        world = World(
            Path(name), (2, 4)[number // len(PAUSES) % 2], f"{given} INJECT_PAUSED={paused}"
        )
        reason = ""
        try:
            world.begin()
            while not reason and not world.failures and time.monotonic() - begun < hours * 3600:
                reason = world.turn()
            failures, steps = [record for _, record in world.failures[:1]], world.step()
            world.stop()
        finally:
            world.close()
        pauses = [
            (int(rank), float(at), word)
            for rank, at, word in map(str.split, paused.read_text().splitlines())
        ]
    took = (time.monotonic() - begun) / 3600
    return {
        "kind": kind,
        "hours": took,
        "steps": steps,
        "pauses": sum(word != "over" for *_, word in pauses),
        "reason": reason,
        "failures": failures if not reason else [],
        "said": world.said,
        "wrong": [
            words
            for words, at in zip(world.said, world.said_at, strict=True)
            if accuses(words, at, pauses)
        ],
    }


def accuses(words: str, at: float, pauses: Sequence[tuple[int, float, str]]) -> bool:
    """Return whether a suspicion names a rank that had no pause then. ``pauses``: rank, time, and
    kind or ``over``.
    """
    named = re.search(ACCUSING, words)
    last = {rank: word for rank, time_s, word in pauses if time_s <= at}
    return any(
        last.get(int(rank), "over") == "over"
        for rank in re.findall(r"\d+", named[1] if named else "")
    )


def pauses_line(kind: str, told: Sequence[dict[str, Any]]) -> str:
    """Return how often runs of one kind were suspected and stopped."""
    hours, pauses = sum(run["hours"] for run in told), sum(run["pauses"] for run in told)
    suspicions, wrong = (sum(len(run[key]) for run in told) for key in ("said", "wrong"))
    stops, failures = (sum(bool(run[key]) for run in told) for key in ("reason", "failures"))
    ends = f"{stops} of {len(told)} runs stopped, {failures} failed"
    return f"{kind}: {hours:.2f} hours, {pauses} pauses, {suspicions} suspicions, {wrong} of a rank that did not pause; {ends}"


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description="Run with pauses and count false alarms.")
    parser.add_argument("hours", type=float, metavar="HOURS", help="of all runs together")
    parser.add_argument("--jobs", type=int, default=4, help="runs side by side")
    args = parser.parse_args()
    with ThreadPoolExecutor(args.jobs) as pool:
        told = list(
            pool.map(lambda number: pausing(number, args.hours / args.jobs), range(args.jobs))
        )
    for run in told:
        print(json.dumps(run))
    for kind, _ in PAUSES:
        print(pauses_line(kind, [run for run in told if run["kind"] == kind]))


if __name__ == "__main__":
    main()
