"""The content of a run file (``orch bench --file``): the choices of a bench, where a list stands
for several configurations.

The command line overrides it. Keys and types are checked here, ranges of numbers and the words of a
framework in the spec, whatever the source of a value; `RunFile.places` says where in the file a
value is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from orchestrator.errors import ConfigError, nearest, raise_all
from orchestrator.options import OPTIONS
from orchestrator.plan.expectations import Expectation, expectation_of
from orchestrator.plan.matrix import Axis, axis
from orchestrator.plan.option_values import label, shapes
from orchestrator.plan.variables import check_variable

if TYPE_CHECKING:
    from orchestrator.yamlfile import Document

_KeyPath = tuple[str | int, ...]
_Types = Mapping[str, tuple[tuple[type, ...], str]]
"""The types of the values of each key, and how a message describes them."""


def _at(*places: str) -> _Types:
    rows = [(name, option.run_file) for name, option in OPTIONS.items() if option.run_file]
    return {row.key or name: (row.types, row.expected) for name, row in rows if row.place in places}


LISTS = _at("list")
"""Keys that take one value or a list of values; options and env map names to these."""
OF_A_RUN = _at("run")
"""Keys that take one value, also in an entry of ``include``."""
OF_ALL_RUNS = _at("all_runs")
OF_THE_BENCH = _at("bench", "all_runs")
_KEYS = (*LISTS, *OF_A_RUN, *OF_THE_BENCH, "include", "exclude")
MAPPINGS = ("options", "env")
_WAYS = ("shape", "ladder", "nodes", "gpus")


@dataclass(frozen=True, slots=True)
class RunFile:
    """The choices of a run file. Names are its keys, ``options.<name>`` and ``env.<name>``; a shape
    is ``nodes`` and ``gpus``.

    Options and variables are texts, as on the command line; a variable of None is not set.
    ``places`` maps a name and a value to file, line and key, a bound by its text.
    """

    single: Mapping[str, Any] = field(default_factory=dict)
    lists: tuple[Axis, ...] = ()
    include: tuple[Mapping[str, Any], ...] = ()
    exclude: tuple[Mapping[str, Any], ...] = ()
    ladder: bool = False
    repeats: int | None = None
    label: str = ""
    expect: tuple[Expectation, ...] = ()
    places: Mapping[tuple[str, Any], str] = field(default_factory=dict, compare=False)

    def values_of(self, name: str) -> tuple[Any, ...]:
        """Return the values of a name: one by itself, or those in a list."""
        if name in self.single:
            return (self.single[name],)
        choices = [choice for alternatives in self.lists for choice in alternatives]
        return tuple(choice[name] for choice in choices if name in choice)

    def chooses(self, name: str) -> bool:
        """Return True if the file chooses a value of this name, with ``nodes`` also by a ladder."""
        is_own = name == "repeats" and self.repeats is not None or name == "nodes" and self.ladder
        return is_own or bool(self.values_of(name))

    def complete(self, values: Mapping[str, tuple[Any, str]]) -> RunFile:
        """Return the file with further choices: (value, its place) of ``repeats`` and names of
        `single`; a tuple is a list.
        """
        single, lists, places = dict(self.single), list(self.lists), dict(self.places)
        repeats = self.repeats
        for name, (value, place) in values.items():
            if name == "repeats":
                repeats = value
            elif isinstance(value, tuple):
                lists.append(axis(name, value))
                places |= {(name, item): place for item in value}
            else:
                single[name] = value
                places[name, value] = place
        return replace(self, single=single, lists=tuple(lists), repeats=repeats, places=places)


def run_file_of(document: Document) -> RunFile:
    """Return the choices of a run file. Raises ConfigError, or Faults with all of them, each with
    file, line and key.
    """
    if not isinstance(document.value, dict):
        hint = f"valid keys: {', '.join(_KEYS)}"
        raise ConfigError("expected a mapping of choices", where=document.where(), hint=hint)
    reader = _Reader(document)
    choices = reader.read(document.value)
    raise_all(reader.faults)
    return choices


class _Reader:
    """Reads one document, and gathers its faults and the places of its values."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.faults: list[ConfigError] = []
        self.places: dict[tuple[str, Any], str] = {}

    def read(self, content: Mapping[str, Any]) -> RunFile:
        self._check_keys(content, _KEYS, ())
        single: dict[str, Any] = {}
        lists: list[Axis] = []
        for name, path, value in self._name_choices(content, ()):
            if not isinstance(value, list):
                single |= self._value(name, path, value)
            elif alternatives := self._alternatives(name, path, value):
                lists.append(alternatives)
        single |= self._check_types(content, OF_A_RUN, ())
        bench = self._check_types(content, OF_THE_BENCH, ())
        single |= {name: bench[name] for name in OF_ALL_RUNS if name in bench}
        listed = _values_of(lists) | (
            {"nodes": set(), "gpus": set()} if bench.get("ladder") else {}
        )
        exclude = [
            entry
            for entry, path in self._entries(content, "exclude")
            if self._is_of_lists(entry, path, listed)
        ]
        return RunFile(
            single=single,
            lists=tuple(lists),
            include=tuple(entry for entry, _ in self._entries(content, "include")),
            exclude=tuple(exclude),
            ladder=bench.get("ladder", False),
            repeats=self._repeats(bench.get("repeats")),
            label=self._label(bench.get("label", "")),
            expect=tuple(self._expectations(bench.get("expect", []))),
            places=self.places,
        )

    def _check_keys(
        self, content: Mapping[str, Any], keys: Collection[str], path: _KeyPath
    ) -> None:
        for key in content:
            if key == "matrix":
                hint = "write its lists as keys of the file, and include: and exclude: next to them"
            else:
                hint = f"valid keys: {', '.join(keys)}{nearest(key, keys)}"
            if key not in keys:
                where = f"{self.document.source}:{self.document.line((*path, key))}"
                self.faults.append(ConfigError(f"unknown key {key}", where=where, hint=hint))
        ways = [key for key in _WAYS if content.get(key) not in (None, False)]
        if len(ways) > 1 and (
            ways[0] == "shape"
            or ways[0] == "ladder"
            and any(isinstance(content.get(way), list) for way in ways)
        ):
            self._fault(
                (*path, ways[0]),
                f"expected shape alone, or ladder, or lists of nodes and gpus, got {', '.join(ways)}",
            )

    def _name_choices(
        self, content: Mapping[str, Any], path: _KeyPath
    ) -> Iterator[tuple[str, _KeyPath, Any]]:
        """Yield name, path and value of every choice that may be a list, in the order of `LISTS`."""
        for key in LISTS:
            if key not in content:
                continue
            if key not in MAPPINGS:
                yield key, (*path, key), content[key]
            elif isinstance(content[key], dict):
                yield from (
                    (f"{key}.{name}", (*path, key, name), value)
                    for name, value in content[key].items()
                )
            else:
                self._fault((*path, key), f"expected a mapping, got {content[key]!r}")

    def _alternatives(self, name: str, path: _KeyPath, values: list[Any]) -> Axis:
        if not values:
            self._fault(path, "expected one value or a list of values, got an empty list")
        read = [
            self._value(name, (*path, place), value, may_be_unset=True)
            for place, value in enumerate(values)
        ]
        return tuple(part for place, part in enumerate(read) if part and part not in read[:place])

    def _value(
        self, name: str, path: _KeyPath, value: Any, *, may_be_unset: bool = False
    ) -> dict[str, Any]:
        """Return a value by its name, a shape as two; nothing if there is a fault."""
        key, _, own_name = name.partition(".")
        types, expected = LISTS[key]
        parts: dict[str, Any] = {}
        try:
            if key == "env":
                check_variable(own_name, "")
            if key == "env" and value is None and may_be_unset:
                parts = {name: None}
            elif type(value) not in types:
                hint = ""
                if key == "env" and isinstance(value, bool | float):
                    hint = "put quotes around it"
                raise ConfigError(f"expected {expected}, got {value!r}", hint=hint)
            elif key == "shape":
                pairs = shapes(value)
                if len(pairs) != 1:
                    raise ConfigError(
                        f"expected {expected}, got {value!r}",
                        hint="several are a list: [1n1g, 4n8g]",
                    )
                parts = dict(zip(("nodes", "gpus"), pairs[0], strict=True))
            else:
                parts = {name: str(value) if key in MAPPINGS else value}
        except ConfigError as error:
            self._fault(path, error.message, error.hint)
        self.places |= dict.fromkeys(parts.items(), self.document.where(path))
        return parts

    def _check_types(
        self, content: Mapping[str, Any], table: _Types, path: _KeyPath
    ) -> dict[str, Any]:
        """Return the values of the keys in ``table``; values of another type are faults."""
        values = {}
        for key, (types, expected) in table.items():
            if key in content and type(content[key]) in types:
                values[key] = content[key]
                if not isinstance(content[key], list):
                    self.places[key, content[key]] = self.document.where((*path, key))
            elif key in content:
                self._fault((*path, key), f"expected {expected}, got {content[key]!r}")
        return values

    def _entries(
        self, content: Mapping[str, Any], kind: str
    ) -> Iterator[tuple[dict[str, Any], _KeyPath]]:
        """Yield the values of each entry of ``include`` or ``exclude``, and its path."""
        entries = content.get(kind, [])
        if not isinstance(entries, list):
            self._fault((kind,), f"expected a list of mappings, got {entries!r}")
            return
        of_a_run = OF_A_RUN if kind == "include" else {}
        for place, entry in enumerate(entries):
            path = (kind, place)
            if not isinstance(entry, dict) or not entry:
                self._fault(path, f"expected a mapping of one or more values, got {entry!r}")
                continue
            self._check_keys(entry, (*LISTS, *of_a_run), path)
            values = self._check_types(entry, of_a_run, path)
            for name, where, value in self._name_choices(entry, path):
                values |= self._value(name, where, value, may_be_unset=True)
            yield values, path

    def _is_of_lists(
        self, entry: Mapping[str, Any], path: _KeyPath, listed: Mapping[str, set[Any]]
    ) -> bool:
        """Return True if an entry of ``exclude`` has only values of lists; add a fault for each
        other one.
        """
        before = len(self.faults)
        for name, value in entry.items():
            if name not in listed:
                hint = f"the file's lists: {', '.join(listed) or 'none'}{nearest(name, listed)}"
                self._fault(
                    (*path, *name.split(".", 1)),
                    f"expected the name of a list in this file, got {name}",
                    hint,
                )
            elif listed[name] and value not in listed[name]:
                values = sorted(
                    "null" if listed_value is None else str(listed_value)
                    for listed_value in listed[name]
                )
                got = "null" if value is None else repr(value)
                message = f"expected one of {', '.join(values)}, the values of {name} in this file, got {got}"
                self._fault(
                    (*path, *name.split(".", 1)),
                    message,
                    nearest(str(value), values).removeprefix("; "),
                )
        return bool(entry) and len(self.faults) == before

    def _repeats(self, repeats: int | None) -> int | None:
        if repeats is not None and repeats < 1:
            self._fault(("repeats",), f"expected a whole number ≥ 1, got {repeats}")
        return repeats

    def _label(self, text: str) -> str:
        try:
            return label(text, "")
        except ConfigError as error:
            self._fault(("label",), error.message)
            return ""

    def _expectations(self, value: str | list[Any]) -> Iterator[Expectation]:
        for index, text in enumerate([value] if isinstance(value, str) else value):
            path: _KeyPath = ("expect",) if isinstance(value, str) else ("expect", index)
            try:
                expected = expectation_of(text if isinstance(text, str) else repr(text))
            except ConfigError as error:
                self._fault(path, error.message, error.hint)
            else:
                self.places["expect", str(expected)] = self.document.where(path)
                yield expected

    def _fault(self, path: _KeyPath, message: str, hint: str = "") -> None:
        self.faults.append(ConfigError(message, where=self.document.where(path), hint=hint))


def _values_of(lists: list[Axis]) -> dict[str, set[Any]]:
    values: dict[str, set[Any]] = {}
    for name, value in (
        item for alternatives in lists for choices in alternatives for item in choices.items()
    ):
        values.setdefault(name, set()).add(value)
    return values
