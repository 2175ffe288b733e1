"""MLPerf's own parser and checker read our lines, and MLPerf's own logger would have written the
same.
"""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from orchestrator.report.formats import mllog
from orchestrator.results.summary import Summary
from tests.support.summaries import evil, example, with_text

with warnings.catch_warnings():
    # Its source has escapes that newer releases of Python no longer take without a word.
    warnings.simplefilter("ignore")
    from mlperf_logging.compliance_checker.mlp_compliance import make_checker, rule_choices
    from mlperf_logging.compliance_checker.mlp_parser import parse_file
    from mlperf_logging.mllog import constants
    from mlperf_logging.mllog.mllog import _encode_log

RULES = sorted(set(rule_choices()) - {"0.6.0"})
"""All but the one for the format before this one."""


@pytest.fixture
def summary() -> Summary:
    return example()


def parsed(summary: Summary, folder: Path, rules: str = RULES[-1]) -> list[Any]:
    path = folder / "result.txt"
    path.write_text(mllog.render(summary))
    lines, errors = parse_file(str(path), ruleset=rules)
    assert errors == [] and len(lines) == 2 * len(summary.rows)
    return list(lines)


def events(rendered: str) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix(":::MLLOG ")) for line in rendered.splitlines()]


@pytest.mark.parametrize("rules", RULES)
def test_the_compliance_checker_takes_the_format_under_every_set_of_rules(
    summary: Summary, tmp_path: Path, rules: str
) -> None:
    parsed(summary, tmp_path, rules)
    no_rules = tmp_path / "none.yaml"
    no_rules.write_text("")
    assert make_checker("training", rules, quiet=False, werror=True).check_file(
        str(tmp_path / "result.txt"), str(no_rules)
    )
    (tmp_path / "result.txt").write_text(":::MLLOG {}\n")
    with pytest.raises(KeyError):
        parse_file(str(tmp_path / "result.txt"), ruleset=rules)


def test_the_logger_of_mlperf_would_have_written_the_same_lines(summary: Summary) -> None:
    rendered = mllog.render(summary)
    written = [
        _encode_log(
            e["namespace"],
            e["time_ms"],
            constants.POINT_IN_TIME,
            e["key"],
            e["value"],
            e["metadata"],
        )
        for e in events(rendered)
    ]
    assert rendered.splitlines() == written


def test_each_cell_has_its_batch_and_its_numbers(summary: Summary, tmp_path: Path) -> None:
    found = [
        (line.key, line.value["value"], line.value["metadata"].get(constants.STATUS))
        for line in parsed(summary, tmp_path)
    ]
    small, large, _ = summary.rows
    assert found == [
        (constants.GLOBAL_BATCH_SIZE, 128, None),
        (
            "tracked_stats",
            {"throughput": small.value, "speedup": 1.0, "efficiency": 1.0},
            constants.SUCCESS,
        ),
        (constants.GLOBAL_BATCH_SIZE, 1024, None),
        (
            "tracked_stats",
            {"throughput": large.value, "speedup": large.speedup, "efficiency": large.efficiency},
            constants.SUCCESS,
        ),
        (constants.GLOBAL_BATCH_SIZE, 4096, None),
        ("tracked_stats", {}, constants.ABORTED),
    ]
    assert events(mllog.render(summary))[1]["metadata"]["run_ids"] == list(small.run_ids)


def test_the_time_is_that_of_the_export(summary: Summary) -> None:
    before = time.time_ns() // 1_000_000
    assert all(
        before <= event["time_ms"] <= time.time_ns() // 1_000_000
        for event in events(mllog.render(summary))
    )


@evil
def test_no_text_of_a_node_acts_on_a_reader(text: str, tmp_path: Path) -> None:
    rendered = mllog.render(with_text(text))
    assert rendered.isascii() and not any(
        ord(character) < 32 for character in rendered.replace("\n", "")
    )
    assert any(
        text in line.value["metadata"]["qualifications"]
        for line in parsed(with_text(text), tmp_path)[1::2]
    )


def test_a_line_within_a_line_is_text(tmp_path: Path) -> None:
    text = ':::MLLOG {"namespace": "", "time_ms": 1, "event_type": "", "key": "run_stop", "value": 1, "metadata": {}}'
    lines = parsed(with_text(text), tmp_path)
    assert {line.key for line in lines} == {constants.GLOBAL_BATCH_SIZE, "tracked_stats"}
    assert any(text in line.value["metadata"]["qualifications"] for line in lines[1::2])
