"""Strict reading of the text and YAML files that users write. The only module that uses PyYAML.

A document is plain values (mapping, list, text, number, true, false, null) and the line of each of
them. Scalars follow YAML 1.2, so YAML 1.1's surprises stay text, and a schema can report them:
``on``, ``no``, ``022``, ``12:30``, ``0x16``, ``2020-01-01``. Keys are always text, as written.
Refused, each with file, line and remedy: duplicate keys, tags, ``<<``, more than 100 aliases, more
than 50 levels, more than 1 MiB, anything that is not UTF-8, tabs as indentation.

Files of other tools may need what these refuse. `loads` with ``foreign`` reads a tagged value as a
`Tagged`, merges ``<<`` and takes the last of two equal keys.

>>> document = loads("hosts:\\n  node1: {gpus: 8, at: 12:30}\\n", "lab.yaml")
>>> document.value, document.line(("hosts", "node1", "gpus"))
({'hosts': {'node1': {'gpus': 8, 'at': '12:30'}}}, 2)
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from orchestrator.errors import ConfigError

_KeyPath = tuple[str | int, ...]

_MAX_BYTES = 1 << 20
_MAX_ALIASES = 100
_MAX_DEPTH = 50
# Nested aliases can stand for more values than there are atoms; without aliases, 1 MiB holds at
# most this many.
_MAX_VALUES = 600_000
_WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None} | {
    word: value
    for value, words in ((True, "true True TRUE"), (False, "false False FALSE"))
    for word in words.split()
}
# libyaml reads ten times as fast as PyYAML's own parser. Both read the same, but for these: a tab, a
# line break of another system, a mark of the byte order, a tag, a key after "? " or a word with "?"
# at its end, a comment behind "|", and a document of which only its "---" is there.
_QUICK = getattr(yaml, "CSafeLoader", None)
_SLOW = re.compile(
    r"[\t\r\x85\u2028\u2029\ufeff]|(?:^|[\s\[{,:-])!|\?(?=[\s,\[\]{}]|$)|[|>].*#|^---",
    re.MULTILINE,
)
_INT = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(
    r"[-+]?(?=\.?[0-9])(?:0|[1-9][0-9]{0,17})?(?:\.[0-9]{1,40})?(?:[eE][-+]?[0-9]{1,3})?"
)

_COLUMNS = "keys of one mapping, and the '-' of one list, begin in one column"
_OPENED = "what is open begins on line {line}"
_FAULTS = (
    (r".*'\\t'.*", "a tab", "indent with spaces, not with tabs"),
    (
        "mapping values are not allowed.*",
        "a second ': ' in one value, or a key in another column",
        f"{_COLUMNS}; text with ': ' needs quotes",
    ),
    (
        "found character (.*) that cannot start any token",
        r"a value that begins with \1",
        "text that begins with '@', '%' or '`' needs quotes",
    ),
    ("could not find expected ':'", "a line without ': '", "write it as KEY: VALUE"),
    (r"expected ',' or ('.'), but got (.*)", r"\2 in place of ',' or \1", _OPENED),
    ("found unexpected end of stream", "text without its closing quote", _OPENED),
    (
        "expected <block end>.*",
        "something that belongs to no list or mapping",
        f"{_COLUMNS}; text with quotes or brackets at its beginning needs quotes around all of it",
    ),
    (
        "expected the node content, but found the end",
        "the end in place of a value",
        "close every bracket",
    ),
    (
        "expected the node content, but found (.*)",
        r"\1 in place of a value",
        "text that begins with it needs quotes",
    ),
    (
        "found unknown escape character (.*)",
        r"\\ with \1 in double quotes",
        r"write \\, or use single quotes",
    ),
    ("expected chomping.*", "text behind '|' or '>'", "the text begins on the next line"),
)
"""What PyYAML says of a fault, what came in the words of its reader, and the remedy. ``line`` is
where the value begins."""


@dataclass(frozen=True, slots=True)
class Document:
    """The value of one file; ``lines`` maps the path of keys and indices of every value to its
    line, from 1. ``root`` is the path of the value in its file, if it is a part of it."""

    value: Any
    lines: Mapping[_KeyPath, int]
    source: str
    root: _KeyPath = ()

    def line(self, path: _KeyPath = ()) -> int:
        """Return the line of the value at ``path``, or of the closest value around it."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def where(self, path: _KeyPath = ()) -> str:
        """Return file, line and keys of the value at ``path``, or of the closest value around it,
        as an error names them.
        """
        keys = "".join(
            f"[{key}]" if isinstance(key, int) else f".{key}" for key in (*self.root, *path)
        ).removeprefix(".")
        return f"{self.source}:{self.line(path)}" + (f": {keys}" if keys else "")

    def part(self, path: _KeyPath) -> Document:
        """Return the value at ``path`` as a document of its own. Raises KeyError, IndexError or
        TypeError if there is none.
        """
        value = self.value
        for key in path:
            value = value[key]
        lines = {
            at[len(path) :]: line for at, line in self.lines.items() if at[: len(path)] == path
        }
        return Document(value, lines, self.source, (*self.root, *path))


