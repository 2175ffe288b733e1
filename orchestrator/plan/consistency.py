"""Consistency of the keys of a ``framework.yaml``: types of defaults, names that refer to each
other, patterns.

Each fault is the path of its key, what was expected and what came, and a hint.
"""

from __future__ import annotations

import ast
import math
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from orchestrator.errors import ConfigError, nearest
from orchestrator.inventory.reserved import PLACED, RESERVED
from orchestrator.inventory.values import KeyPath, show_value
from orchestrator.logs.steps import SPEEDS
from orchestrator.plan.framework import nearest_dtype
from orchestrator.plan.log_consistency import log_inconsistencies
from orchestrator.plan.measures import MEASURES
from orchestrator.plan.model_consistency import model_inconsistencies
from orchestrator.plan.option_values import as_written
from orchestrator.plan.published_faults import find_published_faults
from orchestrator.plan.schema import Defaults, FrameworkFile, KnobEntry, OptionEntry

Fault = tuple[KeyPath, str, str]

_OF_ORCH = "env.sh"
"""The file of variables that every run has."""


def inconsistencies(
    file: FrameworkFile, templates: Collection[str], broken: Collection[KeyPath]
) -> Iterator[Fault]:
    """Yield every fault. ``templates`` are the names of the folder's templates, ``broken`` the keys
    that were left out of
    ``file`` because they are at fault themselves."""
    yield from _find_missing(file, broken)
    yield from _defaults(file, broken)
    for name, option in file.options.items():
        yield from _option(name, option)
    yield from model_inconsistencies(file, broken)
    yield from _tables(file, broken)
    yield from _files(file, templates, broken)
    yield from _probe(file.probe)
    yield from log_inconsistencies(file, broken)
    yield from _knobs(file, broken)
    if file.published:
        yield from find_published_faults(file.published)


def _find_missing(file: FrameworkFile, broken: Collection[KeyPath]) -> Iterator[Fault]:
    """Yield the keys that a folder of this kind of measurement lacks."""
    kind = f"in a folder that measures {file.measures}"
    if ("measures",) in broken:
        return
    if not MEASURES[file.measures].has_samples:
        if not file.log.readings and _is_whole(("log", "readings"), broken):
            yield (
                ("log", "readings"),
                f"expected the pattern of a line with a result {kind}, got nothing",
                "",
            )
        elif (
            file.measures == "readings"
            and not file.log.metrics
            and _is_whole(("log", "metrics"), broken)
        ):
            hint = "declare the groups of readings, such as metrics: {bandwidth: {unit: GB/s, better: higher}}"
            yield ("log", "metrics"), f"expected at least one metric {kind}, got none", hint
        return
    if not file.loaders and _is_whole(("loaders",), broken):
        yield (
            ("loaders",),
            f"expected at least one loader {kind}, got none",
            "write loaders: [synthetic]",
        )
    if not file.log.patterns and _is_whole(("log", "patterns"), broken):
        hint = "a regular expression with the groups step and one that says how fast: " + ", ".join(
            SPEEDS
        )
        yield ("log", "patterns"), f"expected at least one pattern {kind}, got none", hint


def _is_whole(path: KeyPath, broken: Collection[KeyPath]) -> bool:
    """Return True if neither the value at a path nor one around it is broken."""
    return not any(path[:length] in broken for length in range(1, len(path) + 1))


