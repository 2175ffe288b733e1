"""The journal of a bench: only the events of its table, read back as they were written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.errors import DataError
from orchestrator.record.journal import (
    ENDS,
    FIELDS,
    Entry,
    Event,
    Journal,
    last_controller,
    list_runs,
    suspicion,
)
from orchestrator.record.sealed import seal_record

VALUES: dict[str, Any] = {
    "argv": ["orch", "bench"],
    "errors": [{"kind": "node_lost"}],
    "code": 3,
    "hosts": {"node1": {}},
}


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "events.jsonl")


def test_every_name_has_its_fields_in_the_table() -> None:
    names = {value for name, value in vars(Event).items() if not name.startswith("_")}
    assert names == set(FIELDS) and set(ENDS) < names
    assert all(
        len(set(of)) == len(of) and not {"event", "at", "seal"} & set(of) for of in FIELDS.values()
    )


@pytest.mark.parametrize("event", FIELDS)
def test_an_event_reads_back_as_it_was_written(journal: Journal, event: str) -> None:
    fields = {name: VALUES.get(name, f"some {name}") for name in FIELDS[event]}
    journal.write(event, at=1.5, **fields)
    (entry,) = journal.read()
    run = fields.pop("run", "")
    assert entry == Entry(event, 1.5, run, fields)
    line = {"event": event, "at": 1.5, **({"run": run} if run else {}), **fields}
    assert json.loads(journal.path.read_text()) == seal_record(line)


def test_typed_readings_of_an_event(journal: Journal) -> None:
    journal.write(Event.BEGUN, argv=["orch", "resume"])
    journal.write(Event.OVER, code=3, errors=[{"kind": "node_lost"}])
    begun, over = journal.read()
    assert begun.argv == ("orch", "resume") and (over.code, over.errors) == (
        3,
        ({"kind": "node_lost"},),
    )


@pytest.mark.parametrize(
    ("event", "fields"),
    [("frobnicated", {}), (Event.STAGED, {"colour": 1}), (Event.OVER, {"run": "r1"})],
)
def test_what_is_not_in_the_table_is_not_written(
    journal: Journal, event: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="expected|event"):
        journal.write(event, **fields)
    assert journal.read() == []


@pytest.mark.parametrize(
    "line",
    [
        "[]",
        "3",
        '{"at": 1}',
        '{"event": 5}',
        '{"event": "begun"',
        '{"event": "begun", "at": 1, "seal": "0000"}',
        "\x00",
    ],
)
def test_a_damaged_line_is_named_with_its_byte(journal: Journal, line: str) -> None:
    journal.write(Event.BEGUN, argv=[])
    first = journal.path.read_bytes()
    journal.path.write_bytes(first + line.encode() + b"\n" + first)
    with pytest.raises(DataError, match=f"events.jsonl: .*byte {len(first)}") as caught:
        journal.read()
    assert caught.value.kind == "state_damaged"


def test_fields_of_another_type_are_as_if_they_were_not_there(journal: Journal) -> None:
    journal.path.write_text(
        '{"event": "begun", "at": "now", "argv": 7}\n{"event": "over", "at": true, "errors": {}, "code": "1"}\n'
        '{"event": "planned", "at": null, "run": null}\n'
    )
    begun, over, planned = journal.read()
    assert (begun.at, begun.argv, over.at, over.errors, over.code) == (None, (), None, (), 1)
    assert (planned.at, planned.run) == (None, "")


def test_an_earlier_version_sealed_nothing_and_a_later_one_knows_more_events(
    journal: Journal,
) -> None:
    lines = (
        '{"event": "staged", "at": 1, "run": "r1", "y": 1}',
        '{"event": "later", "at": 2, "run": "r1", "x": 1}',
        "",
    )
    journal.path.write_text("\n".join(lines))
    assert journal.read() == [Entry("staged", 1.0, "r1"), Entry("later", 2.0, "r1", {"x": 1})]


def test_runs_that_were_begun_and_the_newest_controllers_events(journal: Journal) -> None:
    assert last_controller(journal.read()) == []
    journal.write(Event.BEGUN, argv=["one"])
    journal.write(Event.BORROWED, run="r0", origin="b0")
    journal.write(Event.BEGUN, argv=["two"])
    journal.write(Event.PLANNED, run="r1", port=20000)
    journal.write(Event.SUPERSEDED, run="r2", by="r2-a2")
    entries = journal.read()
    assert list_runs(entries) == {"r0", "r1"}
    assert [entry.event for entry in last_controller(entries)] == ["begun", "planned", "superseded"]


@pytest.mark.parametrize(
    ("events", "words"),
    [
        ((), ""),
        ((Event.STALLED,), "rank 2 sleeps"),
        ((Event.STALLED, Event.RESUMED), ""),
        ((Event.STALLED, Event.RESUMED, Event.STALLED), "rank 2 sleeps"),
        ((Event.STALLED, Event.STOPPING, Event.FAILED), ""),
        ((Event.STALLED, Event.OVER), ""),
    ],
)
def test_a_suspicion_lasts_until_the_run_goes_on_or_ends(
    tmp_path: Path, events: tuple[str, ...], words: str
) -> None:
    journal = Journal(tmp_path / "events.jsonl")
    for event in events:
        journal.write(event, **dict.fromkeys(FIELDS[event], "rank 2 sleeps"))
    assert suspicion(journal.read()) == words
