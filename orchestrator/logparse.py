"""From the bytes of a log to step samples, by a grammar that is data.

A log is hostile text: it may be cut at any byte, hold several ranks, several attempts, colour codes and progress bars, or no
line end in 100 MB. Unknown lines never fail; a matched value that is no number is a warning. What the numbers *mean* is
`orchestrator.stats`; which file belongs to which rank is `orchestrator.results`.

>>> grammar = LogGrammar(files=("*.out",), patterns=(r"step=(?P<step>[0-9]+) t=(?P<timestamp>[0-9.]+)",))
>>> [(s.step, s.timestamp) for s in parse(b"noise\\nstep=1 t=0.50\\nstep=2 t=0.7", grammar).samples]
[(1, 0.5)]
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import chain, islice, repeat
from typing import Any

from orchestrator.errors import DataError
from orchestrator.framework import LogGrammar
from orchestrator.logpattern import Reader, compiled
from orchestrator.logtext import LONG_LINE, blocks, cleaned, is_clean
from orchestrator.strictjson import strict_json

__all__ = ["LINE_LIMIT", "Parsed", "StepSample", "combine", "parse"]

LINE_LIMIT = 64 * 1024
"""Bytes of one line that patterns see."""
_LONG_LINES_IN_ALL = 4 * 1024 * 1024
_MAX_SAMPLES = 2_000_000
_MAX_WARNINGS = 20
_ABSURD = 1e15

_VALUES = ("timestamp", "step_time_s", "samples_per_s", "steps_per_s", "elapsed_s", "samples")
# mpirun --tag-output: Open MPI 4 prints "[1,3]<stdout>:", Open MPI 5 "[prterun-node-7@1,3]<stdout>: ".
_RANK_TAG = re.compile(r"\[(?:[^\[\]\s]{1,200}@)?[0-9]{1,9},([0-9]{1,9})\]<std(?:out|err|diag)>:? ?")
_CLOCK = re.compile(r"(?:(\d{4})-(\d\d)-(\d\d)[ T]|\d{4} )?(\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class StepSample:
    """A step and what the log says of it. ``timestamp`` is seconds on one clock at the END of the step, ``elapsed_s`` since
    the start of training; rates are as printed, so what they cover is the grammar's ``scope`` and ``cumulative``."""

    step: int
    timestamp: float | None = None
    step_time_s: float | None = None
    samples_per_s: float | None = None
    steps_per_s: float | None = None
    elapsed_s: float | None = None
    samples: int | None = None


@dataclass(frozen=True, slots=True)
class Parsed:
    """What one file says: samples in order of step, each step once, (rank, world_size) of each rank line, the closing facts."""

    samples: tuple[StepSample, ...]
    ranks: tuple[tuple[int, int | None], ...]
    closing: Mapping[str, Any] | None
    warnings: tuple[str, ...]


def parse(data: bytes, grammar: LogGrammar, check: Callable[[], None] = lambda: None) -> Parsed:
    """Return what ``data`` says under ``grammar``. An unterminated last line is ignored: a number may be cut in it.

    ``check`` is called now and then and may raise, which is how a caller with a clock limits the time of a file.
    Raises ConfigError for a pattern that cannot be used, DataError (result_invalid) for a flood of samples.
    """
    collector = _Collector(grammar)
    long_bytes = 0
    for start, stop, is_long in blocks(data, max(data.rfind(b"\n"), data.rfind(b"\r"), 0)):
        check()
        if not is_long:
            collector.lines(data[start:stop])
            continue
        long_bytes += min(stop - start, LINE_LIMIT)
        if long_bytes > _LONG_LINES_IN_ALL:
            collector.warn(f"lines over {LONG_LINE} bytes beyond {_LONG_LINES_IN_ALL} bytes of them were not read")
            continue
        collector.line(cleaned(data[start : min(stop, start + LINE_LIMIT)]), cut=stop - start > LINE_LIMIT)
    return collector.parsed()


