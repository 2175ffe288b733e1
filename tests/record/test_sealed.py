"""A seal holds over writing and reading, and breaks with any change of a value."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.record.sealed import KEY, is_broken, seal_record, unseal_record

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
RECORDS = st.dictionaries(st.text().filter(lambda name: name != KEY), VALUES, max_size=6)


@given(RECORDS)
def test_a_record_is_whole_after_it_was_written_and_read(record: dict[str, Any]) -> None:
    for indent in (None, 1):
        read = json.loads(json.dumps(seal_record(record), indent=indent))
        assert (
            not is_broken(read)
            and unseal_record(read) == record
            and seal_record(read) == seal_record(record)
        )


def test_every_flipped_bit_breaks_the_syntax_or_the_seal_or_nothing() -> None:
    """Nothing: only where the flip hits a space, or the name of the seal itself."""
    record = {"steps": 120, "name": "a", "rate": 1.5e3, "nested": {"list": [1, None, True, "é"]}}
    data = json.dumps(seal_record(record), indent=1).encode()
    for position in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[position // 8] ^= 1 << position % 8
        try:
            read = json.loads(bytes(flipped).decode())
        except ValueError:
            continue
        if KEY in read and not is_broken(read):
            assert unseal_record(read) == record
        elif KEY not in read:
            assert {name: read[name] for name in record} == record


@pytest.mark.parametrize(
    "change",
    [{"steps": 121}, {"steps": 120.5}, {"more": 1}, {KEY: "0123456789abcdef"}, {KEY: None}],
)
def test_a_change_breaks_the_seal(change: dict[str, Any]) -> None:
    assert is_broken(seal_record({"steps": 120}) | change)


def test_a_record_without_a_seal_is_not_broken() -> None:
    assert not is_broken({"steps": 120}) and not is_broken({})
