"""The published JSON Schema of a summary, as a judge of what outputs of `orch summarize --json`
contain.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, get_type_hints

from jsonschema import Draft202012Validator

from orchestrator.notes import Note
from orchestrator.report.formats import json as jsonout
from orchestrator.results.cells import Repeat
from orchestrator.results.diagnosis_tables import Grid
from orchestrator.results.entries import Row, Sheet
from orchestrator.results.numbers.intervals import Interval
from orchestrator.results.slow_ranks import RankTimes, SlowRank

FILE = Path(jsonout.__file__).parent / "summary.schema.json"
BY_NAME = ("baselines", "drifts", "options", "key", "lowered", "errors", "link_errors")
"""Objects whose keys are no words of the schema."""
_BY_TYPE: Mapping[Any, Mapping[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"$ref": "#/$defs/count"},
    float | None: {"$ref": "#/$defs/value"},
    Interval | None: {"$ref": "#/$defs/interval"},
    tuple[str, ...]: {"$ref": "#/$defs/texts"},
    tuple[Note, ...]: {"$ref": "#/$defs/texts"},
    tuple[Grid, ...]: {"type": "array", "items": {"$ref": "#/$defs/grid"}},
    tuple[Repeat, ...]: {"type": "array", "items": {"$ref": "#/$defs/repeat"}},
    tuple[RankTimes, ...]: {"type": "array", "items": {"$ref": "#/$defs/rank"}},
    tuple[SlowRank, ...]: {"type": "array", "items": {"$ref": "#/$defs/slow"}},
}
_CODES = {"$ref": "#/$defs/codes", "description": "Of each of the qualifications."}


def schema_as_declared() -> str:
    """Return the text of the schema with the properties of rows and sheets as their fields declare
    them, one on a line.
    """
    text = FILE.read_text(encoding="utf-8")
    for name, kind in {"row": Row, "sheet": Sheet}.items():
        types = get_type_hints(kind)
        properties = {one.name: _schema_of(one, types[one.name]) for one in fields(kind)}
        properties["qualification_codes"] = _CODES
        lines = ",\n".join(
            f'        "{of}": {json.dumps(schema)}' for of, schema in properties.items()
        )
        names = json.dumps(list(properties))
        start = f'    "{name}": {{\n      "type": "object",\n      "properties": {{\n'
        end = '\n      },\n      "required": '
        before, rest = text.split(start)
        after = rest.partition(end)[2].partition("]")[2]
        text = before + start + lines + end + names + after
    null = {one.name: {"type": "null"} for one in fields(Row) if one.metadata["of_speeds"]}
    others = f'      "else": {{"properties": {json.dumps(null)}}},'
    return re.sub('^      "else": .*$', others, text, flags=re.MULTILINE)


def _schema_of(declared: Field[Any], kind: Any) -> Mapping[str, Any]:
    facts = declared.metadata
    schema = facts["schema"] or _BY_TYPE[kind]
    words = facts["words"]
    if facts["of_speeds"]:
        words += " Null except for samples_per_s and tokens_per_s."
    return {**schema, "description": words} if words else schema


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
    few = thinned(whole)
    assert problems(few) == []
    for place in objects(few):
        changed = at(few, place)
        changed["unknown"] = 1
        assert not VALIDATOR.is_valid(few), place
        del changed["unknown"]
        for key, value in list(changed.items()):
            if key not in optional:
                del changed[key]
                assert not VALIDATOR.is_valid(few), (*place, key)
                changed[key] = value


def thinned(value: Any) -> Any:
    """Return a document of whose lists only the first item of each shape is left."""
    if isinstance(value, dict):
        return {key: thinned(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return list({shape(item): thinned(item) for item in reversed(value)}.values())[::-1]
    return value


def shape(value: Any) -> Hashable:
    """Return the keys and types in a value."""
    if isinstance(value, dict):
        return frozenset((key, shape(inner)) for key, inner in value.items())
    if isinstance(value, list):
        return (list, frozenset(map(shape, value)))
    return type(value)


SCHEMA = json.loads(schema_as_declared())
VALIDATOR = Draft202012Validator(SCHEMA)