def combine(series: Sequence[Sequence[StepSample]]) -> tuple[StepSample, ...]:
    """Return one series for several ranks of a synchronous run: times averaged, rates averaged by time.

    A step counts only where as many ranks spoke as at most steps, so that a cut rank takes its steps with it.
    """
    by_step: dict[int, list[StepSample]] = {}
    for sample in (sample for one in series for sample in one):
        by_step.setdefault(sample.step, []).append(sample)
    counts = Counter(len(samples) for samples in by_step.values())
    voices = max(counts, key=lambda count: (counts[count], count), default=0)
    return tuple(_average(samples) for _, samples in sorted(by_step.items()) if len(samples) == voices)


class _Collector:
    """Gathers matches line by line; `parsed` then sorts out ranks and attempts."""

    def __init__(self, grammar: LogGrammar) -> None:
        self.patterns = [compiled(f"log.patterns[{i}]", text, ("step", *_VALUES)) for i, text in enumerate(grammar.patterns)]
        self.rank = compiled("log.rank", grammar.rank, ("rank", "world_size")) if grammar.rank else None
        self.closing_line = compiled("log.closing", grammar.closing, ("json",)) if grammar.closing else None
        self.readers = [reader for reader in (*self.patterns, self.rank, self.closing_line) if reader]
        self.scope = grammar.scope
        self.shift = 1 - grammar.counts_from
        self.voices: dict[int | None, list[StepSample]] = {}
        self.days: dict[int | None, tuple[float, int]] = {}
        self.count = 0
        self.ranks: list[tuple[int, int | None]] = []
        self.closing: Mapping[str, Any] | None = None
        self.warnings: dict[str, None] = {}

    def warn(self, text: str) -> None:
        if len(self.warnings) < _MAX_WARNINGS:
            self.warnings[text] = None

    def lines(self, raw: bytes) -> None:
        """Take a block of whole short lines. Where a literal is in the bytes it is in the text, unless escapes split it."""
        raw = raw.replace(b"\r", b"\n")
        if not any(reader.literal.encode() in raw for reader in self.readers) and is_clean(raw):
            return
        text = cleaned(raw)
        readers = [reader for reader in self.readers if reader.literal in text]
        if len(readers) == 1 and readers[0] in self.patterns and self._columns(readers[0], text):
            return
        literals = [reader.literal for reader in readers]
        for line in filter(None, text.split("\n") if readers else ()):
            for literal in literals:
                if literal in line:
                    self.line(line, cut=False)
                    break

    def line(self, text: str, cut: bool) -> None:
        """Take one line; ``cut`` where its rest is missing, so that a match up to its end may hold half a number."""
        if "]<std" not in text:
            return self._piece(None, text, len(text) if cut else -1)
        pieces = _RANK_TAG.split(text)
        tags: list[int | None] = [None, *(int(tag) for tag in pieces[1::2])]
        for tag, piece in zip(tags, pieces[::2], strict=True):
            self._piece(tag, piece, len(piece) if cut and piece is pieces[-1] else -1)
        return None

    def _columns(self, reader: Reader, text: str) -> bool:
        """Take a block whose lines one pattern reads, a column of values at a time. False, and nothing taken, where a line
        has less than a step and all its values as plain numbers: that is for `line`."""
        groups = reader.pattern.groupindex
        names = [name for name in _VALUES if name in groups]
        by_tag = _by_tag([line for line in text.split("\n") if line and reader.literal in line])
        if not names or "step" not in groups:
            return False
        days = self.days.copy()
        found: list[tuple[int | None, list[int], dict[str, list[Any]]]] = []
        for tag, lines in by_tag.items():
            rows = list(chain.from_iterable(map(reader.pattern.findall, lines)))
            try:
                steps = _wholes(reader.column(rows, "step"))
                values = {name: self._values(tag, name, reader.column(rows, name)) for name in names}
            except ValueError:
                self.days = days
                return False
            found.append((tag, [step + self.shift for step in steps], values))
        for tag, steps, values in found:
            if steps:
                # The first may complete the step before it; each of the others follows one that lacks nothing.
                self._take(tag, steps[0], {name: column[0] for name, column in values.items()})
                self._count(len(steps) - 1)
                columns: list[Iterable[Any]] = [values.get(name, repeat(None)) for name in _VALUES]
                self.voices[tag].extend(islice(map(StepSample, steps, *columns), 1, None))
        return True

    def _values(self, tag: int | None, name: str, texts: Sequence[str]) -> list[Any]:
        """Return the values of a column, all of them. Raises ValueError where one is no number."""
        if name == "samples":
            return _wholes(texts)
        if name != "timestamp" or not texts or ":" not in texts[0]:
            return list(map(float, texts))
        values = [self._value(tag, name, text) for text in texts]
        if None in values:
            raise ValueError(name)
        return values

    def _piece(self, tag: int | None, text: str, cut_at: int) -> None:
        found = [
            match
            for reader in self.patterns
            if reader.literal in text
            for match in reader.pattern.finditer(text)
            if match.end() != cut_at
        ]
        for match in sorted(found, key=re.Match.start) if len(found) > 1 else found:
            self._sample(tag, match.groupdict())
        for match in self.rank.pattern.finditer(text) if self.rank and self.rank.literal in text else ():
            if match.end() != cut_at:
                self._rank(match.groupdict())
        closing = self.closing_line
        for match in closing.pattern.finditer(text) if closing and closing.literal in text else ():
            self._closing(match["json"])

    def _rank(self, groups: Mapping[str, str | None]) -> None:
        rank, world_size = _whole(groups.get("rank")), _whole(groups.get("world_size"))
        if rank is None or len(self.ranks) >= _MAX_SAMPLES:
            self.warn("a rank line without a usable rank")
        else:
            self.ranks.append((rank, world_size))

    def _closing(self, text: str) -> None:
        try:
            value = strict_json(text, "closing line")
        except DataError as error:
            self.warn(str(error))
            return
        if not isinstance(value, dict):
            self.warn(f"closing line: expected a JSON object, got {type(value).__name__}")
            return
        if self.closing not in (None, value):
            self.warn("several closing lines that differ; the last is taken")
        self.closing = value

    def _sample(self, tag: int | None, groups: Mapping[str, str | None]) -> None:
        voice = self.voices.setdefault(tag, [])
        # A pattern without a step (a monitor's line below the line of its epoch) speaks of the step before it.
        if groups.get("step") is None:
            step = voice[-1].step if voice else None
        else:
            printed = _whole(groups["step"])
            step = None if printed is None else printed + self.shift
        texts = [(name, text) for name, text in groups.items() if text is not None and name != "step"]
        values = {name: self._value(tag, name, text) for name, text in texts}
        if step is None or None in values.values():
            self.warn("step lines with a value that is no number were left out")
            return
        if not self._take(tag, step, values, own=groups.get("step") is not None):
            # The line with the step it belongs to is damaged or missing.
            self.warn("values without a step of their own were left out")

    def _take(self, tag: int | None, step: int, values: Mapping[str, Any], own: bool = True) -> bool:
        """Add values to the last step if it is this one and lacks them, else as a step; False where it is not their own."""
        voice = self.voices.setdefault(tag, [])
        if voice and (last := voice[-1]).step == step and not any([getattr(last, name) is not None for name in values]):
            voice[-1] = StepSample(step, *[values.get(name, getattr(last, name)) for name in _VALUES])
            return True
        if own:
            self._count(1)
            voice.append(StepSample(step, **values))
        return own

    def _count(self, more: int) -> None:
        self.count += more
        if self.count > _MAX_SAMPLES:
            raise DataError(f"expected at most {_MAX_SAMPLES} step lines in a file, found more", kind="result_invalid")

    def _value(self, tag: int | None, name: str, text: str) -> Any:
        if name == "samples":
            return _whole(text)
        if name == "timestamp" and ":" in text:
            return self._clock(tag, text)
        try:
            return float(text)
        except ValueError:
            return None

    def _clock(self, tag: int | None, text: str) -> float | None:
        """Return the seconds of a clock as printed. One without a date gains a day where it falls by more than 12 hours."""
        match = _CLOCK.fullmatch(text.strip())
        if not match:
            return None
        year, month, day, hours, minutes, seconds, fraction = match.groups()
        of_day = int(hours) * 3600 + int(minutes) * 60 + int(seconds) + float(f"0.{fraction or 0}")
        if year:
            try:
                return date(int(year), int(month), int(day)).toordinal() * 86400 + of_day
            except ValueError:
                return None
        before, days = self.days.get(tag, (of_day, 0))
        days += of_day < before - 43200
        self.days[tag] = (of_day, days)
        return days * 86400 + of_day

    def parsed(self) -> Parsed:
        spoken = {tag: voice for tag, voice in self.voices.items() if voice}
        if self.scope == "process":
            series = [one for voice in spoken.values() for one in self._complete(voice, slack=1)]
            samples = combine(series)
        else:
            # Ranks of a run that print the global rate all say the same: one is taken, never the sum.
            first = min(spoken, key=lambda tag: (tag is not None, tag or 0), default=None)
            last_of_step = {sample.step: sample for sample in self._complete(spoken[first], slack=0)[-1]} if spoken else {}
            samples = tuple(last_of_step.values())
        return Parsed(samples, tuple(self.ranks), self.closing, tuple(self.warnings))

    def _complete(self, voice: Sequence[StepSample], slack: int) -> list[list[StepSample]]:
        """Split where the step goes back, and return the last attempt that gets as far as any.

        Untagged ranks appended to one another look like attempts over the same steps; where lines speak of one process
        each, all of them are returned. Interleaved ranks are a step apart at most, hence ``slack``.
        """
        attempts = _attempts(voice, slack)
        ends = [max(sample.step for sample in attempt) for attempt in attempts]
        reached = max(ends)
        whole = [attempt for attempt, end in zip(attempts, ends, strict=True) if end == reached]
        alike = [attempt for attempt in whole if attempt[0].step == whole[-1][0].step]
        if self.scope == "process" and len(alike) == len(attempts) > 1:
            self.warn(f"{len(attempts)} series of the same steps in one file were taken as {len(attempts)} ranks")
            return alike
        if len(attempts) > 1:
            self.warn(f"the step goes back {len(attempts) - 1} times: the last attempt that reaches step {reached} is taken")
        return whole[-1:]


