"""Read a `Framework` from the document of a ``framework.yaml``; all faults of the file are reported
together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from pydantic import ValidationError

from orchestrator.errors import ConfigError, Faults
from orchestrator.inventory.values import KeyPath, Where, show_key, show_value
from orchestrator.logs import Agreement, Header, LogGrammar
from orchestrator.logs.metrics import Metric
from orchestrator.plan.consistency import inconsistencies
from orchestrator.plan.framework import ConfigFile, Framework, Knob, StepOptions
from orchestrator.plan.log_consistency import patterns_of
from orchestrator.plan.log_schema import LogEntry, MetricEntry
from orchestrator.plan.measures import MEASURES
from orchestrator.plan.option_values import as_written
from orchestrator.plan.schema import FrameworkFile, KnobEntry
from orchestrator.plan.schema_faults import describe_fault, key_path

_T = TypeVar("_T")

_LEAST: Mapping[str, Any] = {
    "title": "-",
    "models": {"none": {}},
    "dtypes": {"cpu": {}},
    "defaults": {},
    "files": [{"template": "-", "path": "launch.sh"}],
    "probe": "print()",
    "log": {"files": ["-"]},
}
"""Stands for required keys that are missing or at fault, so that the others are compared with each
other nevertheless.
"""


def read_declaration(
    value: Any,
    line_of: Callable[[KeyPath], int],
    name: str,
    folder: str,
    digest: str,
    templates: Collection[str],
    others: Collection[ConfigError] = (),
) -> Framework:
    """Return the framework that a document declares. ``templates`` are the names of the folder's
    templates.

    Raises Faults of ConfigError with file, line and key, in the order of the lines, together with
    ``others``, faults of the same file that the caller found.
    """

    def where(path: KeyPath) -> str:
        place = f"{folder}/framework.yaml:{line_of(path)}"
        return f"{place}: {'.'.join(map(show_key, path))}" if path else place

    if not isinstance(value, dict):
        message = (
            f"expected a mapping with title:, models:, dtypes: and so on, got {show_value(value)}"
        )
        raise Faults([ConfigError(message, where=where(())), *others])
    faults, broken, file = _validate(value, where)
    for path, message, hint in inconsistencies(file, templates, broken):
        faults.append(ConfigError(message, where=where(path), hint=hint))
    in_order = sorted([*_distinct(faults), *others], key=_line)
    if in_order:
        raise Faults(in_order)
    return _framework(file, name, folder, digest)


def _distinct(faults: list[ConfigError]) -> list[ConfigError]:
    """Return one fault of each place: the first is the nearest to the mistake."""
    by_place: dict[str, ConfigError] = {}
    for fault in faults:
        by_place.setdefault(fault.where, fault)
    return list(by_place.values())


def _line(fault: ConfigError) -> int:
    return int(fault.where.split("framework.yaml:")[1].split(":")[0])


def _validate(
    value: dict[str, Any], where: Where
) -> tuple[list[ConfigError], set[KeyPath], FrameworkFile]:
    """Return the faults of the schema, the keys that they are in, and the file without these keys."""
    faults: list[ConfigError] = []
    broken: set[KeyPath] = set()
    usable, is_first = dict(value), True
    while True:
        try:
            return (
                faults,
                broken,
                FrameworkFile.model_validate(usable if is_first else {**_LEAST, **usable}),
            )
        except ValidationError as error:
            errors = error.errors(include_url=False)
        if is_first:
            faults = [describe_fault(detail, where) for detail in errors]
        before = usable
        for path in map(key_path, errors):
            broken.add(path)
            usable = _without(usable, path, broken)
        assert is_first or usable != before, errors  # each round leaves a key out
        is_first = False


def _without(mapping: dict[str, Any], path: KeyPath, broken: set[KeyPath]) -> dict[str, Any]:
    """Return a file without the entry that has a fault: one key of a section if that is possible,
    else the section.
    """
    top = str(path[0])
    section = mapping.get(top)
    if len(path) > 1 and isinstance(section, dict) and path[1] in section:
        broken.add(path[:2])
        return {**mapping, top: {key: value for key, value in section.items() if key != path[1]}}
    broken.add(path[:1])
    return {key: value for key, value in mapping.items() if key != top}


def _framework(file: FrameworkFile, name: str, folder: str, digest: str) -> Framework:
    fixed = MEASURES[file.measures].fixed
    return _from(
        Framework,
        file,
        name=name,
        folder=folder,
        digest=digest,
        models={
            model: entry.model_dump(exclude_unset=True) for model, entry in file.models.items()
        },
        step=_from(StepOptions, file.per_step) if file.per_step else None,
        loaders=(fixed["loader"],) if "loader" in fixed else tuple(file.loaders),
        defaults={**file.defaults.model_dump(exclude_unset=True), **fixed},
        device_defaults={
            device: own.model_dump(exclude_unset=True)
            for device, own in file.device_defaults.items()
        },
        options={key: option.as_option() for key, option in file.options.items()},
        files=tuple(_from(ConfigFile, one, mode=int(one.mode, 8)) for one in file.files),
        log=_log_grammar(file.log),
        launch_by={
            option: {str(value): style for value, style in table.items()}
            for option, table in file.launch_by.items()
        },
        published=file.published.model_dump() if file.published else {},
        tunes=tuple(map(_knob, file.tunes)),
    )


def _log_grammar(log: LogEntry) -> LogGrammar:
    agreements = [
        _from(Agreement, one, factor=float(one.factor), within=float(one.within))
        for one in log.agreements
    ]
    return _from(
        LogGrammar,
        log,
        readings=patterns_of(log.readings),
        metrics=tuple(_metric(name, entry) for name, entry in log.metrics.items()),
        headers=tuple(_from(Header, entry) for entry in log.headers),
        agreements=tuple(agreements),
    )


def _metric(name: str, entry: MetricEntry) -> Metric:
    across, says, ema = entry.across or "", entry.says or "", float(entry.ema or 0)
    return _from(Metric, entry, name=name, across=across, says=says, ema=ema)


def _knob(entry: KnobEntry) -> Knob:
    """Return the parameter, with values of variables converted to text."""
    rows = [tuple(value) if isinstance(value, list) else (value,) for value in entry.values]
    values = tuple([tuple(map(as_written, row)) for row in rows] if entry.env else rows)
    when = {name: tuple(among) for name, among in entry.when.items()}
    return _from(Knob, entry, values=values, when=when)


def _from(kind: type[_T], entry: Any, **own: Any) -> _T:
    """Return a dataclass of what an entry of the document has by the same names, lists as tuples;
    ``own`` values take precedence.
    """
    values: dict[str, Any] = {}
    for one in fields(kind):  # type: ignore[arg-type]  # any dataclass
        if one.name not in own and hasattr(entry, one.name):
            value = getattr(entry, one.name)
            values[one.name] = tuple(value) if isinstance(value, list) else value
    return kind(**values, **own)
