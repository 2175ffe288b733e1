"""The published JSON Schema of a summary, as a judge of what outputs of `orch summarize --json`
contain.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from orchestrator.report.formats import json as jsonout

SCHEMA = json.loads(
    (Path(jsonout.__file__).parent / "summary.schema.json").read_text(encoding="utf-8")
)
BY_NAME = ("baselines", "drifts", "options", "key", "lowered", "errors", "link_errors")
"""Objects whose keys are no words of the schema."""
VALIDATOR = Draft202012Validator(SCHEMA)


def problems(value: Any) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(value)]


def objects(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every object whose keys the schema knows by name."""
    if isinstance(value, dict) and place[-1:] not in [(name,) for name in BY_NAME]:
        yield place
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from objects(inner, (*place, key))


def at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def assert_every_key_counts(whole: Any, optional: Collection[str] = ()) -> None:
    """Assert that the document is not valid with a key more, nor with one less but for those at its
    top that stand alone.
    """
    for place in objects(whole):
        changed = deepcopy(whole)
        at(changed, place)["unknown"] = 1
        assert problems(changed), place
        for key in at(whole, place).keys() - set(optional):
            changed = deepcopy(whole)
            del at(changed, place)[key]
            assert problems(changed), (*place, key)