def _defaults(file: FrameworkFile, broken: Collection[KeyPath]) -> Iterator[Fault]:
    fixed = MEASURES[file.measures].fixed
    for key, field in Defaults.model_fields.items():
        path = ("defaults", key)
        if (
            key not in file.defaults.model_fields_set
            and key not in fixed
            and _is_whole(path, broken)
        ):
            yield (
                path,
                f"expected {field.description}, got nothing",
                f"write it under defaults:, such as {_EXAMPLES[key]}",
            )
    for device in (None, *file.dtypes):
        own = file.device_defaults.get(device) if device else None
        at: KeyPath = ("device_defaults", device) if own and device else ("defaults",)
        values = file.defaults.model_dump(exclude_unset=True) | (
            own.model_dump(exclude_unset=True) if own else {}
        )
        if device and own is None and device != next(iter(file.dtypes)):
            continue  # the same values as before
        steps, warmup = values.get("steps"), values.get("warmup_steps")
        if steps is not None and warmup is not None and steps <= warmup and (own or device is None):
            hint = "steps includes the warm-up; the steps after it are measured"
            yield (
                (*at, "steps"),
                f"expected more steps than the {warmup} of warmup_steps, got {steps}",
                hint,
            )
        loader = values.get("loader")
        if (
            loader is not None
            and file.loaders
            and loader not in file.loaders
            and (own or device is None)
        ):
            yield (
                (*at, "loader"),
                f"expected one of {', '.join(file.loaders)} of loaders, got {loader!r}",
                nearest(loader, file.loaders).lstrip("; "),
            )
    for device, types in file.dtypes.items():
        own = file.device_defaults.get(device)
        at = (
            ("device_defaults", device)
            if own and "dtype" in own.model_fields_set
            else ("defaults",)
        )
        dtype = own.dtype if own and "dtype" in own.model_fields_set else file.defaults.dtype
        if dtype and types and dtype not in types:
            hint = (
                nearest_dtype(dtype, types).lstrip("; ")
                or f"another default for one device: device_defaults: {{{device}: {{dtype: …}}}}"
            )
            yield (
                (*at, "dtype"),
                f"expected one of {', '.join(types)} of dtypes.{device}, got {dtype!r}",
                hint,
            )


_EXAMPLES = {
    "batch_size": "batch_size: 64", "dtype": "dtype: fp32", "loader": "loader: synthetic", "steps": "steps: 120",
    "warmup_steps": "warmup_steps: 20", "timeout_s": "timeout_s: 1800", "repeats": "repeats: 5",
}  # fmt: skip


_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "int": ((int,), "a whole number"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "str": ((str,), "text"),
}


def _option(name: str, option: OptionEntry) -> Iterator[Fault]:
    types, words = _TYPES[option.type]
    values: list[tuple[KeyPath, Any]] = [(("default",), option.default)]
    values += [
        (("device_default", device), value) for device, value in option.device_default.items()
    ]
    choices = [choice for choice in option.choices if type(choice) in types]
    for index, choice in enumerate(option.choices):
        if type(choice) not in types:
            yield (
                ("options", name, "choices", index),
                f"expected {words}, as type: says, got {show_value(choice)}",
                "",
            )
    for path, value in values:
        place: KeyPath = ("options", name, *path)
        if type(value) not in types:
            hint = "put quotes around it" if option.type == "str" else ""
            yield place, f"expected {words}, as type: says, got {show_value(value)}", hint
        elif choices and value not in choices:
            hint = nearest(str(value), map(str, choices)).lstrip("; ")
            yield (
                place,
                f"expected one of {', '.join(map(str, choices))}, got {show_value(value)}",
                hint,
            )
        elif option.minimum is not None and type(value) in (int, float) and value < option.minimum:
            yield (
                place,
                f"expected {option.minimum:g} or more, as minimum: says, got {show_value(value)}",
                "",
            )
        elif option.maximum is not None and type(value) in (int, float) and value > option.maximum:
            yield (
                place,
                f"expected {option.maximum:.10g} or less, as maximum: says, got {show_value(value)}",
                "",
            )
    for key, limit in (("minimum", option.minimum), ("maximum", option.maximum)):
        if limit is not None and option.type not in ("int", "float"):
            yield (
                ("options", name, key),
                f"expected none for an option of type {option.type}, got {limit:g}",
                "leave it out",
            )
    if (
        option.minimum is not None
        and option.maximum is not None
        and option.minimum > option.maximum
    ):
        yield (
            ("options", name, "maximum"),
            f"expected {option.minimum:.10g} or more, as minimum: says, got {option.maximum:.10g}",
            "",
        )


def _tables(file: FrameworkFile, broken: Collection[KeyPath]) -> Iterator[Fault]:
    """Yield references to options and devices that do not exist."""
    tables: dict[KeyPath, Mapping[str, Mapping[str, str]]] = {
        ("launch_by",): file.launch_by,
        ("log", "scope_by"): file.log.scope_by,
    }
    for path, table in tables.items():
        for name, by_value in table.items() if ("options",) not in broken else ():
            place: KeyPath = (*path, name)
            if ("options", name) in broken:
                continue
            if name not in file.options:
                hint = f"the options are {', '.join(file.options) or 'none'}{nearest(name, file.options)}"
                yield place, f"expected the name of an option, got {name!r}", hint
                continue
            choices = [str(choice) for choice in file.options[name].choices]
            for value in by_value:
                if choices and value not in choices:
                    hint = nearest(value, choices).lstrip("; ")
                    yield (
                        (*place, value),
                        f"expected one of {', '.join(choices)}, got {value!r}",
                        hint,
                    )
    for device, types in file.dtypes.items():
        if not types and _is_whole(("dtypes", device), broken):
            yield (
                ("dtypes", device),
                "expected at least one type, got none",
                "leave out a device that the program cannot use",
            )


