"""Published tables: every printed number follows from the printed runs, or is reported as one that
does not.
"""

from __future__ import annotations

import doctest
import json
import random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from orchestrator.cli.main import program
from orchestrator.errors import ConfigError, DataError, Faults
from orchestrator.features.published.folders import open_published, read_published_files
from orchestrator.features.published.rules import rule_of
from orchestrator.features.published.schema import parse
from orchestrator.features.published.tables import PublishedTable, agrees, recompute, speedups
from orchestrator.plan.folders import frameworks, open_framework
from orchestrator.results.numbers.throughput import mean, median, round_like_numpy
from tests.support.rendering import opened

FILES = read_published_files()
TABLES = {table.name: table for file in FILES.values() for table in file.tables}
PRINTED = json.loads(
    (Path(__file__).parents[2] / "data" / "dlperf_printed.json").read_text(encoding="utf-8")
)["blocks"]
BLOCKS = [pytest.param(block["cases"], id=f"{block['page']}") for block in PRINTED]


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_published_table_follows_from_what_it_prints(table: PublishedTable) -> None:
    found = recompute(table)
    assert not found.undeclared and not found.unseen
    assert all(check.agrees for check in found.checks)
    printed = [
        value
        for cell in table.cells
        for value in (cell.speedup, cell.average, cell.median)
        if value is not None
    ]
    printed += [cell.speed for cell in table.cells if cell.runs]
    assert len(found.checks) == len(printed)


def test_there_are_39_tables_and_so_many_numbers() -> None:
    checks = [check for table in TABLES.values() for check in recompute(table).checks]
    assert len(TABLES) == 39
    assert sum(len(table.cells) for table in TABLES.values()) == 139
    assert Counter(check.what for check in checks) == {
        "speedup": 53,
        "speed": 17,
        "average": 17,
        "median": 11,
    }


def test_the_tables_were_rounded_as_we_round_but_for_nothing() -> None:
    checks = [check for table in TABLES.values() for check in recompute(table).checks]
    inexact = [
        str(check) for check in checks if round_like_numpy(check.recomputed) != check.printed
    ]
    assert inexact == []


@pytest.mark.parametrize("cases", BLOCKS)
def test_every_block_that_the_repository_prints_is_reproduced(cases: dict[str, Any]) -> None:
    runs = {case: [speed for _, speed in printed["runs"]] for case, printed in cases.items()}
    faster = speedups(runs, "median/median")
    for case, printed in cases.items():
        places = 4 if len(str(printed["average"]).partition(".")[2]) > 2 else 2
        assert round_like_numpy(mean(runs[case]), places) == printed["average"]
        assert agrees(printed["median"], median(runs[case]))
        assert round_like_numpy(faster[case]) == printed["speedup"]


def test_113_averages_and_107_speedups_over_medians_are_reproduced() -> None:
    in_repository = sum(len(block["cases"]) for block in PRINTED)
    checks = [(table, check) for table in TABLES.values() for check in recompute(table).checks]
    averages = sum(check.what == "average" for _, check in checks)
    over_medians = sum(
        check.what == "speedup" and table.divisor == "median/median" for table, check in checks
    )
    assert (in_repository, averages, over_medians) == (96, 17, 11)
    assert in_repository + averages == 113 and in_repository + over_medians == 107


def test_the_latch_of_source_004_gives_its_printed_column_and_only_in_its_order() -> None:
    table = TABLES["paddle_rn50_fp32_b128"]
    runs = {cell.case: cell.speeds for cell in table.cells}
    printed = {"4n8g": 26.55, "1n8g": 7.47, "1n4g": 3.87, "1n1g": 1.0, "1n2g": 1.8, "2n8g": 13.88}
    assert {
        case: round_like_numpy(ratio)
        for case, ratio in speedups(runs, "mean/latch", table.order).items()
    } == printed
    baseline_first = speedups(
        runs, "mean/latch", ("1n1g", *(case for case in table.order if case != "1n1g"))
    )
    assert round_like_numpy(baseline_first["4n8g"]) == 26.44


@pytest.mark.parametrize("seed", range(5))
def test_our_own_rule_gives_the_same_speedups_in_any_order(seed: int) -> None:
    cells = list(TABLES["paddle_rn50_fp32_b128"].cells)
    order = random.Random(seed)
    order.shuffle(cells)
    runs = {cell.case: order.sample(cell.speeds, len(cell.speeds)) for cell in cells}
    expected = {"4n8g": 26.51, "2n8g": 13.88, "1n8g": 7.44, "1n4g": 3.86, "1n2g": 1.80, "1n1g": 1.0}
    assert {
        case: round_like_numpy(ratio) for case, ratio in speedups(runs, "median/median").items()
    } == expected


