"""Strict JSON for exchange between programs: ambiguous documents, and numbers that a reader cannot
hold, are refused.

>>> strict_json(b'{"steps": 120}', "exit.json")
{'steps': 120}
"""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from orchestrator.errors import DataError

_MAX_DEPTH = 50


def strict_json(data: bytes | str, where: str, kind: str = "result_invalid") -> Any:
    """Return the JSON value in ``data``. Raises DataError of ``kind`` with ``where`` and the offset
    or key.

    Refuses NaN, numbers beyond a double, duplicate keys, and more than 50 levels.
    """

    def fail(text: str) -> DataError:
        return DataError(f"expected JSON, {text}", kind=kind, where=where)

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        mapping = dict(items)
        if len(mapping) < len(items):
            duplicate = Counter(key for key, _ in items).most_common(1)[0][0]
            raise fail(f"got the key {duplicate[:80]!r} twice")
        return mapping

    def number(text: str) -> float:
        value = float(text)
        if not math.isfinite(value):
            raise fail(f"got the number {text[:40]}")
        return value

    try:
        text = data if isinstance(data, str) else data.decode("utf-8")
        value = json.loads(text, object_pairs_hook=pairs, parse_float=number, parse_constant=number)
    except json.JSONDecodeError as error:
        raise fail(
            f"got invalid text at byte {len(text[: error.pos].encode('utf-8', 'replace'))} ({error.msg})"
        ) from error
    except UnicodeDecodeError as error:
        raise fail(f"got bytes that are not UTF-8 at byte {error.start}") from error
    except ValueError as error:
        raise fail("got a whole number with thousands of digits") from error
    except RecursionError as error:
        raise fail(f"got more than {_MAX_DEPTH} levels") from error
    if _depth_exceeds(value, _MAX_DEPTH):
        raise fail(f"got more than {_MAX_DEPTH} levels")
    return value


def _depth_exceeds(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit + 1):
        nested = [child for child in level if isinstance(child, (dict, list))]
        level = [
            item
            for child in nested
            for item in (child.values() if isinstance(child, dict) else child)
        ]
        if not level:
            return False
    return True
