"""What is said where a node's data set is not described as one."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.dataset import _make
from orchestrator.errors import RunError

WHOLE = {"images": 6, "bytes": 9, "sha256": "0a", "made": False}


def made(out: str) -> dict[str, Any]:
    node = SimpleNamespace(
        put=lambda files, timeout_s: None,
        ask=lambda op, **request: {"code": 0, "out": out, "err": ""},
    )
    return _make(SimpleNamespace(nodes={"a": node}), "a", [], 10.0)  # type: ignore[arg-type]


def test_a_description_is_the_last_line() -> None:
    assert made("read 6 files\n" + json.dumps(WHOLE)) == WHOLE


@pytest.mark.parametrize(
    "out", ["", "made", "[]", "{}", json.dumps(WHOLE | {"bytes": None}), json.dumps([WHOLE])]
)
def test_a_node_without_a_description_is_named(out: str) -> None:
    with pytest.raises(RunError, match="expected the description of a data set, got") as caught:
        made(out)
    assert (caught.value.kind, caught.value.host) == ("result_invalid", "a")
