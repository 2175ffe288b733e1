"""Several people and one store: in a directory, and behind a node's ssh server."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.store.index import read_index
from tests.faults.suite import Trial, row
from tests.support.pushers import Person, push_at_once


@row("S7", "two people push to one directory while a third reads it; one is killed", limit_s=180, short=False)
def a_directory(trial: Trial) -> None:
    team = trial.scratch / "team"
    _pushed(trial, str(team), team)


@row("S8", "two people push to one folder behind an ssh server while a third reads it; one is killed", limit_s=240)
def behind_ssh(trial: Trial) -> None:
    node = trial.random.choice(trial.lab.nodes)
    name = f"team-{trial.random.getrandbits(32):08x}"
    _pushed(trial, f"{node.name}:{name}", node.home / name)


def _pushed(trial: Trial, store: str, folder: Path) -> None:
    people = []
    for name in ("ada", "bob", "eve"):
        controller = trial.rival(name)
        people.append(Person(controller.project, controller.start))
        people[-1].measure(name, 3)
    wrong = push_at_once(people, store, trial.random, kill=True)
    assert not wrong, "; ".join(wrong)
    entries, broken = read_index(folder / "index.sqlite", store)
    assert len(entries) == 9 and not broken, (len(entries), broken)
    assert sorted(os.listdir(folder / "archives")) == sorted(f"{seal}.tar" for seal in entries)
