"""The forms in which a program may print a value of its environment, and the search for remnants.

The source of this module also runs on nodes, as part of a program that prints them.
"""

from __future__ import annotations

import base64
import html
import json
import pprint
import re
import shlex
from collections.abc import Callable, Iterator
from urllib.parse import quote, quote_plus

__all__ = ["FORMS", "INDENTS", "all_forms", "parts", "remaining", "wrapped"]


def ansi(text: str) -> str:
    """Return ``$'…'`` as a shell in the C locale writes it: other bytes than ASCII in octal."""
    short = {10: "\\n", 9: "\\t", 39: "\\'", 92: "\\\\"}
    return (
        "$'"
        + "".join(
            short.get(b) or (chr(b) if 32 <= b < 127 else f"\\{b:03o}") for b in text.encode()
        )
        + "'"
    )


def nested(times: int) -> Callable[[str], str]:
    def form(text: str) -> str:
        for _ in range(times):
            text = json.dumps({"a": text})
        return text

    return form


def packed(before: int, pack: Callable[[bytes], bytes] = base64.b64encode) -> Callable[[str], str]:
    return lambda text: pack(b"u" * before + text.encode() + b"zz").decode()


FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "single quotes": shlex.quote,
    "double quotes": lambda text: '"' + re.sub(r'(["$`\\])', r"\\\1", text) + '"',
    "backslashes": lambda text: re.sub(r"([^A-Za-z0-9_])", r"\\\1", text),
    "$'…'": ansi,
    "repr": repr,
    "ascii": ascii,
    "repr of bytes": lambda text: repr(text.encode()),
    "repr of a repr": lambda text: repr({"a": repr([text])}),
    "pprint": lambda text: pprint.pformat({"environment": {"a": text}}, width=24),
    "json": nested(1),
    "json, unicode": lambda text: json.dumps([text], ensure_ascii=False),
    "json in json": nested(2),
    "json in json in json": nested(3),
    "url": lambda text: quote(text, safe=""),
    "url, slashes": quote,
    "url, lower": lambda text: re.sub(
        "%[0-9A-F]{2}", lambda match: match[0].lower(), quote(text, safe="")
    ),
    "url twice": lambda text: quote(quote(text, safe=""), safe=""),
    "form": quote_plus,
    "url of json": lambda text: quote(json.dumps(text)),
    "each character in hex": lambda text: "".join(f"\\x{byte:02x}" for byte in text.encode()),
    "each character of a url": lambda text: "".join(f"%{byte:02X}" for byte in text.encode()),
    "hex": lambda text: text.encode().hex(),
    "html": html.escape,
    "base64 of json": lambda text: packed(0)(json.dumps(text)),
    "base64 in json": lambda text: json.dumps({"a": packed(1)(text)}),
    **{f"base64 after {number}": packed(number) for number in range(4)},
    **{f"urlsafe after {number}": packed(number, base64.urlsafe_b64encode) for number in range(3)},
}
INDENTS = ("", "    ", "│ ", "'", '    "', "[1,3]<stderr>:", "[rank3]: ")


def wrapped(text: str, width: int, indent: str) -> str:
    """Return the text in lines of ``width`` characters, each but the first after an indent, or a
    launcher's tag.
    """
    return ("\n" + indent).join(text[start : start + width] for start in range(0, len(text), width))


def remaining(text: str, form: str, indent: str = "") -> set[str]:
    """Return the parts of eight characters of a form that are still in a text, whatever wraps it."""
    text = re.sub(r"\s+", "", text.replace("\n" + indent, "").replace("(not shown)", "\0"))
    form = re.sub(r"\s+", "", form)
    return {
        form[start : start + 8] for start in range(len(form) - 7) if form[start : start + 8] in text
    }


def all_forms(secret: str) -> Iterator[str]:
    """Yield a text of each form, whole and wrapped at several widths, and all of them on one line
    and wrapped together.
    """
    texts = [f"{name} = {form(secret)}" for name, form in FORMS.items()]
    yield from texts
    for width, indent in zip((7, 20, 33, 60, 79, 9, 41), INDENTS, strict=True):
        yield from (wrapped(text, width, indent) for text in texts)
    yield " ".join(texts)
    yield wrapped("; ".join(texts), 80, "")


def parts(secret: str) -> set[str]:
    """Return every part of eight characters of a secret, and of twelve of it in base64 and in
    hexadecimal.
    """
    texts = [packed(number)(secret)[4 * (number > 0) : -4] for number in range(3)] + [
        FORMS["hex"](secret)
    ]
    eights = {secret[start : start + 8] for start in range(len(secret) - 7)}
    return eights | {text[start : start + 12] for text in texts for start in range(len(text) - 11)}
