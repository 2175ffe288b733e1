"""Runs in whose logs the log grammar finds nothing: the file, the pattern, and the line that comes
nearest to it.

An error of this kind is one of the grammar and not of a run: every run of the program has it, and
logs that were collected can be read again with a corrected one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress

from orchestrator.errors import DataError
from orchestrator.logs import StepSample, is_named
from orchestrator.logs.near_miss import NearMiss, near_miss
from orchestrator.logs.notes import CLOSING_LINE_UNREAD
from orchestrator.logs.parse import Parsed
from orchestrator.logs.patterns import tags_of
from orchestrator.logs.text import Tags, clean_text
from orchestrator.record import RunDir
from orchestrator.record.evidence import first_bytes
from orchestrator.record.manifest import Manifest

_READ_BYTES = 1 << 20
_MOST_FILES = 8
_SHOWN_LINES = 3
_MOST_LINES, _LINE_CHARACTERS = 5000, 500
_SHOWN_CHARACTERS = 120


def verify_matched(
    run: RunDir,
    planned: Manifest,
    names: Sequence[str],
    parsed: Mapping[str, Mapping[str, Parsed]],
    sampled: Mapping[tuple[str, str], Parsed],
    samples: Sequence[StepSample],
) -> None:
    """Raise DataError (log_unmatched) if the grammar of a run found no log, or no line for its
    patterns.

    ``names`` are all logs of the first node, ``parsed`` the logs that the grammar names, by host
    and name, and ``sampled`` the ones among them that should hold samples.
    """
    grammar, spec = planned.grammar, planned.spec
    if not sampled:
        raise _no_log(names, planned)
    files, logs = list(sampled), sampled.values()
    if not planned.measure.has_samples and not any(log.readings for log in logs):
        expected = "expected lines with results, found 0"
        raise _unmatched_error(expected, grammar.by_key("readings"), run, files, names, planned)
    if planned.measure.has_samples and not samples:
        expected = f"expected lines for steps {spec.warmup_steps + 1}…{spec.steps}, found 0"
        misread = next((log.misread for log in logs if log.misread), "")
        raise _unmatched_error(
            expected, grammar.by_key("patterns"), run, files, names, planned, misread
        )
    if grammar.rank and not any(
        log.ranks for by_name in parsed.values() for log in by_name.values()
    ):
        globs = grammar.rank_files or grammar.files
        places = [
            (host, name)
            for host, names in parsed.items()
            for name in names
            if is_named(name, globs)
        ]
        raise _unmatched_error(
            f"expected rank lines of {spec.world_size} ranks, found 0",
            {"log.rank": grammar.rank},
            run,
            places,
            names,
            planned,
        )
    if grammar.closing and not any(map(_has_closing, logs)):
        raise _unmatched_error(
            "expected the program's closing line, found none",
            {"log.closing": grammar.closing},
            run,
            files,
            names,
            planned,
        )


def _has_closing(log: Parsed) -> bool:
    return bool(log.closing) or any(note.code == CLOSING_LINE_UNREAD.code for note in log.warnings)


def _unmatched_error(
    expected: str,
    patterns: Mapping[str, str],
    run: RunDir,
    files: Sequence[tuple[str, str]],
    names: Sequence[str],
    planned: Manifest,
    misread: str = "",
) -> DataError:
    """Return the error of a run in whose logs no line matches.

    ``expected`` says which lines were. ``patterns`` are those that should have matched, by their
    keys in the folder, ``files`` the logs (host, name) in which they were sought, and ``names`` all
    logs of the first of these hosts. ``misread`` is a matched value that is not a number.
    """
    tags = tags_of(planned.grammar.prefix)
    host, name, detail = explain_mismatch(
        patterns, list(_texts(run, files[:_MOST_FILES], tags)), misread
    )
    remedy = f"correct {' or '.join(patterns)}"
    # Python's logging writes to standard error unless a program says otherwise.
    first = files[0][0] if files else planned.slots[0].host
    others = [(first, other) for other in names if (first, other) not in files]
    elsewhere = None if misread else _find_matching_log(patterns, run, others, tags)
    if elsewhere:
        key = "log.rank_files" if "log.rank" in patterns else "log.files"
        detail = f"{elsewhere} has such lines"
        remedy = f"name {elsewhere} in {key}"
    hint = f"{remedy} in the framework.yaml of {planned.framework}, then: orch summarize --reread"
    return DataError(
        f"{expected}; {detail}",
        kind="log_unmatched",
        host=host,
        where=name,
        hint=hint,
        phase="summarize",
    )


def _find_matching_log(
    patterns: Mapping[str, str], run: RunDir, files: Sequence[tuple[str, str]], tags: Tags
) -> str | None:
    """Return the name of the first of these logs with a line that a pattern matches."""
    for _, name, text in _texts(run, files[:_MOST_FILES], tags):
        if any(_finds(pattern)(text) for pattern in patterns.values()):
            return name
    return None


def explain_mismatch(
    patterns: Mapping[str, str], logs: Sequence[tuple[str, str, str]], misread: str = ""
) -> tuple[str, str, str]:
    """Return the host and the name of the log (host, name, text) that shows best why no pattern
    matches, and what it shows.

    ``patterns`` are those that should have matched, by key; ``misread`` is a matched value that is
    not a number.
    """
    host, name = logs[0][:2] if logs else ("", "")
    texts = [text for _, _, text in logs]
    # One that has lines is not the one that is wrong.
    without = {
        key: pattern for key, pattern in patterns.items() if not any(map(_finds(pattern), texts))
    }
    # Lines without a step belong to one, which the others have to give.
    of_steps = {key: pattern for key, pattern in without.items() if "(?P<step>" in pattern}
    nearest = _nearest(of_steps or without or patterns, logs)
    if misread:
        detail = f"lines match, but in the first of them {misread} is not a number"
    elif nearest:
        key, (host, name), miss = nearest
        detail = f"{key} comes nearest: {miss}"
    else:
        host, name, detail = next(_beginnings(patterns, logs), (host, name, "it is empty"))
    return host, name, detail


def _finds(pattern: str) -> Callable[[str], bool]:
    """Return a check for text with a line that a pattern matches."""
    search = re.compile(pattern, re.ASCII).search
    return lambda text: any(
        search(line[:_LINE_CHARACTERS]) for line in text.split("\n")[:_MOST_LINES]
    )


def _no_log(names: Sequence[str], planned: Manifest) -> DataError:
    """Return the error of a run that left no log with a name that the log grammar has; ``names``
    are those that it left.
    """
    left = ", ".join(sorted(names)[:_MOST_FILES]) or "none"
    return DataError(
        f"expected a log like {', '.join(planned.grammar.files)}, the exit record lists {left}",
        kind="log_unmatched" if names else "result_invalid",
        host=planned.slots[0].host,
        hint=f"correct log.files in the framework.yaml of {planned.framework}, then: orch summarize --reread",
        phase="summarize",
    )


def _texts(
    run: RunDir, files: Sequence[tuple[str, str]], tags: Tags
) -> Iterator[tuple[str, str, str]]:
    """Yield (host, name, text) of the beginning of each log that can be read, without the tags of a
    launcher.
    """
    for host, name in files:
        with suppress(OSError):
            raw = (
                first_bytes(run, host, name, _READ_BYTES)
                .replace(b"\r\n", b"\n")
                .replace(b"\r", b"\n")
            )
            yield host, name, "\n".join(map(tags.without, clean_text(raw).split("\n")))


def _nearest(
    patterns: Mapping[str, str], logs: Sequence[tuple[str, str, str]]
) -> tuple[str, tuple[str, str], NearMiss] | None:
    """Return the key, the log and the near miss of the pattern that matches the largest share of
    itself in a line.
    """
    misses = []
    for key, pattern in patterns.items():
        for host, name, text in logs:
            miss = near_miss(pattern, text)
            if miss:
                misses.append((key, (host, name), miss))
    return max(
        misses, key=lambda entry: len(entry[2].matched) / len(patterns[entry[0]]), default=None
    )


def _beginnings(
    patterns: Mapping[str, str], logs: Sequence[tuple[str, str, str]]
) -> Iterator[tuple[str, str, str]]:
    """Yield host and name of each log that is not empty, with how it begins."""
    for host, name, text in logs:
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        if lines:
            shown = ", ".join(repr(line[:_SHOWN_CHARACTERS]) for line in lines[:_SHOWN_LINES])
            yield (
                host,
                name,
                f"no line comes near {' or '.join(patterns)}; the log begins with {shown}",
            )
