"""Redaction of secret values in text that people and programs read: errors, events, records, reports.

A value can appear in other forms than the one in the inventory: quoted for a shell, escaped in JSON or in a Python traceback,
encoded in a URL, or in base64 with other bytes before it. All of these forms are redacted. Raw logs are left unchanged.

>>> clean = redaction(["s3cret/value"])
>>> clean.text("token=s3cret/value, url=s3cret%2Fvalue, header=dXNlcjpzM2NyZXQvdmFsdWU=")
'token=(not shown), url=(not shown), header=dXNlcjp(not shown)dWU='
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, quote_plus

__all__ = ["SHOWN", "Redaction", "redaction"]

SHOWN = "(not shown)"
# A shorter value is replaced only as a whole word: "1" is part of almost every text.
_SHORT = 4
_LEAST_ENCODED = 8


@dataclass(frozen=True, slots=True)
class Redaction:
    """A filter that replaces secret values in texts and in JSON values."""

    pattern: re.Pattern[str] | None

    def text(self, text: str) -> str:
        """Return the text with every secret value replaced by `SHOWN`."""
        return self.pattern.sub(SHOWN, text) if self.pattern else text

    def value(self, value: Any) -> Any:
        """Return a JSON value with the secrets replaced in all its keys and texts, at any depth."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(item) for item in value]
        return value


def redaction(values: Iterable[str]) -> Redaction:
    """Return the redaction of these values in all their forms. Empty values are ignored."""
    secrets = sorted({value for value in values if value.strip()}, key=lambda value: (-len(value), value))
    forms = dict.fromkeys(form for value in secrets for form in _forms(value))
    longest_first = sorted(forms, key=lambda form: (-len(form), form))
    patterns = [re.escape(form) if len(form) >= _SHORT else rf"(?<!\w){re.escape(form)}(?!\w)" for form in longest_first]
    return Redaction(re.compile("|".join(patterns)) if patterns else None)


def _forms(value: str) -> Iterator[str]:
    yield value
    if len(value) < _SHORT:
        return
    yield value.strip()
    yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= _LEAST_ENCODED)
    yield shlex.quote(value).strip("'")
    yield value.replace("'", "'\\''")
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield repr(value)[1:-1]
    encoded = value.encode("utf-8", "surrogateescape")
    yield repr(encoded)[2:-1]
    for url_quote in (quote, quote_plus):
        yield url_quote(encoded, safe="")
        yield url_quote(encoded)
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), url_quote(encoded, safe=""))
    if len(encoded) >= _LEAST_ENCODED:
        yield encoded.hex()
        yield from _packed(encoded)


def _packed(encoded: bytes) -> Iterator[str]:
    """Yield, for each alignment, the part of the base64 text that does not depend on the bytes before and after the value."""
    for before in range(3):
        padded = bytes(before) + encoded
        whole = len(padded) // 3 * 3
        skipped = (before * 8 + 5) // 6
        for pack in (base64.b64encode, base64.urlsafe_b64encode):
            yield pack(padded[:whole]).decode()[skipped:]
