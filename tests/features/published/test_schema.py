"""The format of published.json: mistakes are said with file, line and key, and what is optional has
its default.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from orchestrator import yamlfile
from orchestrator.cli.main import program
from orchestrator.errors import ConfigError, DataError, Faults, OrchError
from orchestrator.features.published.folders import read_tables
from orchestrator.features.published.schema import PublishedTables, json_schema
from orchestrator.features.published.tables import recompute
from orchestrator.plan.folders import frameworks
from tests.support.own_folders import TABLES

FILE = "published.json"
MISTAKES = [
    mistake
    for mistake in yamlfile.load(
        Path(__file__).parents[2] / "data" / "published_mistakes.yaml"
    ).value
    if mistake["file"] == FILE
]


@pytest.mark.parametrize(
    "mistake", MISTAKES, ids=[f"{mistake['line']}-{mistake['new'].strip()}" for mistake in MISTAKES]
)
def test_a_mistake_in_a_table_is_said_with_its_file_line_and_key(
    tmp_path: Path, mistake: dict[str, Any]
) -> None:
    assert mistake["old"] in TABLES
    (tmp_path / FILE).write_text(TABLES.replace(mistake["old"], mistake["new"], 1))
    with pytest.raises(OrchError) as caught:
        read_tables(tmp_path)
    assert caught.value.exit_code == 2
    (error,) = caught.value.errors if isinstance(caught.value, Faults) else (caught.value,)
    line = f":{mistake['line']}" if mistake["line"] else ""
    assert str(error) == f"{tmp_path}/{FILE}{line}: {mistake['said']}"


def test_twenty_mistakes_and_more_are_in_the_table() -> None:
    assert len({(mistake["old"], mistake["new"]) for mistake in MISTAKES}) >= 20


def test_mistakes_of_a_file_come_together_in_the_order_of_its_lines(tmp_path: Path) -> None:
    text = (
        TABLES.replace('"source"', '"sources"')
        .replace("590.2", '"590.2"')
        .replace('"dtype"', '"type"')
    )
    (tmp_path / FILE).write_text(text)
    with pytest.raises(Faults) as caught:
        read_tables(tmp_path)
    places = [re.sub(r".*json:", "", error.where) for error in caught.value.errors]
    assert places == [
        "1: source",
        "3: sources",
        "5: tables.mlp_b256.dtype",
        "7: tables.mlp_b256.type",
        "15: tables.mlp_b256.cases.1n2g.speed",
    ]


@pytest.mark.parametrize(
    ("content", "line"), [("[]", 1), ("7", 1), ('"text"', 1), ("null", 1), ('\n\n["schema"]', 3)]
)
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, content: str, line: int) -> None:
    (tmp_path / FILE).write_text(content)
    with pytest.raises(
        Faults, match=f"{FILE}:{line}: expected a mapping with schema, source and tables, got"
    ):
        read_tables(tmp_path)


def test_a_missing_and_an_empty_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a file, found none"):
        read_tables(tmp_path / "paper.json")
    (tmp_path / "paper.json").write_text("")
    with pytest.raises(ConfigError, match="expected some content, got an empty file"):
        read_tables(tmp_path / "paper.json")


def test_lines_are_named_whatever_the_file_is_indented_with(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(TABLES.replace("  ", "\t").replace("590.2", '"590.2"'))
    with pytest.raises(
        Faults, match=f"{FILE}:15: tables.mlp_b256.cases.1n2g.speed: expected a number above 0"
    ):
        read_tables(tmp_path)
    (tmp_path / FILE).write_text(TABLES.replace("mlp_b256", "m" * 2000).replace("590.2", '"590.2"'))
    with pytest.raises(
        Faults, match=f"{FILE}: tables.m{{60}}….cases.1n2g.speed: expected a number above 0"
    ):
        read_tables(tmp_path)


def test_what_is_optional_has_its_default(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(TABLES)
    file = read_tables(tmp_path)
    (table,) = file.tables
    assert (file.framework, file.like, file.images) == (tmp_path.name, (), 0)
    assert (table.title, table.loader, table.version, table.hardware) == (
        "mlp_b256",
        *["not stated"] * 3,
    )
    assert (table.baseline, table.places) == (
        "1n1g",
        {"speed": 1, "average": 2, "median": 2, "speedup": 2},
    )
    assert table.cells[0].runs == ((1, 301.4), (2, 303.9), (3, 304.0))
    found = recompute(table)
    assert [str(check) for check in found.checks if not check.agrees] == []
    assert len(found.checks) == 5


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("303.1", "303.2", "1n1g speed 303.2, recomputed 303.1000"),
        ('{"speed": 1}', "{}", ""),
        ("590.2", "590.1", "1n2g speed 590.1, recomputed 590.2000"),
        ('"mean/mean"', '"max/max"', ""),
        ('"statistic": "mean"', '"statistic": "max"', "1n1g speed 303.1, recomputed 304.0000"),
        ("1.95", "1.94", "1n2g speedup 1.94, recomputed 1.9472"),
        ('"runs": 3,', '"runs": 4,', "1n1g has 3 runs, 4 claimed"),
    ],
)
def test_statistic_divisor_and_places_are_what_the_table_says(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    (tmp_path / FILE).write_text(TABLES.replace(old, new, 1))
    assert ", ".join(recompute(read_tables(tmp_path).tables[0]).undeclared[:1]) == said


def test_speedups_may_be_relative_to_another_case(tmp_path: Path) -> None:
    text = TABLES.replace('"runs": 3,', '"runs": 3, "baseline": "1n2g",').replace(
        '"speedup": 1.95', '"speedup": 1.0'
    )
    (tmp_path / FILE).write_text(text.replace('"speedup": 1.0', '"speedup": 0.51', 1))
    found = recompute(read_tables(tmp_path).tables[0])
    assert found.undeclared == () and found.ours["1n2g"] == 1.0


def published(*words: str) -> Any:
    return CliRunner().invoke(program(), ["published", *words], env={"COLUMNS": "160"})


def test_the_command_reads_a_folder_and_a_file_of_any_name(tmp_path: Path) -> None:
    for name in (FILE, "paper.json"):
        (tmp_path / name).write_text(TABLES)
    by_path = [
        published(str(path)) for path in (tmp_path, tmp_path / FILE, tmp_path / "paper.json")
    ]
    assert [done.exit_code for done in by_path] == [0, 0, 0]
    assert by_path[0].output == by_path[1].output == by_path[2].output
    assert "a paper, table 2\nprinted = recomputed" in by_path[0].output
    assert "1n2g     3  590.20  591.10 = 591.10  1.95 = 1.95  1.95\n" in by_path[0].output
    (document,) = json.loads(published(str(tmp_path / "paper.json"), "--json").output)
    assert document["framework"] == "paper" and document["tables"][0]["places"]["speed"] == 1


def test_the_command_says_where_a_difference_is_and_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "paper.json").write_text(TABLES.replace("1.95", "1.59"))
    done = published(str(tmp_path / "paper.json"))
    assert isinstance(done.exception, DataError)
    assert str(done.exception) == (
        f"{tmp_path}/paper.json: expected only the declared differences, found mlp_b256: 1n2g speedup 1.59, recomputed 1.9472. "
        "correct the number, or copy the difference as printed here to known: of the table"
    )
    known = TABLES.replace("1.95", "1.59").replace(
        '"runs": 3,', '"runs": 3, "known": ["1n2g speedup 1.59, recomputed 1.9472"],'
    )
    (tmp_path / "paper.json").write_text(known)
    assert published(str(tmp_path / "paper.json")).exit_code == 0


def test_a_path_without_tables_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        done = published(str(path))
        assert isinstance(done.exception, ConfigError)
        assert (
            str(done.exception)
            == f"{path}: expected a folder with published.json, or such a file, found none"
        )


def test_the_json_schema_has_every_key_and_its_meaning() -> None:
    schema = json_schema()
    assert set(schema["properties"]) == {
        field.alias or name for name, field in PublishedTables.model_fields.items()
    }
    for model in (schema, *schema["$defs"].values()):
        assert all(field["description"] for field in model["properties"].values())
        assert model["additionalProperties"] is False
    done = CliRunner().invoke(program(), ["schema", "published"])
    assert done.exit_code == 0 and json.loads(done.output)["properties"] == schema["properties"]


def test_the_schema_of_published_tables_accepts_every_shipped_one_and_refuses_mistakes() -> None:
    printed = json.loads(CliRunner().invoke(program(), ["schema", "published"]).stdout)
    Draft202012Validator.check_schema(printed)
    schema = Draft202012Validator(printed)
    paths = [
        path / "published.json"
        for path in frameworks().values()
        if (path / "published.json").exists()
    ]
    assert len(paths) >= 8
    for table in (*(path.read_text("utf-8") for path in paths), TABLES):
        schema.validate(json.loads(table))
    for old, new in (
        ('"schema": 1', '"schema": "1"'),
        ('"statistic": "mean"', '"statistic": "average"'),
        ('"1n2g"', '"1x2"'),
        ('"runs": 3', '"run": 3'),
        ('"model": "mlp",', ""),
    ):
        assert not schema.is_valid(json.loads(TABLES.replace(old, new, 1))), new