@dataclass(frozen=True, slots=True)
class Tagged:
    """A value with a tag, such as a value encrypted by Ansible Vault: only its tag is known, never
    its content.
    """

    tag: str


def load(path: Path) -> Document:
    """Read one YAML file. Raises ConfigError with file and line for any fault in it."""
    return loads(read_text(path), str(path))


def loads(text: str, source: str, *, foreign: bool = False) -> Document:
    """Read YAML from ``text``; ``source`` is its name in errors, ``foreign``: another tool's file.
    Raises ConfigError.
    """
    if len(text.encode(errors="replace")) > _MAX_BYTES:
        raise ConfigError("expected at most 1 MiB, got more", where=source)
    if _QUICK and not _SLOW.search(text):
        with suppress(ConfigError):  # which the other parser finds as well, and says in its words
            return _Composer(source, foreign).document(text, _QUICK)
    return _Composer(source, foreign).document(text, yaml.SafeLoader)


def read_text(path: Path) -> str:
    """Return the text of a small file. Raises ConfigError if it is missing, no regular file, too
    large, empty or not UTF-8.
    """
    source = str(path)
    try:
        if path.is_dir():
            raise ConfigError(
                "expected a file, got a directory", where=source, hint="name a file in it"
            )
        if path.exists() and not path.is_file():
            raise ConfigError("expected a regular file, got a pipe, socket or device", where=source)
        with path.open("rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(
            "expected a file, found none", where=source, hint="check the path"
        ) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise ConfigError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}", where=source
        ) from error
    if len(data) > _MAX_BYTES:
        raise ConfigError("expected at most 1 MiB, got more", where=source)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        got = f"byte 0x{data[error.start]:02x}"
        raise ConfigError(
            f"expected UTF-8 text, got {got}",
            where=f"{source}:{line}",
            hint="save the file as UTF-8",
        ) from None
    if not text.strip():
        raise ConfigError("expected some content, got an empty file", where=source)
    return text


