"""The published schema says what `orch summarize --json` prints, no more and no less."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from orchestrator.cli.main import program
from orchestrator.report.formats import json as jsonout
from orchestrator.results.summary import summarize
from tests.support.explained_benches import bench_of
from tests.support.run_folders import build
from tests.support.summaries import EVIL, example, runs, with_text

SCHEMA = json.loads((Path(jsonout.__file__).parent / "summary.schema.json").read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)


def document(summary: Any) -> Any:
    return json.loads(jsonout.render(summary))


@pytest.fixture(scope="module")
def beside(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the program prints of a bench on disk, with published tables beside its own, and explained."""
    bench = bench_of(tmp_path_factory.mktemp("runs"), "r2", "r3")
    build(bench, "r2", repeat=2, seconds=0.51)
    build(bench, "r3", lambda planned, logs: planned["spec"].update(batch_size=128), repeat=1)
    done = CliRunner().invoke(program(), ["summarize", str(bench.path), "--json", "--against", "published", "--explain"])
    return json.loads(done.stdout)


def problems(value: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(value)]


def test_the_schema_is_one_and_speaks_of_this_version() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["schema"] == {"const": jsonout.SCHEMA}
    assert SCHEMA["$id"].endswith(f":{jsonout.SCHEMA}")


@pytest.mark.parametrize("text", EVIL.values(), ids=EVIL)
def test_every_summary_is_valid(text: str) -> None:
    assert problems(document(with_text(text))) == []


def test_tables_with_and_without_numbers_are_valid(beside: Any) -> None:
    chosen = {"options": {"compile": True, "lr": 0.1, "workers": 4, "name": "x"}}
    assert problems(document(example())) == []
    assert problems(document(summarize(runs("1n1g", [1.0, 2.0], spec=chosen)))) == []
    assert problems(document(summarize([]))) == []
    assert problems(beside) == [] and beside["published_notes"] and beside["explained"][1]["startup"]


def objects(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every object whose keys the schema knows by name."""
    if isinstance(value, dict) and place[-1:] not in (("baselines",), ("options",)):
        yield place
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from objects(inner, (*place, key))


def at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


@pytest.mark.parametrize("kind", ["example", "beside"])
def test_a_key_more_and_a_key_less_are_not(kind: str, beside: Any) -> None:
    whole = document(example()) if kind == "example" else beside
    for place in objects(whole):
        changed = deepcopy(whole)
        at(changed, place)["unknown"] = 1
        assert problems(changed), place
        for key in at(whole, place).keys() - {"explained"}:  # which stands alone
            changed = deepcopy(whole)
            del at(changed, place)[key]
            assert problems(changed), (*place, key)


@pytest.mark.parametrize(
    ("key", "value"), [("median", 0), ("n", 1.5), ("shape", "4x8"), ("speedup", "1"), ("failed", -1)]
)
def test_values_that_cannot_be_are_not(key: str, value: Any) -> None:
    whole = document(example())
    whole["rows"][0][key] = value
    assert problems(whole)
