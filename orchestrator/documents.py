"""Read documents of orch's own, JSON in files and messages, as the dataclasses that stand for them.

The annotations of a dataclass give the expected types, and `document_field` adds what they cannot
express. Unknown keys are ignored: later versions write more.

>>> from dataclasses import dataclass
>>> @dataclass
... class Attempt:
...     stage: str
...     hosts: tuple[str, ...] = ()
>>> read(Attempt, {"stage": "links", "hosts": ["a", "b"], "of_a_later_version": 1})
Attempt(stage='links', hosts=('a', 'b'))
>>> read(tuple[Attempt, ...], [{"stage": "links", "hosts": ["a", 5]}])
Traceback (most recent call last):
orchestrator.documents.Invalid: [0].hosts: expected a list of texts, got ['a', 5]
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from orchestrator.errors import OrchError

T = TypeVar("T")
Read = Callable[[Any], Any]
"""Turns a value of a document into what stands for it. Raises Invalid."""

_MOST = sys.float_info.max
_SINGULAR = {str: "text", int: "a whole number", float: "a number", bool: "true or false"}
_PLURAL = {str: "texts", int: "whole numbers", float: "numbers", bool: "booleans"}
_FAULTS = (TypeError, ValueError, KeyError, AttributeError, IndexError, OrchError)
"""What the functions of `document_field` and the constructors of dataclasses raise for invalid
values.
"""


class Invalid(ValueError):
    """A value that is not as expected, at ``place`` in its document: ``ranks[0].rank``."""

    def __init__(self, message: str, *steps: str | int) -> None:
        self.message = message
        self.steps = steps
        super().__init__(f"{self.place}: {message}" if steps else message)

    @property
    def place(self) -> str:
        """The keys and indexes that lead to the value."""
        parts = [f"[{step}]" if isinstance(step, int) else f".{step[:80]}" for step in self.steps]
        return "".join(parts).removeprefix(".")

    def within(self, step: str | int) -> Invalid:
        """Return the error as seen from the object or list around it."""
        return Invalid(self.message, step, *self.steps)

    def inside(self) -> Invalid:
        """Return the error as seen from the first step of its place."""
        return Invalid(self.message, *self.steps[1:])


def short(value: Any) -> str:
    """Return a value's representation for a message, in at most 120 characters."""
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}…"


def document_field(
    *,
    key: str = "",
    by: Read | None = None,
    required: bool = False,
    annotates: bool = False,
) -> Mapping[str, Any]:
    """Return the metadata of a dataclass field that its type cannot say, for `field` or
    `Annotated`.

    ``key`` is its name in the document. ``by`` reads all but null. A ``required`` field has a
    default for code, but must be in the document. An invalid value of a field that only
    ``annotates`` others is left out.
    """
    return {"document": (key, by, required, annotates)}


def keys_of(kind: Any) -> frozenset[str]:
    """Return the keys that a dataclass has in a document."""
    return frozenset(item.metadata.get("document", ("",))[0] or item.name for item in fields(kind))


def strict_reader(kind: type[T]) -> Callable[[Any], T]:
    """Return a reader of a ``kind`` that refuses unknown keys: what they mean would be missed."""

    def read_closed(value: Any) -> T:
        if isinstance(value, dict) and (unknown := sorted(value.keys() - keys_of(kind))):
            raise Invalid(f"expected one of {', '.join(sorted(keys_of(kind)))}", unknown[0])
        return read(kind, value)

    return read_closed


def check_schema(content: Mapping[str, Any], schema: int) -> None:
    """Raise Invalid for a document of another schema."""
    if type(content.get("schema")) is not int or content["schema"] != schema:
        raise Invalid(f"expected schema {schema}, got {short(content.get('schema'))}")


