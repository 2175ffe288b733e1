"""A checksum inside a JSON object: whoever reads the object later knows that it is the one that was written.

A flipped bit can turn one number into another without harm to the syntax, and a result would then rest on it. The seal is made
over the values, not over the bytes, so that a record may be printed anew with other spaces.

>>> record = sealed({"steps": 120, "nodes": 4})
>>> is_broken(record), is_broken(record | {"steps": 121}), unsealed(record)
(False, True, {'steps': 120, 'nodes': 4})
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["KEY", "is_broken", "sealed", "unsealed"]

KEY = "seal"
_DIGITS = 16


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with its seal, which comes last. A seal that it has already is replaced."""
    plain = unsealed(record)
    return {**plain, KEY: _seal(plain)}


def unsealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record without its seal."""
    return {name: value for name, value in record.items() if name != KEY}


def is_broken(record: Mapping[str, Any]) -> bool:
    """Tell whether the record is not what was sealed. One without a seal, of an earlier version, is not broken."""
    return KEY in record and record[KEY] != _seal(unsealed(record))


def _seal(plain: Mapping[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
