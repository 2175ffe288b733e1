"""Mistakes in ``published:`` of a framework folder: each is one sentence with file, line and key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator import yamlfile
from orchestrator.errors import Faults, OrchError
from orchestrator.plan.folders import read_folder
from orchestrator.plan.published_schema import RuleEntry, WindowEntry, published_entry
from orchestrator.plan.schema import json_schema
from tests.support.own_folders import RULE, WHOLE, folder_of

FILE = "framework.yaml"
MISTAKES = [
    mistake
    for mistake in yamlfile.load(
        Path(__file__).parents[1] / "data" / "published_mistakes.yaml"
    ).value
    if mistake["file"] == FILE
]


def faults_of(folder: Path, text: str) -> list[str]:
    with pytest.raises(OrchError) as caught:
        read_folder(folder_of(folder, WHOLE + text))
    assert caught.value.exit_code == 2
    return [
        str(error)
        for error in (caught.value.errors if isinstance(caught.value, Faults) else (caught.value,))
    ]


@pytest.mark.parametrize(
    "mistake", MISTAKES, ids=[f"{mistake['line']}-{mistake['new'].strip()}" for mistake in MISTAKES]
)
def test_a_mistake_in_a_rule_is_said_with_its_file_line_and_key(
    tmp_path: Path, mistake: dict[str, Any]
) -> None:
    assert mistake["old"] in RULE
    (text,) = faults_of(tmp_path / "mlp", RULE.replace(mistake["old"], mistake["new"], 1))
    assert text == f"{tmp_path}/mlp/{FILE}:{mistake['line']}: {mistake['said']}"


def test_thirty_mistakes_and_more_are_in_the_table() -> None:
    assert len({(mistake["old"], mistake["new"]) for mistake in MISTAKES}) >= 30


def test_a_rule_without_a_mistake_is_read(tmp_path: Path) -> None:
    framework = read_folder(folder_of(tmp_path / "mlp", WHOLE + RULE)).framework
    assert framework.published["rules"]["steady"]["window"]["last"] == 40
    assert framework.published["divisor"] == "median/median"


def test_a_folder_that_only_names_a_rule_is_told_to_declare_it(tmp_path: Path) -> None:
    (said,) = faults_of(tmp_path / "mlp", "published: {rule: steady, runs: 5, statistic: median}\n")
    assert said.endswith(
        "framework.yaml:27: published.rules: expected the rules by name, "
        "such as {mine: {title: …, lines: …, window: …, by: …}}, got nothing"
    )


def test_mistakes_of_two_rules_come_together(tmp_path: Path) -> None:
    second = (
        RULE[RULE.index("    steady:") :].replace("steady", "late").replace("last: 40", "last: 5")
    )
    said = faults_of(tmp_path / "mlp", RULE.replace("over: mean", "over: harmonic_mean") + second)
    assert [text.split(": ")[1] for text in said] == [
        "published.rules.steady.line_rounding",
        "published.rules.late.window.last",
    ]


def test_the_json_schema_has_the_keys_of_a_rule() -> None:
    defs = json_schema()["$defs"]
    assert set(defs["RuleEntry"]["properties"]) == set(RuleEntry.model_fields)
    assert set(defs["WindowEntry"]["properties"]) == set(WindowEntry.model_fields)
    measures = ["timestamp", "elapsed_s", "step_time_s", "samples_per_s"]
    assert defs["RuleEntry"]["properties"]["by"]["anyOf"][0]["enum"] == measures


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (("published",), "PublishedEntry"),
        (("published", "rules"), "PublishedEntry"),
        (("published", "rules", "mine"), "RuleEntry"),
        (("published", "rules", "mine", "units"), "RuleEntry"),
        (("published", "rules", "window"), "RuleEntry"),
        (("published", "rules", "mine", "window"), "WindowEntry"),
        (("published", "rules", "mine", "rounding"), "RoundingEntry"),
    ],
)
def test_each_mapping_of_published_has_its_model(path: tuple[str, ...], name: str) -> None:
    assert published_entry(path).__name__ == name
