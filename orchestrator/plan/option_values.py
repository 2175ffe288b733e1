"""Parse values of command-line options: comma-separated lists, shapes, assignments, percentages,
durations.

Each function raises ConfigError with the option, the expected form, and the given text.

>>> words("fp32, fp16", "--dtype"), numbers("1,2,4", "--nodes"), shapes("1n8g,4x8"), seconds("1h30m", "--budget")
(('fp32', 'fp16'), (1, 2, 4), ((1, 8), (4, 8)), 5400.0)
>>> assignments(["bucket_mb=25,100", "sizes='1024,4096'"], "--set")
{'bucket_mb': ('25', '100'), 'sizes': ('1024,4096',)}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.errors import ConfigError

QUOTED = r"""(?:"(?:[^"]|"")*"|'(?:[^']|'')*')"""
"""The regular expression of a value in quotes, in which a doubled quote of the same kind stands for
one.
"""

_LONGEST_LABEL = 80
MOST_S = 1e9
"""Timers on a node overflow above this, and accept no infinity."""
_NUMBER = r"(\d+(?:\.\d+)?)"
_DURATION = re.compile(
    rf"(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m)?(?:{_NUMBER}s)?|{_NUMBER}", re.ASCII
)
_VALUE = re.compile(rf"[ ]*({QUOTED})[ ]*(?=,|$)|([^,]*)", re.DOTALL)
"""A value in quotes, or the text up to the next comma."""


def words(text: str, option: str) -> tuple[str, ...]:
    """Return the words of a comma-separated list, none if the text is empty."""
    listed = tuple(word.strip() for word in text.split(",")) if text else ()
    if not all(listed):
        raise ConfigError(
            f"expected a value before and after each comma, got {text!r}", where=option
        )
    return listed


def numbers(text: str, option: str) -> tuple[int, ...]:
    """Return the whole numbers of a comma-separated list."""
    try:
        return tuple(map(int, words(text, option)))
    except ValueError:
        raise ConfigError(
            f"expected whole numbers separated by commas, got {text!r}", where=option
        ) from None


def shapes(text: str, option: str = "--shape") -> tuple[tuple[int, int], ...]:
    """Return (nodes, gpus) of each shape: ``1n8g,4n8g`` or ``1x8,4x8``."""
    pairs = []
    for word in words(text, option):
        match = re.fullmatch(r"(\d+)n(\d+)g|(\d+)x(\d+)", word)
        if not match:
            raise ConfigError(f"expected shapes such as 1n1g,4n8g, got {word!r}", where=option)
        nodes, gpus = (int(part) for part in match.groups() if part is not None)
        pairs.append((nodes, gpus))
    return tuple(pairs)


def share(text: str, option: str) -> float:
    """Return a percentage such as ``1%`` as a share of 1."""
    number = _positive(text.removesuffix("%")) if text.endswith("%") else None
    if number is None or number >= 100:
        is_bare = not text.endswith("%") and 0 < (_positive(text) or 0) < 100
        hint = f"did you mean {text}%?" if is_bare else ""
        raise ConfigError(
            f"expected a percentage above 0 and below 100, such as 1%, got {text!r}",
            where=option,
            hint=hint,
        )
    return number / 100


def seconds(text: str, option: str, *, least: float | None = None, most: float = MOST_S) -> float:
    """Return the seconds of a duration such as ``90s``, ``30m``, ``1h30m``, ``1.5h`` or ``90``,
    which is ``least`` to ``most``, or, without ``least``, above 0."""
    match = _DURATION.fullmatch(text.strip())
    if not match or not any(match.groups()):
        raise ConfigError(
            f"expected a time such as 90s, 30m, 1h30m or 90 (seconds), got {text!r}", where=option
        )
    units = (86400, 3600, 60, 1, 1)
    number = sum(
        float(part) * unit for part, unit in zip(match.groups(), units, strict=True) if part
    )
    if not (least or 0) <= number <= most or not number and least is None:
        lower = "above 0" if least is None else f"of {shortest(least)} or more"
        upper = "" if number < most else f", at most {shortest(most)}"
        raise ConfigError(f"expected a time {lower}{upper}, got {text!r}", where=option)
    return number