class Reader:
    """A way to read documents.

    A ``lenient`` one never fails for less than a whole document: it leaves out the smallest part
    around an invalid value that has a default or is an item of a list or object. With
    ``null_is_missing``, a null counts as a missing key. ``most_text`` and ``most_rows`` cut what
    an untrusted node sends.
    """

    def __init__(
        self,
        *,
        lenient: bool = False,
        null_is_missing: bool = False,
        most_text: int | None = None,
        most_rows: int | None = None,
    ) -> None:
        self._lenient = lenient
        self._null_is_missing = null_is_missing
        self._most_text = most_text
        self._most_rows = most_rows
        self._compiled: dict[Any, Read] = {}

    def read(self, kind: type[T], value: Any) -> T:
        """Return ``value`` as a ``kind``. Raises Invalid."""
        result: T = self._of(kind)(value)
        return result

    def _of(self, kind: Any) -> Read:
        if kind not in self._compiled:
            self._compiled[kind] = self._compile(kind)
        return self._compiled[kind]

    def _compile(self, kind: Any) -> Read:
        origin, of = get_origin(kind), get_args(kind)
        if kind in (Any, object):
            return lambda value: value
        if origin in (Union, UnionType):
            return self._union(of)
        if origin is Literal:
            return _literal(of)
        if origin is tuple:
            if of[1:] == (...,):
                return self._list(of[0])
            return self._row(of)
        if origin in (dict, Mapping):
            return self._mapping(of[1])
        if is_dataclass(kind):
            return self._object(kind)
        if kind is Path:
            return lambda value: Path(self._of(str)(value))
        if kind not in _SINGULAR:
            return _instance(origin or kind)
        if kind is str and self._most_text is not None:
            return self._cut_text
        return _plain((kind,))

    def _cut_text(self, value: Any) -> str:
        if not isinstance(value, str):
            raise _type_error("text", value)
        return value[: self._most_text]

    def _union(self, of: tuple[Any, ...]) -> Read:
        others = tuple(kind for kind in of if kind is not NoneType)
        read = self._of(others[0]) if len(others) == 1 else _plain(others)
        if len(others) == len(of):
            return read
        return lambda value: None if value is None else read(value)

    def _row(self, of: tuple[Any, ...]) -> Read:
        reads = [self._of(kind) for kind in of]

        def read_row(value: Any) -> tuple[Any, ...]:
            if not isinstance(value, list | tuple) or len(value) != len(reads):
                raise _type_error(f"a list of {len(reads)}", value)
            return tuple(read(item) for read, item in zip(reads, value, strict=True))

        return read_row

    def _list(self, kind: Any) -> Read:
        read = self._of(kind)
        items = "objects" if is_dataclass(kind) else _PLURAL.get(kind, "valid values")

        def read_list(value: Any) -> tuple[Any, ...]:
            if not isinstance(value, list | tuple):
                raise _type_error(f"a list of {items}", value)
            result = []
            for index, item in enumerate(value[: self._most_rows]):
                try:
                    result.append(read(item))
                except Invalid as error:
                    if self._lenient:
                        continue
                    if not error.steps:
                        raise _type_error(f"a list of {items}", value) from None
                    raise error.within(index) from None
            return tuple(result)

        return read_list

    def _mapping(self, kind: Any) -> Read:
        read = self._of(kind)

        def read_mapping(value: Any) -> dict[str, Any]:
            if not isinstance(value, dict):
                raise _type_error("an object", value)
            result = {}
            for name, item in list(value.items())[: self._most_rows]:
                try:
                    result[name] = read(item)
                except Invalid as error:
                    if not self._lenient:
                        raise error.within(name) from None
            return result

        return read_mapping

    def _object(self, kind: Any) -> Read:
        types = get_type_hints(kind, include_extras=True)
        parts = [_Field(self._of, item, types[item.name]) for item in fields(kind) if item.init]

        def read_object(value: Any) -> Any:
            if isinstance(value, kind):
                return value
            if not isinstance(value, dict):
                raise _type_error("an object", value)
            values = {}
            for part in parts:
                found = value.get(part.key, MISSING)
                if found is None and self._null_is_missing:
                    found = MISSING
                try:
                    if found is not MISSING:
                        values[part.name] = part.read(found)
                    elif part.is_needed:
                        raise _missing(part.read)
                    elif not part.has_default:
                        values[part.name] = None
                except Invalid as error:
                    if not (part.has_default and (part.annotates or self._lenient)):
                        raise error.within(part.key) from None
            try:
                return kind(**values)
            except _FAULTS as error:
                raise Invalid(str(error)) from error

        return read_object


class _Field:
    """A field of a dataclass as it is read from an object."""

    def __init__(self, of: Callable[[Any], Read], item: Any, kind: Any) -> None:
        said = item.metadata
        if get_origin(kind) is Annotated:
            kind, said = get_args(kind)
        key, by, required, annotates = said.get("document", ("", None, False, False))
        self.name = item.name
        self.key = key or item.name
        self.annotates = annotates
        self.has_default = not (item.default is MISSING and item.default_factory is MISSING)
        self.is_needed = required or not (self.has_default or NoneType in get_args(kind))
        self.read = _guard(by, NoneType in get_args(kind)) if by else of(kind)
        if not by and self.name.endswith("_s") and kind in (float, float | None):
            self.read = _plain(get_args(kind) or (kind,), "seconds")


def _plain(kinds: tuple[Any, ...], expected: str = "") -> Read:
    """Return a reader of values of these types: text, numbers, booleans, null."""
    types, has_range = set(kinds), float in kinds
    if has_range:
        types.add(int)
    words = expected or " or ".join(_SINGULAR[kind] for kind in kinds if kind is not NoneType)

    def read_plain(value: Any) -> Any:
        kind = type(value)
        if kind not in types:
            raise _type_error(words, value)
        if has_range and kind in (int, float) and not -_MOST <= value <= _MOST:
            raise _type_error(words, value)
        return value

    return read_plain


def _instance(kind: Any) -> Read:
    """Return a reader of what has been read before."""

    def read_instance(value: Any) -> Any:
        if not isinstance(value, kind):
            raise _type_error(kind.__name__, value)
        return value

    return read_instance


def _literal(values: tuple[Any, ...]) -> Read:
    def read_literal(value: Any) -> Any:
        if not isinstance(value, str) or value not in values:
            raise _type_error(f"one of {', '.join(values)}", value)
        return value

    return read_literal


def _guard(by: Read, may_be_none: bool) -> Read:
    def read_guarded(value: Any) -> Any:
        if value is None and may_be_none:
            return None
        try:
            return by(value)
        except Invalid:
            raise
        except KeyError as error:
            raise Invalid(f"expected {error.args[0]}, it is missing") from error
        except _FAULTS as error:
            raise Invalid(str(error)) from error

    return read_guarded


def _missing(read: Read) -> Invalid:
    """Return the error for a missing value, from that for a null in its place."""
    try:
        read(None)
    except Invalid as error:
        return Invalid(error.message.replace(", got None", ", it is missing"))
    return Invalid("expected a value, it is missing")


def _type_error(expected: str, value: Any) -> Invalid:
    return Invalid(f"expected {expected}, got {short(value)}")


read = Reader().read
"""Read a value strictly: the first invalid part of it raises Invalid."""
read_leniently = Reader(lenient=True).read
"""Read what can be read of a value, as `Reader` says; raises Invalid only for the whole of it."""
