"""Notes: each code is documented, and each documented code exists."""

from __future__ import annotations

import copy
import pickle
import re
from collections import Counter
from importlib import import_module
from pathlib import Path

from orchestrator.notes import DOUBT, OTHER, REFUSAL, REMARK, Kind, as_note
from orchestrator.results.notes import NO_BASELINE
from orchestrator.results.numbers.notes import SLOW_START

ROOT = Path(__file__).parents[1]
HEADER = "| code | text | when |\n"
OF_FEATURES = "| code | note | when |\n"


def kinds(*, of_features: bool = False) -> list[Kind]:
    """Return all kinds of notes, those of features or of the rest."""
    paths = [path.relative_to(ROOT) for path in sorted((ROOT / "orchestrator").rglob("notes.py"))]
    chosen = [path for path in paths if ("features" in path.parts) is of_features]
    names = [".".join(path.with_suffix("").parts) for path in chosen]
    values = [value for name in names for value in vars(import_module(name)).values()]
    return [value for value in values if isinstance(value, Kind)]


def documented(header: str = HEADER) -> list[str]:
    """Return the codes in the first column of the tables of notes in the pages."""
    pages = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs").glob("*.md"))]
    tables = [table.split("\n\n")[0] for page in pages for table in page.split(header)[1:]]
    return [
        code
        for table in tables
        for row in table.splitlines()
        for code in re.findall("`(.+?)`", row.split("|")[1])
    ]


def test_each_code_is_documented_once_and_each_documented_code_exists() -> None:
    assert Counter(documented()) == Counter({kind.code for kind in kinds()})
    of_features = {kind.code for kind in kinds(of_features=True)} - {kind.code for kind in kinds()}
    assert of_features <= set(documented(OF_FEATURES))


def test_codes_are_words_and_kinds_with_one_code_have_one_severity() -> None:
    known = [*kinds(), *kinds(of_features=True)]
    severities = {kind.code: kind.severity for kind in known}
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", code) for code in severities)
    assert [kind for kind in known if kind.severity != severities[kind.code]] == []
    assert set(severities.values()) == {DOUBT, REMARK, REFUSAL}


def test_a_note_is_its_words_and_keeps_its_kind_and_fields_between_processes() -> None:
    note = SLOW_START(steps="steps 1-4", longer=0.24, cost="2 s")
    assert (
        note
        == "steps 1-4 took 24.0% longer per step than the others; that is 2 s; more --warmup-steps may be needed"
    )
    assert (
        note.plain == note.removesuffix("; more --warmup-steps may be needed")
        and note.plain.code == "slow_start"
    )
    for same in (pickle.loads(pickle.dumps(note)), copy.deepcopy(note), as_note(note)):
        assert (same, same.code, same.severity, same.fields) == (
            note,
            "slow_start",
            DOUBT,
            note.fields,
        )


def test_words_of_others_with_braces_are_shown_as_they_are() -> None:
    note = NO_BASELINE(series="a {b}", shape="1n1g", how="{c}")
    assert note == "a {b}: no speedup, because there is no good 1n1g run; {c}"
    assert as_note("{d}") == "{d}" and as_note("{d}").code == OTHER.code