def test_source_002_has_ten_runs_of_4n8g_and_that_is_known() -> None:
    found = recompute(TABLES["pytorch_rn50_dali_j8"])
    assert found.odd == ("4n8g has 10 runs, 5 claimed",)
    median_check, speedup_check = found.of("4n8g", "median"), found.of("4n8g", "speedup")
    assert median_check and speedup_check
    assert (
        round_like_numpy(median_check.recomputed),
        round_like_numpy(speedup_check.recomputed),
    ) == (
        8816.70,
        24.88,
    )
    assert speedup_check.recomputed == pytest.approx(24.87501, abs=5e-6)


def test_a_changed_digit_is_found_and_a_cured_fault_too() -> None:
    table = TABLES["tf2_rn50_fp32_b128"]
    wrong = replace(table, cells=(replace(table.cells[0], average=321.88), *table.cells[1:]))
    assert recompute(wrong).undeclared == ("1n1g average 321.88, recomputed 321.8700",)
    assert recompute(replace(table, known=("4n8g speedup 3, recomputed 4",))).unseen == (
        "4n8g speedup 3, recomputed 4",
    )


def test_without_a_baseline_there_is_no_speedup_rather_than_one() -> None:
    assert speedups({"2n8g": [4.0], "4n8g": [8.0]}, "median/median") == {}
    assert speedups({"2n8g": [4.0]}, "mean/latch", ("2n8g",)) == {}


def test_every_folder_with_published_tables_names_its_rule() -> None:
    named = {name: opened(name).framework for name, file in FILES.items() if file.tables}
    assert {name: framework.published["rule"] for name, framework in named.items()} == {
        "fleetx": "fleetx_20_120",
        "oneflow": "oneflow_20_120",
        "paddle_models": "paddle_lines_20_119",
        "pytorch_examples": "pytorch_lines_drop20_take100",
        "tensorflow_official": "tf_timehistory_1_6",
        "tensorpack": "tensorpack_epochs",
        "tf_cnn_benchmarks": "tf_cnn_total",
    }
    assert {name: rule_of(framework).name for name, framework in named.items()} == {
        name: framework.published["rule"] for name, framework in named.items()
    }
    assert all(
        (folder / "published.json").exists() == (name in FILES)
        for name, folder in frameworks().items()
    )


def test_an_unpublished_framework_and_an_unknown_rule_are_refused() -> None:
    framework = open_framework("pytorch").framework
    with pytest.raises(ConfigError, match="pytorch has no published tables"):
        rule_of(framework)
    tensorflow = open_framework("tensorflow_official").framework
    with pytest.raises(
        ConfigError,
        match="expected a rule of tensorflow_official, .*_1_6, .*_clock, got 'tf_timehistory'",
    ):
        rule_of(tensorflow, "tf_timehistory")
    assert rule_of(tensorflow, "tf_timehistory_clock").by == ("timestamp",)


TABLE = {
    "title": "t", "model": "resnet50", "dtype": "fp32", "batch_size": 128, "loader": "x", "version": "1", "hardware": "x",
    "statistic": "median", "divisor": "median/median", "cases": {"1n1g": {"speed": 1.0}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 0}, "tables.t.batch_size: expected a whole number ≥ 1, got the number 0"),
        ({"cases": {}}, "tables.t.cases: expected at least one entry, got none"),
        (
            {"cases": {"4n8": {"speed": 1.0}}},
            "tables.t.cases.4n8: expected a case such as 1n1g or 4n8g, got the text '4n8'",
        ),
        (
            {"cases": {"1n1g": {"speed": -1.0}}},
            "tables.t.cases.1n1g.speed: expected a number above 0, got the number -1.0",
        ),
        (
            {"divisor": "mean/latch", "order": []},
            "tables.t.order: expected each of 1n1g once with mean/latch, got none",
        ),
        (
            {"surprise": 1},
            "tables.t.surprise: expected a known key, got 'surprise'. known keys: title, model, ",
        ),
    ],
)
def test_a_damaged_file_is_refused_by_key(change: dict[str, Any], message: str) -> None:
    with pytest.raises(Faults) as caught:
        parse({"schema": 1, "source": "s", "tables": {"t": TABLE | change}}, "x", "published.json")
    assert caught.value.exit_code == 2 and f"published.json: {message}" in str(caught.value)


