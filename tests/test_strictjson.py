"""JSON that is read with suspicion: where it is wrong is said."""

from __future__ import annotations

import pytest

from orchestrator.errors import DataError
from orchestrator.strictjson import strict_json


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[1",
        b'{"a":Infinity}',
        b"\xff",
        b"nul",
        b'"\\ud8',
        b"[" * 100_000,
        b'{"a":{"b":1,"b":2}}',
    ],
    ids=["empty", "cut", "infinite", "bytes", "no word", "half escape", "deep", "twice"],
)
def test_strict_json_says_where(text: bytes) -> None:
    with pytest.raises(DataError, match="^exit.json: expected JSON, got") as caught:
        strict_json(text, "exit.json")
    assert caught.value.kind == "result_invalid"


def test_strict_json_takes_fifty_levels_and_names_the_byte() -> None:
    assert strict_json("[" * 50 + "]" * 50, "x")
    with pytest.raises(DataError, match="at byte 6 "):
        strict_json('{"é" 1}'.encode(), "x")