class _Composer:
    """Builds one document from parser events, and limits the depth of nesting."""

    def __init__(self, source: str, foreign: bool = False) -> None:
        self.source = source
        self.foreign = foreign
        self.lines: dict[_KeyPath, int] = {}
        self.anchors: dict[str, tuple[Any, int]] = {}
        self.aliases = 0
        self.values = 0
        self.events: Iterator[yaml.Event] = iter(())

    def document(self, text: str, parser: Any) -> Document:
        self.events = iter(yaml.parse(text, Loader=parser))
        try:
            next(self.events)
            if isinstance(next(self.events), yaml.StreamEndEvent):
                raise ConfigError("expected some content, got an empty file", where=self.source)
            value = self._value(next(self.events), ())
            next(self.events)
            following = next(self.events)
            if isinstance(following, yaml.DocumentStartEvent):
                following = self._after_empty_document() or following
        except yaml.YAMLError as error:
            raise self._syntax(error, text) from None
        except (
            ValueError,
            OverflowError,
        ) as error:  # PyYAML on an escape or directive with an impossible number
            raise ConfigError(f"expected YAML, got {error}", where=self.source) from None
        if not isinstance(following, yaml.StreamEndEvent):
            raise self._refusal(
                following,
                "expected one document, got a second one",
                "remove '---' and everything after it",
            )
        return Document(value, self.lines, self.source)

    def _after_empty_document(self) -> yaml.Event | None:
        """Return what follows a document without content, as after a last ``---``; else None."""
        content = next(self.events)
        if isinstance(content, yaml.ScalarEvent) and not content.value and content.style is None:
            next(self.events)
            return next(self.events)
        return None

    def _value(self, event: yaml.Event, path: _KeyPath) -> Any:
        self._count(event)
        self.lines.setdefault(path, _line(event))
        if isinstance(event, yaml.AliasEvent):
            return self._alias(event)
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.tag is not None and not self.foreign:
            hint = "remove the tag; text that begins with '!' needs quotes"
            raise self._refusal(event, f"expected no tags, got {_shorten_tag(event.tag)}", hint)
        before = self.values
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(event.value) if event.implicit[0] else self._text(event)
        elif len(path) >= _MAX_DEPTH:
            raise self._refusal(
                event, f"expected at most {_MAX_DEPTH} levels, got more", "flatten it"
            )
        else:
            value = (
                self._mapping(path)
                if isinstance(event, yaml.MappingStartEvent)
                else self._sequence(path)
            )
        if (
            event.tag is not None
            and event.tag != "!unsafe"
            and not event.tag.startswith("tag:yaml.org,")
        ):
            value = Tagged(event.tag if event.tag == "!vault" else _shorten_tag(event.tag))
        if event.anchor is not None:
            self.anchors[event.anchor] = value, self.values - before + 1
        return value

    def _mapping(self, path: _KeyPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if self.foreign and _is_merge(event):
                sources = self._value(next(self.events), path)
                for source in reversed(sources if isinstance(sources, list) else [sources]):
                    merged |= source if isinstance(source, dict) else {}
                continue
            key = self._key(event)
            place = (*path, key)
            if key in mapping and not self.foreign:
                first = self.lines[place]
                raise self._refusal(
                    event,
                    f"expected each key once, got {key!r} again",
                    f"it is already on line {first}",
                )
            self.lines[place] = _line(event)
            mapping[key] = self._value(next(self.events), place)
        return {**merged, **mapping}

    def _key(self, event: yaml.Event) -> str:
        self._count(event)
        if not isinstance(event, yaml.ScalarEvent):
            raise self._refusal(
                event,
                "expected a word as key, got something else",
                "put quotes around a key with brackets",
            )
        if event.tag is not None:
            raise self._refusal(
                event, f"expected no tags, got {_shorten_tag(event.tag)}", "remove the tag"
            )
        if _is_merge(event):
            raise self._refusal(
                event, "expected a key, got the merge key '<<'", "write the keys out"
            )
        if event.anchor is not None:
            self.anchors[event.anchor] = event.value, 1
        return self._text(event)

    def _text(self, event: yaml.ScalarEvent) -> str:
        """Return the text of a scalar. JSON escapes may split a character into two halves; one half
        alone cannot be encoded.
        """
        try:
            return event.value.encode("utf-16", "surrogatepass").decode("utf-16")
        except UnicodeDecodeError:
            raise self._refusal(
                event,
                "expected text, got half of a surrogate pair",
                r"an escape such as \ud83d needs its other half",
            ) from None

    def _sequence(self, path: _KeyPath) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self._value(event, (*path, len(items))))
        return items

    def _alias(self, event: yaml.AliasEvent) -> Any:
        self.aliases += 1
        if self.aliases > _MAX_ALIASES:
            raise self._refusal(
                event, f"expected at most {_MAX_ALIASES} aliases, got more", "write the values out"
            )
        if event.anchor not in self.anchors:
            hint = "an anchor must come before its aliases, not around them; text that begins with '*' needs quotes"
            raise self._refusal(event, "expected a known anchor, got '*…'", hint)
        value, size = self.anchors[event.anchor]
        self._count(event, size)
        return value

    def _count(self, event: yaml.Event, size: int = 1) -> None:
        self.values += size
        if self.values > _MAX_VALUES:
            raise self._refusal(
                event,
                f"expected at most {_MAX_VALUES} values, got more through aliases",
                "write them out",
            )

    def _refusal(self, event: yaml.Event, message: str, hint: str) -> ConfigError:
        return ConfigError(message, where=f"{self.source}:{_line(event)}", hint=hint)

    def _syntax(self, error: yaml.YAMLError, text: str) -> ConfigError:
        if isinstance(error, yaml.reader.ReaderError):
            line = text.count("\n", 0, error.position) + 1
            got = f"the control character {chr(error.character)!r}"
            return ConfigError(
                f"expected text, got {got}", where=f"{self.source}:{line}", hint="remove it"
            )
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        begin = getattr(error, "context_mark", None) or mark
        problem = str(getattr(error, "problem", None) or error).replace("'<stream end>'", "the end")
        got, hint = f": {problem}", ""
        if problem == "could not find expected ':'":
            mark = begin  # the problem is seen where the next line ends
        for pattern, words, remedy in _FAULTS:
            if found := re.fullmatch(pattern, problem):
                got = f" {found.expand(words)}"
                hint = remedy.format(line=begin.line + 1 if begin else 1)
                break
        return ConfigError(
            f"expected YAML, got{got}",
            where=f"{self.source}:{mark.line + 1 if mark else 1}",
            hint=hint,
        )


def _is_merge(event: yaml.Event) -> bool:
    return isinstance(event, yaml.ScalarEvent) and event.value == "<<" and bool(event.implicit[0])


def _shorten_tag(tag: str) -> str:
    """Return a tag for a message. What follows a '!' may be text that needs quotes, such as a
    password.
    """
    if tag == "!" or tag.startswith("tag:yaml.org,"):
        return f"'{tag}'"
    return "'!…'"


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def _scalar(text: str) -> Any:
    """Return the value of an unquoted word: YAML 1.2's null, true, false and decimal numbers;
    everything else is text.
    """
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if abs(number) != float("inf") else text
    return text