def _attempts(voice: Sequence[StepSample], slack: int) -> list[list[StepSample]]:
    attempts: list[list[StepSample]] = []
    highest = -1
    for sample in voice:
        if not attempts or sample.step < highest - slack:
            attempts.append([])
            highest = sample.step
        attempts[-1].append(sample)
        if sample.step > highest:
            highest = sample.step
    return attempts


def _average(samples: Sequence[StepSample]) -> StepSample:
    if len(samples) == 1:
        return samples[0]
    values: dict[str, Any] = {}
    for name in _VALUES:
        found = [value for sample in samples if (value := getattr(sample, name)) is not None]
        if len(found) < len(samples):
            continue
        if name == "samples":
            values[name] = found[0] if len(set(found)) == 1 else None
        elif not all(1 / _ABSURD < abs(value) < _ABSURD or value == 0 for value in found):
            values[name] = math.nan
        elif name.endswith("_per_s"):
            values[name] = len(found) / math.fsum(1 / value for value in found) if all(value > 0 for value in found) else 0.0
        else:
            values[name] = math.fsum(found) / len(found)
    return StepSample(samples[0].step, **values)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and len(text) <= 15 and text.isascii() and text.isdigit() else None


def _by_tag(lines: Sequence[str]) -> Mapping[int | None, Sequence[str]]:
    """Return what each rank says, for several may have written to a line."""
    if not any("]<std" in line for line in lines):
        return {None: lines}
    found: dict[int | None, list[str]] = {}
    for line in lines:
        first, *tagged = _RANK_TAG.split(line)
        if first:
            found.setdefault(None, []).append(first)
        for tag, piece in zip(tagged[::2], tagged[1::2], strict=True):
            found.setdefault(int(tag), []).append(piece)
    return found


def _wholes(texts: Sequence[str]) -> list[int]:
    joined = "".join(texts)
    if texts and (not (joined.isascii() and joined.isdigit()) or max(map(len, texts)) > 15):
        raise ValueError("not whole numbers")
    return list(map(int, texts))
