"""Several people and one store: in a directory, and behind a node's ssh server."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.faults.suite import Trial, row
from tests.support.pushers import Person, push_at_once
from tests.support.second_user import missing, second_user


@row(
    "S7",
    "two people push to one directory while a third reads it; one is killed",
    limit_s=180,
    short=False,
)
def a_directory(trial: Trial) -> None:
    team = trial.scratch / "team"
    _pushed(trial, str(team), team)


@row(
    "S8",
    "two people push to one folder behind an ssh server while a third reads it; one is killed",
    limit_s=240,
)
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
    names = json.loads((folder / "archives.json").read_text())
    assert len(names) == 9 and sorted(os.listdir(folder / "archives")) == sorted(names), names


PLANTED = {
    "a pipe": "mkfifo {path}",
    "a link": "ln -s /dev/zero {path}",
    "a link to a secret": "ln -s /etc/shadow {path}",
    "a folder": "mkdir {path}",
    "more than a disk has": "truncate -s 4T {path}",
    "garbage": "head -c 5000 /dev/urandom > {path}",
}


@row(
    "S9",
    "another user puts something else in the place of a store's files",
    limit_s=240,
    short=False,
    skip=missing,
)
def planted_in_a_store(trial: Trial) -> None:
    controller = trial.rival("ada")
    name = "ada1"
    Person(controller.project, controller.start).measure("ada", 1)
    base = Path(tempfile.mkdtemp(prefix="store-"))  # a place that everybody can reach
    team = base / "team"
    assert controller.orch("push", str(team), name).code == 0
    (archive,) = (team / "archives").glob("*.tar")
    for folder in (base, team, team / "archives"):
        folder.chmod(0o777)
    names = (
        "orch-store.json",
        "archives.json",
        f"archives/{archive.name}.sig",
        f"archives/{'0' * 64}.tar",
    )
    path = team / trial.random.choice(names)
    kind = trial.random.choice(list(PLANTED))
    with second_user() as other:
        script = f"rm -rf {path}; {PLANTED[kind].format(path=path)}"
        subprocess.run(
            ["setpriv", f"--reuid={other.number}", "--clear-groups", "sh", "-c", script], check=True
        )
        for words in (("pull",), ("history", "--from"), ("verify",), ("push",)):
            done = controller.orch(words[0], *words[1:], str(team), timeout_s=120)
            assert "Traceback" not in done.err + done.out and done.code in (0, 2, 3, 4), (
                kind,
                path.name,
                words,
                done,
            )
        if path.name != "orch-store.json":
            pulled = controller.orch("pull", str(team), name, "-o", str(trial.scratch / "out"))
            assert pulled.code == 0, (kind, path.name, pulled)
        shutil.rmtree(base)


@row(
    "S10",
    "two people sign one archive, and another user adds what is no signature",
    limit_s=240,
    short=False,
    skip=missing,
)
def signed_by_two(trial: Trial) -> None:
    controller = trial.rival("ada")
    name = "ada1"
    Person(controller.project, controller.start).measure("ada", 1)
    base = Path(tempfile.mkdtemp(prefix="store-"))  # a place that everybody can reach
    team = base / "team"
    people = ["ada", "bob"]
    trial.random.shuffle(people)
    for one in people:
        key = trial.scratch / f"key-{one}"
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
        (trial.scratch / f"{one}.signers").write_text(f"{one} {Path(f'{key}.pub').read_text()}")
        assert controller.orch("push", str(team), name, "--sign", str(key)).code == 0
    (archive,) = (team / "archives").glob("*.tar")
    for folder in (base, team, team / "archives"):
        folder.chmod(0o777)
    garbage = f"head -c 300 /dev/urandom > {archive}.{trial.random.getrandbits(64):016x}.sig"
    with second_user() as other:
        subprocess.run(
            ["setpriv", f"--reuid={other.number}", "--clear-groups", "sh", "-c", garbage],
            check=True,
        )
        for one in people:
            signers = ("--signers", str(trial.scratch / f"{one}.signers"))
            pulled = controller.orch(
                "pull", str(team), name, "-o", str(trial.scratch / f"out-{one}"), *signers
            )
            assert pulled.code == 0 and f"signed by {one}" in pulled.out, pulled
            (listed,) = controller.orch("pull", str(team), "--json", *signers).json["archives"]
            assert listed["signed"] == f"verified: {one}", listed
        shutil.rmtree(base)