def test_a_file_of_a_later_schema_is_refused(tmp_path: Path) -> None:
    (tmp_path / "published.json").write_text('{"schema": 2, "source": "s", "tables": {}}')
    with pytest.raises(Faults, match="published.json:1: schema: expected 1, got the number 2"):
        open_published("x", tmp_path)
    with pytest.raises(ConfigError, match="this framework has none"):
        open_published("x", tmp_path / "nowhere")


def run(*words: str, width: int = 200) -> str:
    result = CliRunner().invoke(
        program(), ["published", *words], env={"COLUMNS": str(width)}, catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.output


def test_the_command_lists_all_tables() -> None:
    output = run()
    # 39 tables of images with 98 numbers; the others are of language models, of which two figures
    # do not follow
    tables, follow, numbers = map(
        int, re.findall(r"^(\d+) tables: (\d+) of (\d+) printed numbers follow", output, re.M)[0]
    )
    assert (tables - len(TABLES), numbers - 98) in ((5, 1728), (6, 1732)) and numbers - follow == 2
    assert output.endswith("printed numbers follow from the other printed numbers\n")
    assert re.search(r"paddle_models *\n paddle_rn50_fp32_b128 +6 +36 +6/6 +6/6 +– +6/6 +–", output)


def test_a_narrow_overview_hides_columns_and_says_which() -> None:
    output = run(width=80)
    assert "…" not in output and max(map(len, output.splitlines())) <= 80
    assert re.search(r"paddle_models *\n paddle_rn50_fp32_b128 +6/6 +– +6/6 +– +1 *\n", output)
    assert (
        "hidden at 80 columns: cases, runs, average; COLUMNS=102 shows them, or orch published --json"
        in " ".join(output.split())
    )


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_table_that_is_too_wide_goes_on_below_and_no_number_is_cut(width: int) -> None:
    wide, narrow = run("pytorch_examples"), run("pytorch_examples", width=width)
    assert "…" not in narrow
    # What is cut has no second half: every number of a cell is there as often as in a wide
    # terminal.
    numbers = [re.findall(r"(?<![\d.])\d+\.\d\d(?![\d.])", text) for text in (wide, narrow)]
    assert sorted(numbers[0]) == sorted(numbers[1])


def test_the_command_sets_recomputed_numbers_beside_printed_ones_and_hides_no_fault() -> None:
    output = run("pytorch_examples")
    assert "4n8g    10  8816.70  8773.38 = 8773.38  8816.70 = 8816.70  24.88 = 24.88\n" in output
    assert "≠ 4n8g has 10 runs, 5 claimed (known)" in output
    assert (
        "the 2-node sample log shows 53 iterations in an epoch, which means 8 ranks; 16 would have 26"
        in output
    )
    paddle = run("paddle_models")
    assert "26.55 = 26.55  26.51\n" in paddle


def test_the_command_gives_json_and_refuses_an_unknown_name() -> None:
    (document,) = json.loads(run("paddle_models", "--json"))
    (table,) = document["tables"]
    assert round_like_numpy(table["median_over_median"]["4n8g"]) == 26.51
    assert {check["agrees"] for check in table["checks"]} == {True}
    with pytest.raises(
        ConfigError, match="no published tables of 'paddel_models'.*did you mean|there are"
    ):
        CliRunner().invoke(program(), ["published", "paddel_models"], catch_exceptions=False)


def test_the_command_fails_where_a_table_has_an_undeclared_difference(tmp_path: Path) -> None:
    folder = tmp_path / "tensorflow_official"
    folder.mkdir()
    source = Path(open_framework("tensorflow_official").framework.folder)
    (folder / "framework.yaml").write_bytes((source / "framework.yaml").read_bytes())
    text = (
        (source / "published.json")
        .read_text(encoding="utf-8")
        .replace('"average": 321.87', '"average": 321.78')
    )
    (folder / "published.json").write_text(text, encoding="utf-8")
    with pytest.raises(
        DataError, match="tf2_rn50_fp32_b128: 1n1g average 321.78, recomputed 321.8700"
    ):
        CliRunner().invoke(
            program(), ["published", "--templates", str(tmp_path)], catch_exceptions=False
        )


def test_the_examples_of_the_documentation_hold() -> None:
    page = Path(__file__).parents[3] / "docs" / "published.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert failed == 0 and tried >= 10
