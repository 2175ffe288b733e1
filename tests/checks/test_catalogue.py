"""The list of all checks: it says of each what its code does, and the page says the same."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import orchestrator.checks
from orchestrator.checks.catalogue import CATALOGUE
from tests.support.check_tables import assert_table
from tests.support.cli_project import Project

PAGE = Path(__file__).parents[2] / "docs" / "preflight.md"
IDS = (
    "reach runner framework env vars held container leftovers disk shared limits shm login clock"
    " port data program slots gpus idle cuda ecc xid clocks modes pcie fabric links interface route"
    " hostname infiniband gdr expect load alike"
)
"""Records and scripts have these; new ones are added, none is renamed or removed."""


def test_ids_stay_as_they_are_and_each_is_there_once() -> None:
    names = [entry.name for entry in CATALOGUE]
    assert set(IDS.split()) <= set(names) and len(names) == len(set(names))


def test_the_list_says_of_each_check_how_its_code_judges() -> None:
    """A check that can fail has something that it must, one that can warn what it should."""
    told = {
        (call.func.id, call.args[1].value)
        for path in Path(orchestrator.checks.__file__).parent.glob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("warning", "failure")
        and isinstance(call.args[1], ast.Constant)
    }
    listed = {("failure", entry.name) for entry in CATALOGUE if entry.must}
    listed |= {("warning", entry.name) for entry in CATALOGUE if entry.should}
    # `reach` raises, the framework's check has its name, and a container left says what it is.
    of_other_forms = {("failure", "reach"), ("failure", "framework"), ("warning", "leftovers")}
    assert listed - told == of_other_forms
    assert told - listed == set()
    assert all(entry.cure for entry in CATALOGUE if entry.must or entry.should)


def test_the_table_of_the_page_is_that_of_the_list() -> None:
    assert_table(PAGE, CATALOGUE)


def test_checks_are_listed_without_any_host(tmp_path: Path) -> None:
    project = Project(tmp_path)
    done = project.orch("check", "--list", "--json")
    assert done.returncode == 0, done.stderr
    by_id = {entry["id"]: entry for entry in json.loads(done.stdout)}
    assert by_id["disk"]["severity"] == "failure or warning"
    assert (
        by_id["runner"]["severity"] == "information" and by_id["shm"]["should"] == "1 GiB or more"
    )
    table = project.orch("check", "--list", "--only", "clock").stdout
    assert "warns unless: less than 5 s apart" in table and "memlock" not in table
