"""Secret values taken out of text that people and programs read: errors, events, records, reports.

A value comes back in other clothes than it was given in: quoted for a shell, escaped in JSON or in a Python traceback, encoded
in a URL, packed into base64 with something before it. All of these are looked for. A raw log keeps its bytes.

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
# A shorter value is replaced only where it stands alone: "1" is a part of every text.
_SHORT = 4
_LEAST_ENCODED = 8


@dataclass(frozen=True, slots=True)
class Redaction:
    """Takes the values it was made for out of texts and of JSON values."""

    pattern: re.Pattern[str] | None

    def text(self, text: str) -> str:
        """Return the text without the values."""
        return self.pattern.sub(SHOWN, text) if self.pattern else text

    def value(self, value: Any) -> Any:
        """Return a JSON value without the values, in keys and texts however deep."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {self.text(str(key)): self.value(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [self.value(each) for each in value]
        return value


def redaction(values: Iterable[str]) -> Redaction:
    """Return what takes these values, in all their forms, out of texts. Empty values are passed over."""
    given = sorted({value for value in values if value.strip()}, key=lambda value: (-len(value), value))
    forms = dict.fromkeys(form for value in given for form in _forms(value))
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
    for how in (quote, quote_plus):
        yield how(encoded, safe="")
        yield how(encoded)
        yield re.sub("%[0-9A-F]{2}", lambda match: match[0].lower(), how(encoded, safe=""))
    if len(encoded) >= _LEAST_ENCODED:
        yield encoded.hex()
        yield from _packed(encoded)


def _packed(encoded: bytes) -> Iterator[str]:
    """Yield the part of its base64 that does not depend on what stands before and after the value, at each alignment."""
    for before in range(3):
        padded = bytes(before) + encoded
        whole = len(padded) // 3 * 3
        skipped = (before * 8 + 5) // 6
        for pack in (base64.b64encode, base64.urlsafe_b64encode):
            yield pack(padded[:whole]).decode()[skipped:]