def _files(
    file: FrameworkFile, templates: Collection[str], broken: Collection[KeyPath]
) -> Iterator[Fault]:
    if any(path[0] == "files" for path in broken):
        return
    paths = [entry.path for entry in file.files]
    if "launch.sh" not in paths:
        got = ", ".join(paths)
        yield (
            ("files",),
            f"expected one with the path launch.sh, got {got}",
            "this is the file that a node starts",
        )
    for index, entry in enumerate(file.files):
        if entry.template not in templates:
            names = f"it has {', '.join(templates)}" if templates else "it has none"
            message = f"expected a template of this folder, got {entry.template!r}"
            yield (
                ("files", index, "template"),
                message,
                f"{names}{nearest(entry.template, templates)}",
            )
        if entry.path == _OF_ORCH:
            yield (
                ("files", index, "path"),
                f"expected another name, got {_OF_ORCH}",
                "orch writes the variables of a run there",
            )
        elif entry.path in paths[:index]:
            yield ("files", index, "path"), f"expected each path once, got {entry.path} again", ""


def _probe(source: str) -> Iterator[Fault]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        got = error.msg if isinstance(error, SyntaxError) else str(error)
        line = ""
        if isinstance(error, SyntaxError) and error.lineno:
            line = f" in its line {error.lineno}"
        yield ("probe",), f"expected Python, got {got}{line}", ""
        return
    if not any(isinstance(node, ast.Call) for node in ast.walk(tree)):
        hint = 'such as: import json, torch; print(json.dumps({"torch": torch.__version__}))'
        yield ("probe",), "expected Python that prints a JSON object, got none that prints", hint


def _knobs(file: FrameworkFile, broken: Collection[KeyPath]) -> Iterator[Fault]:
    seen: set[str] = set()
    for index, knob in enumerate(file.tunes):
        names = [*knob.env] or [knob.option or knob.multiplies]
        yield from (
            (("tunes", index), message, hint)
            for message, hint in _knob(file, knob, names, seen, broken)
        )
        seen |= set(names)


def _knob(
    file: FrameworkFile,
    knob: KnobEntry,
    names: list[str],
    seen: set[str],
    broken: Collection[KeyPath],
) -> Iterator[tuple[str, str]]:
    rows = [value if isinstance(value, list) else [value] for value in knob.values]
    if len(ways := [key for key in ("env", "option", "multiplies") if getattr(knob, key)]) != 1:
        yield (
            f"expected one of env:, option: and multiplies:, got {' and '.join(ways) or 'none'}",
            "",
        )
    elif twice := seen & set(names) or {name for name in names if names.count(name) > 1}:
        yield f"expected each name once, got {', '.join(sorted(twice))} again", ""
    elif placed := {
        name for name in names if name in PLACED or (knob.env and name.startswith(RESERVED))
    }:
        yield f"expected variables that a host may set, got {', '.join(sorted(placed))}", ""
    elif knob.option and ("options" in {path[0] for path in broken}):
        return
    elif knob.option and knob.option not in file.options:
        hint = f"it has {', '.join(file.options) or 'none'}{nearest(knob.option, file.options)}"
        yield f"expected an option of this framework, got {knob.option!r}", hint
    elif short := [row for row in rows if len(row) != len(names)]:
        yield f"expected values of {' and '.join(names)}, got {_format_row(short[0])}", ""
    elif knob.multiplies:
        odd = [
            value for (value,) in rows if isinstance(value, bool | str) or not 0 < value < math.inf
        ]
        if odd:
            yield f"expected factors above 0, got {_format_row(odd)}", ""
    elif knob.option:
        for (value,) in rows:
            try:
                file.options[knob.option].as_option().parse(knob.option, as_written(value))
            except ConfigError as error:
                yield f"{knob.option}: {error.message}", ""


def _format_row(row: list[Any]) -> str:
    return ", ".join(map(str, row))
