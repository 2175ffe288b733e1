"""The reader of documents of orch's own: what is expected is said by types, faults by their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pytest

from orchestrator.documents import (
    Invalid,
    Reader,
    check_schema,
    document_field,
    read,
    strict_reader,
)


def _even(value: Any) -> int:
    if value % 2:
        raise ValueError(f"expected an even number, got {value}")
    return int(value)


@dataclass(frozen=True)
class Inner:
    name: str
    at_s: float | None = None


@dataclass(frozen=True)
class Outer:
    count: int
    mode: Literal["fast", "slow"] = "fast"
    inner: tuple[Inner, ...] = ()
    pairs: tuple[tuple[int, str], ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)
    even: int = field(default=0, metadata=document_field(key="e", by=_even))
    note: str = field(default="", metadata=document_field(annotates=True))
    either: int | str = 0


WHOLE = {
    "count": 1, "mode": "slow", "inner": [{"name": "a", "at_s": 2}], "pairs": [[1, "x"]], "texts": {"k": "v"}, "e": 4,
    "note": "n", "either": "b",
}  # fmt: skip


def test_a_document_is_read_by_the_types_of_its_fields() -> None:
    expected = Outer(1, "slow", (Inner("a", 2),), ((1, "x"),), {"k": "v"}, 4, "n", "b")
    assert read(Outer, {**WHOLE, "of_a_later_version": []}) == expected
    assert read(Outer, {"count": 1}) == Outer(1)
    # As `asdict` has them: what was not written yet is read as well.
    assert read(Outer, asdict(Outer(1, pairs=((1, "x"),)))).pairs == ((1, "x"),)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": True}, "count: expected a whole number, got True"),
        ({"count": 1.0}, "count: expected a whole number, got 1.0"),
        ({"mode": "quick"}, "mode: expected one of fast, slow, got 'quick'"),
        ({"mode": []}, "mode: expected one of fast, slow, got []"),
        ({"inner": [7]}, "inner: expected a list of objects, got [7]"),
        ({"inner": [{}]}, "inner[0].name: expected text, it is missing"),
        ({"inner": [{"name": "a", "at_s": "now"}]}, "inner[0].at_s: expected seconds, got 'now'"),
        ({"inner": [{"name": "a", "at_s": float("nan")}]}, "inner[0].at_s: expected seconds, got nan"),
        ({"inner": None}, "inner: expected a list of objects, got None"),
        ({"pairs": [[1]]}, "pairs: expected a list of valid values, got [[1]]"),
        ({"pairs": [[1, 2]]}, "pairs: expected a list of valid values, got [[1, 2]]"),
        ({"texts": {"k": 1}}, "texts.k: expected text, got 1"),
        ({"texts": "k"}, "texts: expected an object, got 'k'"),
        ({"e": 3}, "e: expected an even number, got 3"),
        ({"either": []}, "either: expected a whole number or text, got []"),
    ],
)  # fmt: skip
def test_the_first_fault_is_named_with_its_place(change: Mapping[str, Any], message: str) -> None:
    with pytest.raises(Invalid) as caught:
        read(Outer, {**WHOLE, **change})
    assert str(caught.value) == message


def test_a_value_that_only_annotates_is_left_out() -> None:
    assert read(Outer, {**WHOLE, "note": 5}).note == ""


def test_a_lenient_reader_leaves_out_the_smallest_part() -> None:
    change = {"inner": [{"name": "a", "at_s": "now"}, {}, 7], "texts": {"k": 1, "l": "m"}, "e": 3}
    found = Reader(lenient=True, most_rows=2).read(Outer, {"count": 1, "mode": 9, **change})
    assert found == Outer(1, inner=(Inner("a"),), texts={"l": "m"})
    with pytest.raises(Invalid, match="count: expected a whole number, it is missing"):
        Reader(lenient=True).read(Outer, {})


def test_an_older_runner_sends_null_for_what_it_does_not_know() -> None:
    nulls = dict.fromkeys(WHOLE) | {"count": 1}
    assert Reader(null_is_missing=True).read(Outer, nulls) == Outer(1)


def test_what_a_node_sends_is_cut() -> None:
    reader = Reader(lenient=True, most_text=3, most_rows=2)
    assert reader.read(tuple[str, ...], ["abcdef", 5, "c"]) == ("abc",)
    assert reader.read(dict[str, str], {"a": "b", "c": "d", "e": "f"}) == {"a": "b", "c": "d"}


def test_unknown_keys_are_refused_where_they_change_what_the_others_mean() -> None:
    assert strict_reader(Inner)({"name": "a"}) == Inner("a")
    with pytest.raises(Invalid, match="^surprise: expected one of at_s, name"):
        strict_reader(Inner)({"name": "a", "surprise": 1})


@pytest.mark.parametrize("schema", [None, True, 2, "1"])
def test_another_schema_is_refused(schema: Any) -> None:
    with pytest.raises(Invalid, match="expected schema 1, got "):
        check_schema({"schema": schema}, 1)
