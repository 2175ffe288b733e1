"""From the document of a ``framework.yaml`` to a `Framework`; all faults of the file are reported
together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import ValidationError

from orchestrator.errors import ConfigError, Faults
from orchestrator.inventory.values import KeyPath, Where, shown_key, shown_value
from orchestrator.logs import Agreement, Header, LogGrammar
from orchestrator.logs.metrics import Metric
from orchestrator.plan.consistency import inconsistencies
from orchestrator.plan.framework import ConfigFile, Framework, Knob, StepOptions
from orchestrator.plan.log_consistency import patterns_of
from orchestrator.plan.log_schema import AgreementEntry, LogEntry, MetricEntry
from orchestrator.plan.measures import MEASURES
from orchestrator.plan.schema import FrameworkFile, KnobEntry, StepEntry
from orchestrator.plan.schema_faults import described, key_path

__all__ = ["read_declaration"]

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
        return f"{place}: {'.'.join(map(shown_key, path))}" if path else place

    if not isinstance(value, dict):
        message = (
            f"expected a mapping with title:, models:, dtypes: and so on, got {shown_value(value)}"
        )
        raise Faults([ConfigError(message, where=where(())), *others])
    faults, broken, file = _validated(value, where)
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


def _validated(
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
            faults = [described(detail, where) for detail in errors]
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
    return Framework(
        name=name,
        title=file.title,
        folder=folder,
        digest=digest,
        launch=file.launch,
        batch_size_is=file.batch_size_is,
        models={
            model: entry.model_dump(exclude_unset=True) for model, entry in file.models.items()
        },
        step=_step_options(file.per_step) if file.per_step else None,
        dtypes={str(device): flags for device, flags in file.dtypes.items()},
        loaders=(fixed["loader"],) if "loader" in fixed else tuple(file.loaders),
        defaults={**file.defaults.model_dump(exclude_unset=True), **fixed},
        device_defaults={
            str(device): own.model_dump(exclude_unset=True)
            for device, own in file.device_defaults.items()
        },
        options={key: option.as_option() for key, option in file.options.items()},
        env=file.env,
        files=tuple(
            ConfigFile(entry.template, entry.path, entry.target, int(entry.mode, 8))
            for entry in file.files
        ),
        payload=tuple(file.payload),
        probe=file.probe,
        log=_log_grammar(file.log),
        distributions=tuple(file.distributions),
        simulated=file.simulated,
        dtype_reasons={str(device): reason for device, reason in file.dtype_reasons.items()},
        caveats={str(device): caveat for device, caveat in file.caveats.items()},
        launch_by={
            option: {str(value): style for value, style in table.items()}
            for option, table in file.launch_by.items()
        },
        requires=file.requires,
        ports={str(where): count for where, count in file.ports.items()},
        published=file.published.model_dump() if file.published else {},
        measures=file.measures,
        tunes=tuple(map(_knob, file.tunes)),
        setup=tuple(file.setup),
    )


def _step_options(entry: StepEntry) -> StepOptions:
    return StepOptions(
        entry.tokens,
        entry.micro_batches,
        tuple(entry.shared_by),
        entry.recomputation,
        entry.batch_size_up_to,
    )


def _log_grammar(log: LogEntry) -> LogGrammar:
    return LogGrammar(
        files=tuple(log.files),
        patterns=tuple(log.patterns),
        nodes=log.nodes,
        thousands=log.thousands,
        suffixes=dict(log.suffixes),
        prefix=log.prefix,
        scope=log.scope,
        scope_by=log.scope_by,
        cumulative=log.cumulative,
        counts_from=log.counts_from,
        after_warmup=log.after_warmup,
        rank=log.rank,
        rank_files=tuple(log.rank_files),
        rank_parts=log.rank_parts,
        closing=log.closing,
        nccl_files=tuple(log.nccl_files),
        readings=patterns_of(log.readings),
        units={str(name): unit for name, unit in log.units.items()},
        summed_over={str(name): group for name, group in log.summed_over.items()},
        metrics=tuple(_metric(name, entry) for name, entry in log.metrics.items()),
        refuse=tuple(log.refuse),
        confirm=tuple(log.confirm),
        end=log.end,
        facts=tuple(log.facts),
        rank_list=log.rank_list,
        headers=tuple(Header(entry.line, dict(entry.factors)) for entry in log.headers),
        agreements=tuple(_agreement(entry) for entry in log.agreements),
        micro_batches=log.micro_batches,
        sampled=log.sampled,
    )


def _agreement(entry: AgreementEntry) -> Agreement:
    return Agreement(
        entry.value, tuple(entry.of), tuple(entry.over), float(entry.factor), float(entry.within)
    )


def _metric(name: str, entry: MetricEntry) -> Metric:
    values = {
        **entry.model_dump(),
        "keys": tuple(entry.keys),
        "across": entry.across or "",
        "says": entry.says or "",
    }
    return Metric(name, **{**values, "ema": float(entry.ema or 0)})


def _knob(entry: KnobEntry) -> Knob:
    """Return the parameter, with values of variables converted to text."""
    rows = [tuple(value) if isinstance(value, list) else (value,) for value in entry.values]
    values = tuple([tuple(map(_as_text, row)) for row in rows] if entry.env else rows)
    when = {name: tuple(among) for name, among in entry.when.items()}
    networks = tuple(entry.networks)
    return Knob(
        tuple(entry.env),
        entry.option,
        values,
        networks,
        entry.numerics,
        entry.default,
        entry.multiplies,
        when,
    )


def _as_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
