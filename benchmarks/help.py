"""Processor time of immediate answers: `orch --help` and the completion of a command, in units of
the smallest program of Typer.

    python benchmarks/help.py [--rounds 20]

Contenders take turns. The output has medians of processor seconds of a process, which a busy
machine changes less than the time on a clock, and their ratio to a program of Typer with one
command that prints its help.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys

TYPER = """
import typer
app = typer.Typer(rich_markup_mode=None)
app.command("one")(lambda: None)
app.command("other")(lambda: None)
app()
"""
ORCH = "import sys; sys.argv[0] = 'orch'; from orchestrator.cli.process import run; run()"
COMPLETE = {"_ORCH_COMPLETE": "complete_bash"}
CONTENDERS: dict[str, tuple[list[str], dict[str, str]]] = {
    "python -c pass": (["-c", "pass"], {}),
    "typer --help": (["-c", TYPER, "--help"], {}),
    "orch --help": (["-c", ORCH, "--help"], {}),
    "orch --version": (["-c", ORCH, "--version"], {}),
    "orch ben<TAB>": (["-c", ORCH], COMPLETE | {"COMP_WORDS": "orch ben", "COMP_CWORD": "1"}),
    "orch bench --help": (["-c", ORCH, "bench", "--help"], {}),
    "orch bench --st<TAB>": (
        ["-c", ORCH],
        COMPLETE | {"COMP_WORDS": "orch bench --st", "COMP_CWORD": "2"},
    ),
}
UNIT = "typer --help"


def main() -> None:
    """Run the rounds and print a line for each contender."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    taken: dict[str, list[float]] = {name: [] for name in CONTENDERS}
    for _ in range(rounds):
        for name, (words, variables) in CONTENDERS.items():
            taken[name].append(seconds([sys.executable, *words], variables))
    unit = statistics.median(taken[UNIT])
    for name, values in taken.items():
        print(
            f"{name:22} {statistics.median(values):6.3f} s  {statistics.median(values) / unit:5.2f}"
        )


def seconds(argv: list[str], variables: dict[str, str]) -> float:
    """Return the processor seconds of a program; its output is discarded."""
    pid = os.posix_spawn(
        argv[0],
        argv,
        {**os.environ, **variables},
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, _, usage = os.wait4(pid, 0)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
