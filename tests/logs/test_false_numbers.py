"""Logs of which one number contradicts the others: the sample logs of all folders are believed, and
none of them with a number of ``false_numbers.yaml`` in place of its own.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.logs.parse import parse
from orchestrator.plan.folders import open_framework
from orchestrator.results.foreign_log import check_alone

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
ROWS = yaml.safe_load((Path(__file__).parent / "false_numbers.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(folder.name for folder in TEMPLATES.iterdir()))
def test_a_true_log_is_believed(name: str) -> None:
    assert find_refusal(name, read_sample(name)) == ""


@pytest.mark.parametrize("row", ROWS["rows"], ids=lambda row: f"{row['framework']}-{row['of']}")
def test_a_log_with_a_false_number_is_not(row: dict[str, Any]) -> None:
    assert row["says"] in find_refusal(
        row["framework"], falsify(read_sample(row["framework"]), row)
    )


def read_sample(name: str) -> str:
    return (TEMPLATES / name / "sample.log").read_text(encoding="utf-8")


def falsify(log: str, row: dict[str, Any]) -> str:
    """Multiply a number where the pattern of a row matches, with as many decimals as it has."""
    matches = list(re.finditer(row["of"], log))
    for match in reversed(matches if row["which"] == "all" else [matches[row["which"]]]):
        number = match[1].replace(",", "")
        decimals = len(number.partition(".")[2])
        false = f"{float(number) * row['times']:0{len(number)}.{decimals}f}"
        log = log[: match.start(1)] + false + log[match.end(1) :]
    return log


def find_refusal(name: str, log: str) -> str:
    """Return why a log has no result, an empty text if it may have one."""
    framework = open_framework(name).framework
    defaults = {key: option.default for key, option in framework.options.items()}
    error, _ = check_alone(framework, parse(log.encode(), framework.log.with_options(defaults)))
    return error.message if error else ""
