"""Several people who push to one store at the same time, some of whom are killed, and what must be
true of it then.
"""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.benches import bench
from tests.support.judge import LIMIT_S

__all__ = ["Person", "push_at_once"]


@dataclass(frozen=True, slots=True)
class Person:
    """A project with benches, and how ``orch`` is started in it."""

    project: Path
    start: Callable[..., subprocess.Popen[str]]

    def measure(self, name: str, count: int) -> None:
        """Make benches, as collection leaves them."""
        for number in range(1, count + 1):
            created = f"2026-0{number}-01T08:00:00Z"
            bench(
                self.project / "runs",
                f"{name}{number}",
                created,
                [0.5 * number, 0.51 * number],
                label=name,
            )

    def orch(self, *words: str) -> tuple[int, str, str]:
        """Run a command to its end; return exit status and outputs."""
        process = self.start(*words)
        out, err = process.communicate(timeout=LIMIT_S)
        return process.returncode, out, err


def push_at_once(
    people: Sequence[Person], store: str, chance: random.Random, *, kill: bool
) -> list[str]:
    """Let people with benches push at once and somebody read all the while; push again after a
    kill; return what went wrong.

    Nobody but the killed fails; each reader sees only figures that were measured; in the end the
    store has all benches, each verified, and a list that lacks none.
    """
    known = [_cells(person.orch("history", "--json", "--metric", "all")[1]) for person in people]
    figures = {json.dumps(cell, sort_keys=True) for cells in known for cell in cells}
    reader = people[0]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code, _, err = reader.orch("push", store, "--all")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    push_cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    wrong = [f"the first push ended with {code}: {err}"] if code else []
    pushing = [person.start("push", store, "--all") for person in people[1:]]
    victim = pushing[chance.randrange(len(pushing))] if kill else None
    if victim:
        threading.Thread(target=_kill_at, args=(victim, chance.uniform(0, push_cpu_s))).start()
    while any(process.poll() is None for process in pushing):
        code, out, err = reader.orch("history", "--from", store, "--json", "--metric", "all")
        if code or not {json.dumps(cell, sort_keys=True) for cell in _cells(out)} <= figures:
            wrong.append(f"a reader got {code} {err} {out[:300]}")
    for process in pushing:
        _, err = process.communicate()
        if process.returncode and not (process is victim and process.returncode == -9):
            wrong.append(f"a push ended with {process.returncode}: {err}")
    if victim:
        code, out, err = people[1 + pushing.index(victim)].orch("push", store, "--all")
        if code:
            wrong.append(f"the push again ended with {code}: {err}")
    code, out, err = reader.orch("history", "--from", store, "--json", "--metric", "all")
    if code or {json.dumps(cell, sort_keys=True) for cell in _cells(out)} != figures:
        wrong.append(
            f"in the end history has {len(_cells(out))} of {len(figures)} figures: {code} {err}"
        )
    code, out, err = reader.orch("verify", store)
    if code or out.count("files and tables are as sealed") != sum(
        len(list((person.project / "runs").iterdir())) for person in people
    ):
        wrong.append(f"in the end verify ended with {code}: {out} {err}")
    return wrong


def _kill_at(process: subprocess.Popen[str], cpu_s: float) -> None:
    """Kill a process when it has had so much processor time: however busy the machine is, it is
    then as far as on a quiet one.
    """
    stat, ticks = Path(f"/proc/{process.pid}/stat"), cpu_s * os.sysconf("SC_CLK_TCK")
    while process.poll() is None:
        with suppress(OSError):
            user, system = stat.read_text().rpartition(")")[2].split()[11:13]
            if int(user) + int(system) >= ticks:
                process.kill()
        time.sleep(0.01)


def _cells(text: str) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(text)["cells"] if text else []
    return cells
