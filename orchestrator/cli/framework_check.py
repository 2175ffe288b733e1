"""The check of one framework folder: its faults, its trials, its scripts, and how its patterns read
a log.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from orchestrator.cli.options import find_bench
from orchestrator.errors import ConfigError, DataError, OrchError
from orchestrator.feature import providers
from orchestrator.grouping import group_pairs
from orchestrator.logs import is_named
from orchestrator.logs.matches import LogMatches, PatternMatches, matches
from orchestrator.plan.folders import FrameworkFolder, read_folder
from orchestrator.plan.trial import Trial, syntax_errors, trials, unread_options
from orchestrator.record.evidence import log_bytes
from orchestrator.record.manifest import read_manifest
from orchestrator.report.text import one_line, visible
from orchestrator.results.foreign_log import check_alone
from orchestrator.results.values import Expected, values_of

_SAMPLE = "sample.log"
_MOST_BYTES = 64 << 20
_BASH_S = 30
_SHOWN = 110


@dataclass(frozen=True, slots=True)
class Checked:
    """The findings on a folder. ``scripts`` is the number of distinct scripts that bash
    read; ``log`` is None if the folder has a fault, or no log was given and it has no sample.
    ``notes`` are no faults, ``refusal`` is why the log has no result."""

    path: Path
    faults: tuple[OrchError, ...]
    trials: tuple[Trial, ...] = ()
    scripts: int = 0
    log_path: str = ""
    log: LogMatches | None = None
    notes: tuple[str, ...] = ()
    refusal: DataError | None = None

    def document(self) -> dict[str, Any]:
        """Return the check as JSON."""
        refused = [
            {"configuration": trial.name, "reason": trial.refused}
            for trial in self.trials
            if trial.refused
        ]
        return {
            "folder": str(self.path),
            "faults": [fault.as_dict() for fault in self.faults],
            "configurations": len(self.trials),
            "refused": refused,
            "scripts": self.scripts,
            "notes": list(self.notes),
            "log": _log_document(self.log, self.log_path) if self.log else None,
            "refusal": self.refusal.as_dict() if self.refusal else None,
        }


def _log_document(log: LogMatches, path: str) -> dict[str, Any]:
    return {
        "path": path,
        "lines": log.lines,
        "has_number": log.has_number,
        "steps": [sample.step for sample in log.parsed.samples],
        "readings": len(log.parsed.readings),
        "metrics": [asdict(metric) for metric in log.metrics],
        "patterns": [asdict(pattern) for pattern in log.patterns],
        "unmatched_lines": log.unmatched_count,
        "unmatched": [list(entry) for entry in log.unmatched],
        "warnings": list(log.parsed.warnings),
    }


def check_folder(path: Path, log: Path | tuple[bytes, str] | None) -> Checked:
    """Check a folder; ``log``, a file or its content and name, is read in place of its sample.

    Raise ConfigError if the file cannot be read.
    """
    data, log_path = _log(path, log)
    try:
        folder = read_folder(path)
    except OrchError as error:
        return Checked(
            path,
            (
                *error.errors,
                *syntax_errors(_templates(path), str(path)),
                *_faults_of_features(path),
            ),
        )
    tried = tuple(trials(folder))
    faults: list[OrchError] = [*syntax_errors(folder.sources, str(path))]
    places = {fault.where for fault in faults}
    for trial in tried:
        if trial.error and trial.error.where not in places:
            places.add(trial.error.where)
            faults.append(trial.error)
    scripts = {
        file.content: (trial, file)
        for trial in tried
        for _, file in trial.files
        if _is_script(file.content, file.path)
    }
    for content, (trial, file) in scripts.items():
        if complaint := _complaint(content):
            where = f"{path}: {file.path} of {trial.name}"
            faults.append(
                ConfigError(
                    f"expected a script that bash reads, got {complaint}",
                    kind="template_error",
                    where=where,
                )
            )
            break  # the same mistake is in the others
    if tried and all(trial.refused for trial in tried):
        faults.append(
            ConfigError(f"every configuration is refused: {tried[0].refused}", where=str(path))
        )
    read = matches(data, folder.framework.log) if data is not None else None
    faults += _metric_faults(folder, read, log_path)
    refusal, of_steps = check_alone(folder.framework, read.parsed) if read else (None, ())
    of_rule: list[str] = []
    if data is not None:
        for module in providers("folder_check"):
            of_rule += module.rule_notes(folder.framework, data, log_path)
    notes = (*_notes(folder, read, log_path), *of_steps, *of_rule)
    if refusal:
        refusal.where = refusal.where or log_path
    return Checked(
        path,
        (*faults, *_faults_of_features(path)),
        tried,
        len(scripts),
        log_path,
        read,
        notes,
        refusal,
    )


def _faults_of_features(path: Path) -> list[OrchError]:
    """Return the faults that features find in files of a folder that they alone read."""
    return [fault for module in providers("folder_check") for fault in module.table_faults(path)]


def _metric_faults(
    folder: FrameworkFolder, log: LogMatches | None, log_path: str
) -> list[OrchError]:
    """Return the error that metrics would give a run with this log: a value that is no number, or
    two for one key.
    """
    try:
        if log:
            grammar = folder.framework.log
            values_of(
                grammar.metrics,
                {("", log_path): log.parsed.readings},
                Expected(1, 1, form=grammar.numbers),
            )
    except DataError as error:
        # How many ranks or nodes a single log is of is not known.
        return [error] if error.kind == "log_unmatched" else []
    return []


def read_log(name: str, path: Path) -> tuple[bytes, str]:
    """Return the content of a collected log that ``log.files`` of a folder names, without secret
    values, and its path.

    It is the first one of the newest run that has any.

    Raise ConfigError if the bench has none, or the folder has a fault.
    """
    globs = read_folder(path).framework.log.files
    bench = find_bench(name)
    for run in reversed(list(bench.runs())):
        with suppress(DataError, OSError):
            manifest = read_manifest(run)
            for host in manifest.hosts if manifest.framework == path.name else ():
                for log in run.logs(host):
                    if is_named(log.name, globs):
                        return log_bytes(run, host, log.name), str(log)
    hint = "orch collect fetches the logs of its runs"
    raise ConfigError(
        f"expected collected logs of {path.name} like {', '.join(globs)}, found none",
        where=name,
        hint=hint,
    )


def _templates(path: Path) -> dict[str, str]:
    return {file.name: file.read_text("utf-8", "replace") for file in sorted(path.glob("*.j2"))}


def _log(path: Path, log: Path | tuple[bytes, str] | None) -> tuple[bytes | None, str]:
    if isinstance(log, tuple):
        return log
    source = log or path / _SAMPLE
    if not log and not source.is_file():
        return None, ""
    try:
        with source.open("rb") as stream:
            return stream.read(_MOST_BYTES), str(source)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", where=str(source)) from error


def _is_script(content: str, name: str) -> bool:
    return name.endswith(".sh") or content.startswith(
        ("#!/bin/bash", "#!/bin/sh", "#!/usr/bin/env bash")
    )


def _complaint(script: str) -> str:
    """Return bash's complaint about a script, which it parses and does not run; empty if it is
    sound.
    """
    done = subprocess.run(
        ["bash", "-n"],
        input=script.encode(),
        capture_output=True,
        timeout=_BASH_S,
        check=False,
        env={"LC_ALL": "C"},
    )
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if said:
        return said[0].removeprefix("bash: ")
    if not done.returncode:
        return ""
    return f"exit status {done.returncode}"


def _notes(folder: FrameworkFolder, log: LogMatches | None, log_path: str) -> Iterator[str]:
    framework = folder.framework
    if unread := unread_options(folder):
        yield f"no template reads options.{', options.'.join(unread)}: setting it changes nothing"
    if framework.measure.has_samples and not framework.log.rank:
        yield "log.rank is not set: it is not verified that every rank took part"
    if log is None:
        yield f"there is no {_SAMPLE} and no --log: the patterns were not tried"
        return
    if log.lines == 0:
        yield f"{log_path} has no complete line (with a line end)"
    steps = [sample.step for sample in log.parsed.samples]
    last = framework.defaults.get("steps")
    if framework.measure.has_samples and steps and isinstance(last, int) and max(steps) < last:
        first = framework.defaults["warmup_steps"] + 1
        yield f"by default steps {first} to {last} are measured; this log ends with step {max(steps)}"
    grammar = framework.log
    if steps and min(steps) == 0 and grammar.counts_from and not grammar.after_warmup:
        yield "the first step of this log is 0: if the program calls its first step so, write counts_from: 0 under log:"
    yield from log.parsed.warnings


def lines(result: Checked) -> Iterator[str]:
    """Yield the report of a check, without its faults."""
    refused = [trial for trial in result.trials if trial.refused]
    if result.trials:
        count = f"{len(result.trials)} configurations, {result.scripts} scripts"
        yield f"{result.path}: {_faults(result)}; {count}, {len(refused)} refused by the folder"
    else:
        yield f"{result.path}: {_faults(result)}; nothing was rendered"
    for reason, names in _by_reason(refused).items():
        yield one_line(
            visible(f"  refused: {reason} ({', '.join(names[:3])}{' …' if len(names) > 3 else ''})")
        )
    if result.log:
        yield from _log_lines(result.log, result.log_path)
    for note in result.notes:
        yield one_line(visible(f"  note: {note}"))


def _faults(result: Checked) -> str:
    if not result.faults:
        return "no fault"
    return _count(len(result.faults), "fault", "faults")


def _count(number: int, singular: str, plural: str) -> str:
    return f"{number} {singular if number == 1 else plural}"


def _by_reason(refused: Sequence[Trial]) -> dict[str, list[str]]:
    return group_pairs((trial.refused, trial.name) for trial in refused)


def _log_lines(log: LogMatches, path: str) -> Iterator[str]:
    steps = [sample.step for sample in log.parsed.samples]
    content = "no step" if log.has_steps else "no line with a result"
    if steps:
        content = f"steps {min(steps)} to {max(steps)}, {len(steps)} of them"
    if log.parsed.readings:
        content = _count(len(log.parsed.readings), "line with a result", "lines with results")
    yield f"  {path}: {_count(log.lines, 'line', 'lines')}; {content}"
    for pattern in log.patterns:
        yield from _pattern_lines(pattern)
    for metric in log.metrics:
        key = "".join(f" {name}={_short(value)}" for name, value in (metric.key or {}).items())
        first = ""
        if metric.count:
            first = (
                f", the first is {_short(metric.first)} {metric.unit}{f' at{key}' if key else ''}"
            )
        yield f"    metric {metric.name}: {_count(metric.count, 'value', 'values')}{first}"
    if log.unmatched:
        more = ""
        if log.unmatched_count > len(log.unmatched):
            more = f", the first {len(log.unmatched)}"
        yield f"    no pattern matches {_count(log.unmatched_count, 'line', 'lines')}{more}:"
        yield from (f"      {number}: {_short(line)}" for number, line in log.unmatched)


def _pattern_lines(pattern: PatternMatches) -> Iterator[str]:
    yield f"    {pattern.key}: {_count(pattern.count, 'match', 'matches')}   {_text(pattern.pattern)}"
    if pattern.values is not None:
        yield f"      first in line {pattern.first}: {_short(pattern.line)}"
        values = ", ".join(f"{name}={_short(value)}" for name, value in pattern.values.items())
        yield from [f"      it reads {values}"] if values else []
    for number, name, text in pattern.not_numbers[:3]:
        yield f"      line {number}: {name} is no number: {_short(text)}"
    if miss := pattern.near_miss:
        came = _short(miss.line[miss.column - 1 :])
        yield f"      nearly matches line {miss.number}: {_short(miss.line)}"
        yield f"        up to {_end(miss.matched)}"
        yield f"        then the pattern has '{_text(miss.rest)}' where the line has '{came}'"


def _text(text: str) -> str:
    return one_line(visible(text))


def _short(text: str) -> str:
    text = _text(text)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _end(text: str) -> str:
    """Return the end of a text, which is where a pattern stops."""
    text = _text(text)
    if len(text) <= _SHOWN:
        return text
    return f"…{text[-_SHOWN:]}"