def shortest(number: float) -> str:
    """Return seconds as `seconds` reads them, in few characters.

    >>> shortest(90), shortest(5400), shortest(7200), shortest(0.5), shortest(86400)
    ('90s', '1h30m', '2h', '0.5s', '24h')
    """
    whole = int(number)
    if whole != number or whole < 120:
        return f"{number:g}s"
    parts = (whole // 3600, whole % 3600 // 60, whole % 60)
    return "".join(f"{count}{unit}" for count, unit in zip(parts, "hms", strict=True) if count)


def in_seconds(number: float) -> str:
    """Return seconds, at most 15 digits of them, as an option that takes a duration reads them.

    >>> in_seconds(5400), in_seconds(100000.25)
    ('5400s', '100000.25s')
    """
    return f"{number:.15g}s"


def _positive(text: str) -> float | None:
    if re.fullmatch(r"\d{1,9}(\.\d{1,9})?", text, re.ASCII) and float(text) > 0:
        return float(text)
    return None


def assignments(pairs: Sequence[str], option: str) -> dict[str, tuple[str, ...]]:
    """Return the values of each key of ``key=value`` or ``key=value,value``. Quotes around a value
    keep the commas in it.

    A key that is given twice is an error.
    """
    values: dict[str, tuple[str, ...]] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"expected key=value, got {pair!r}", where=option)
        listed = _values(key, text, option)
        if values.get(key, listed) != listed:
            before, now = (",".join(map(quote, several)) for several in (values[key], listed))
            hint = f"to measure both, write {option} {key}={before},{now}"
            raise ConfigError(
                f"{key} is set twice, to {before!r} and {now!r}", where=option, hint=hint
            )
        values[key] = listed
    return values


def single(values: Mapping[str, tuple[str, ...]], option: str) -> dict[str, str]:
    """Return the one value of each key of `assignments`. A list of several is an error."""
    for key, several in values.items():
        if len(several) > 1:
            hint = "put quotes around a value that contains a comma"
            raise ConfigError(
                f"expected one value, got {','.join(map(quote, several))}",
                where=f"{option} {key}",
                hint=hint,
            )
    return {key: several[0] for key, several in values.items()}


def quote(value: str, separators: str = ",") -> str:
    """Return a value as it is written among others that one of ``separators`` ends: in quotes if it
    would otherwise be read differently. By default, as in a list of `assignments`.

    >>> quote("1024"), quote("1024,4096"), quote('say "hi", twice')
    ('1024', '"1024,4096"', '"say ""hi"", twice"')
    """
    is_plain = (
        value
        and not set(separators) & set(value)
        and value.strip(" ") == value
        and value[0] not in "\"'"
    )
    if is_plain:
        return value
    return '"' + value.replace('"', '""') + '"'


def unquote(text: str) -> str:
    """Return the value of a text that `QUOTED` matches; any other text is returned as it is.

    >>> unquote('"say ""hi"", twice"'), unquote("'1024,4096'"), unquote("1024")
    ('say "hi", twice', '1024,4096', '1024')
    """
    if text[:1] in ('"', "'"):
        return text[1:-1].replace(text[0] * 2, text[0])
    return text


def _values(key: str, text: str, option: str) -> tuple[str, ...]:
    if "," not in text and text.strip(" ")[:1] not in ("'", '"'):
        return (text,)
    values, at = [], 0
    while at <= len(text):
        match = _VALUE.match(text, at)
        assert match  # its last alternative matches any text
        in_quotes, plain = match.groups()
        if plain is not None and not plain.strip(" "):
            hint = 'write "" for an empty value'
            raise ConfigError(
                f"expected a value before and after each comma, got {text!r}",
                where=f"{option} {key}",
                hint=hint,
            )
        if plain is not None and plain.strip(" ")[0] in "\"'":
            hint = "quotes are at both ends of a value; in it, write a quote of the same kind twice"
            raise ConfigError(
                f"expected a closing quote and then a comma or the end, got {text!r}",
                where=f"{option} {key}",
                hint=hint,
            )
        values.append(unquote(in_quotes) if plain is None else plain.strip(" "))
        at = match.end() + 1
    return tuple(dict.fromkeys(values))


def label(text: str, where: str) -> str:
    """Return the label of a bench: one line of at most 80 characters, without spaces around it; it
    may be empty.
    """
    stripped = text.strip()
    if not stripped.isprintable() or len(stripped) > _LONGEST_LABEL:
        shown = repr(
            stripped if len(stripped) <= _LONGEST_LABEL else f"{stripped[:_LONGEST_LABEL]}…"
        )
        raise ConfigError(
            f"expected one line of at most {_LONGEST_LABEL} printable characters, got {shown}",
            where=where,
        )
    return stripped


def as_written(value: Any) -> str:
    """Return the text of an option's value for ``--set``."""
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)
