"""A checksum inside a JSON object, so that a reader can detect a changed value.

A flipped bit can change a number without breaking the syntax, and a result would then be wrong. The
checksum covers the values, not the bytes, so a record may be reformatted.

>>> record = seal_record({"steps": 120, "nodes": 4})
>>> is_broken(record), is_broken(record | {"steps": 121}), unseal_record(record)
(False, True, {'steps': 120, 'nodes': 4})
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

KEY = "seal"
_DIGITS = 16


def seal_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record with its seal as the last field. An existing seal is replaced."""
    plain = unseal_record(record)
    return {**plain, KEY: _seal(plain)}


def unseal_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record without its seal."""
    return {name: value for name, value in record.items() if name != KEY}


def is_broken(record: Mapping[str, Any]) -> bool:
    """Return True if the record does not match its seal. A record of an earlier version, without a
    seal, is not broken.
    """
    return KEY in record and record[KEY] != _seal(unseal_record(record))


def _seal(plain: Mapping[str, Any]) -> str:
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]
