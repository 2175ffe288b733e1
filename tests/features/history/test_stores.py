"""The history of a store: what its archives say."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from orchestrator.api.sealing import contents
from orchestrator.errors import Faults
from orchestrator.record.archive import verify
from orchestrator.record.archive_record import RECORD
from orchestrator.record.rundir import BenchDir
from tests.record.archive.packing import packed
from tests.support.acceptances import STEADY, acceptance
from tests.support.benches import bench
from tests.support.features import needs
from tests.support.stores import archive_of, at, files, orch, refusal, refuse_readers

pytestmark = needs("store")


def test_history_of_a_store_is_that_of_the_projects_it_came_from(project: Path, team: Path) -> None:
    mine = json.loads(orch("history", "--json", "--metric", "all").stdout)
    ours = json.loads(orch("history", "--from", str(team), "--json", "--metric", "all").stdout)
    assert ours["cells"] == mine["cells"] and [cell["bench_id"] for cell in ours["cells"]] == [
        "a",
        "b",
    ]
    assert ours["seals"] == {
        name: verify(archive_of(team, name), contents).seal for name in ("a", "b")
    }
    assert orch("history", "--from", str(team)).stdout == orch("history").stdout


def test_an_acceptance_goes_in_and_out_and_its_stages_are_in_the_history(
    project: Path, team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = acceptance(project / "runs", {1: tuple(0.8 * value for value in STEADY)}, nodes=3)
    assert orch("push", str(team), made.path.name).exit_code == 0
    at(monkeypatch, project.parent / "theirs")
    said = orch("pull", str(team), made.path.name)
    assert said.exit_code == 0, said.exception
    assert files(project.parent / "theirs/runs" / made.path.name).keys() >= files(
        made.path
    ).keys() - {"certificate.tar"}
    shown = json.loads(orch("history", "--from", str(team), "--json", "--metric", "all").stdout)
    (stage,) = {attempt.bench_id for attempt in made.record().attempts}
    assert stage in {cell["bench_id"] for cell in shown["cells"]}
    # The history names stages, and so does who pulls: what comes is the acceptance.
    at(monkeypatch, project.parent / "others")
    assert orch("pull", str(team), stage).stdout.startswith(f"{made.path.name}: verified, in ")
    assert orch("summarize", stage).exit_code == 0


def test_the_history_of_a_store_has_the_acceptances_of_a_project_as_it_has_them_itself(
    project: Path, team: Path
) -> None:
    made = acceptance(project / "runs", {1: tuple(0.8 * value for value in STEADY)}, nodes=3)
    assert orch("push", str(team), made.path.name).exit_code == 0
    here, there = (
        json.loads(orch("history", *words, "--json").stdout)
        for words in ((), ("--from", str(team)))
    )
    (past,) = here["acceptances"]
    assert there["acceptances"] == [past] and made.path.name in there["seals"]
    assert (past["acceptance_id"], past["suite"], past["verdict"]) == (
        made.path.name,
        "small",
        "fail",
    )
    assert past["hosts"] == ["node1", "node2", "node3"] and [
        name for name, _ in past["failed"]
    ] == ["node2"]
    text = orch("history", "--from", str(team)).stdout
    assert (
        "acceptances of node[1-3]" in text and "fail       small" in text and "    node2: " in text
    )
    assert (
        "acceptances of" not in orch("history", "--from", str(team), "--model", "resnet50").stdout
    )
    assert (
        "acceptances of" not in orch("history", "--from", str(team), "--since", "2027-01-01").stdout
    )


def test_a_stranger_under_the_name_of_a_seal_gets_into_no_list(project: Path, team: Path) -> None:
    """Put there by hand: another bench, what is no archive, and one that was cut."""
    archives = team / "archives"
    whole = archive_of(team, "a").read_bytes()
    for digit, data in (("0", whole), ("1", b"no archive"), ("2", whole[:20000]), ("3", b"")):
        (archives / f"{digit * 64}.tar").write_bytes(data)
    said = orch("history", "--from", str(team))
    assert (
        isinstance(said.exception, Faults)
        and len(said.exception.errors) == 4
        and said.exception.exit_code == 4
    )
    assert said.stdout == orch("history").stdout
    assert orch("push", str(team), "b").exit_code == 0


@pytest.mark.parametrize(
    "changes",
    [{"spec": "no JSON"}, {"spec": "[]"}, {"spec": '{"key": {"a": []}}'}, {"value": "fast"}, {"value": 10**400},
     {"n": None}, {"unit": 7}, {"interval": {"low": 1.0, "high": 2.0}}, {"bench_id": "another"}, {"model": "\ud800"}],
)  # fmt: skip
def test_nonsense_under_a_true_seal_is_damage(
    project: Path, team: Path, changes: dict[str, Any]
) -> None:
    """What somebody seals who knows how."""
    record: dict[str, Any] = {
        "schema": 2,
        "orch": "0.1.0",
        **contents(BenchDir(project / "runs/a")),
    }
    record["history"]["benches"]["a"]["cells"][0] |= changes
    own = json.dumps(record).encode()
    path = packed(project / "odd.tar", {RECORD: own})
    seal = hashlib.sha256(f"{hashlib.sha256(own).hexdigest()}  {RECORD}\n".encode()).hexdigest()
    path.rename(team / f"archives/{seal}.tar")
    refused = refusal("history", "--from", str(team))
    field = "" if "\ud800" in changes.values() else "benches.a"
    assert f"{seal}.tar: history: {field}" in refused


def test_a_history_with_signers_has_what_one_of_them_has_signed(project: Path, team: Path) -> None:
    for name in ("ada", "eve"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name]
        subprocess.run(argv, check=True, stdin=subprocess.DEVNULL)
    Path("signers").write_text(f"ada@example.org {Path('ada.pub').read_text()}")
    assert orch("push", str(team), "a", "--sign", "ada").exit_code == 0
    assert orch("push", str(team), "b", "--sign", "eve").exit_code == 0
    signed = ("history", "--from", str(team), "--signers")
    said = orch(*signed, "signers", "--json")
    assert [cell["bench_id"] for cell in json.loads(said.stdout)["cells"]] == ["a"]
    assert json.loads(said.stdout)["seals"].keys() == {"a"}
    assert "expected a signature" in str(said.exception)
    assert "found none" in str(orch(*signed, "missing").exception)
    assert "--signers: expected --from" in str(orch("history", "--signers", "signers").exception)


def test_of_two_archives_of_a_bench_that_with_more_runs_counts(project: Path, team: Path) -> None:
    bench(
        project.parent / "later/runs",
        "a",
        "2026-09-01T08:00:00Z",
        [0.5, 0.5, 0.51, 0.5],
        label="nightly",
    )
    assert orch("push", str(team), str(project.parent / "later/runs/a")).exit_code == 0
    cells = json.loads(orch("history", "--from", str(team), "--json").stdout)["cells"]
    assert [(cell["bench_id"], cell["n"]) for cell in cells] == [("a", 4), ("b", 3)]
    said = orch("pull", str(team), "a", "-o", "out")
    assert (
        "2 archives are 'a'" in str(said.exception)
        and len(json.loads(orch("pull", str(team), "--json").stdout)["archives"]) == 3
    )


def test_an_archive_of_before_there_were_stores_goes_in_too(project: Path, team: Path) -> None:
    bench(project.parent / "old/runs", "b1", "2026-01-01T08:00:00Z", [0.5, 0.5])
    folder = project.parent / "old/runs/b1"
    record = {"schema": 1, "orch": "0.1.0", "tables": contents(BenchDir(folder))["tables"]}
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    packed(
        project / "old.tar",
        {
            RECORD: json.dumps(record).encode(),
            **{name: (folder / name).read_bytes() for name in names},
        },
    )
    assert orch("push", str(team), "old.tar").exit_code == 0
    cells = json.loads(orch("history", "--from", str(team), "--json").stdout)["cells"]
    assert [cell["bench_id"] for cell in cells] == ["b1", "a", "b"]


def test_a_bench_that_was_pulled_has_the_history_of_where_it_was_measured(
    project: Path, team: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = orch("history").stdout
    at(monkeypatch, project.parent / "theirs")
    assert orch("pull", str(team), "nightly", "b").exit_code == 0
    assert orch("history").stdout == mine


def test_a_folder_that_is_no_store_has_no_history(project: Path) -> None:
    (project / "docs").mkdir()
    (project / "docs/mine.txt").write_text("x")
    for place in ("docs", "docs/mine.txt"):
        assert "expected a store, found none" in str(orch("history", "--from", place).exception)
    said = orch("history", "--from", "")
    assert "--from: expected a value, got an empty text" in str(said.exception)


def test_a_store_that_may_not_be_read_has_no_history_and_no_damage(
    project: Path, team: Path
) -> None:
    said = refuse_readers(team, "history", "--from", str(team))
    assert "cannot be read: Permission denied" in said


@pytest.mark.parametrize("name", ["orch-store.json", "archive"])
def test_nothing_but_a_regular_file_is_opened(project: Path, team: Path, name: str) -> None:
    path = archive_of(team, "a") if name == "archive" else team / name
    path.unlink()
    os.mkfifo(path)
    said = orch("history", "--from", str(team))
    if name == "orch-store.json":
        assert f"{path}: expected a regular file, found something else" in str(said.exception)
