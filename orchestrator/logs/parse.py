"""From the bytes of a log to step samples, by a grammar that is data.

A log is hostile text: it may be cut at any byte, hold several ranks, several attempts, colour codes and progress bars, or no
line end in 100 MB. Unknown lines never fail; a matched value that is no number is a warning. What the numbers *mean* is
`orchestrator.results.numbers.throughput`; which file belongs to which rank is `orchestrator.results.read`.

>>> grammar = LogGrammar(files=("*.out",), patterns=(r"step=(?P<step>[0-9]+) t=(?P<timestamp>[0-9.]+)",))
>>> [(s.step, s.timestamp) for s in parse(b"noise\\nstep=1 t=0.50\\nstep=2 t=0.7", grammar).samples]
[(1, 0.5)]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from mmap import mmap
from operator import eq, methodcaller
from typing import Any

from orchestrator.errors import DataError
from orchestrator.logs.columns import RankColumns
from orchestrator.logs.grammar import LogGrammar
from orchestrator.logs.patterns import Reader, columns, compiled
from orchestrator.logs.steps import VALUES, RankAggregate, StepSample, in_order, rows
from orchestrator.logs.text import LONG_LINE, TAG_END, blocks, by_rank, cleaned, clock, is_clean, tagged, whole, wholes
from orchestrator.strictjson import strict_json

__all__ = ["LINE_LIMIT", "Parsed", "parse"]

LINE_LIMIT = 64 * 1024
"""Bytes of one line that patterns see."""
_LONG_LINES_IN_ALL = 4 * 1024 * 1024
_MAX_SAMPLES = 400_000
"""Of one file, which take some 110 MiB."""
_MAX_WARNINGS = 20
_NO_STEP = "values without a step of their own were left out"  # the line with the step is damaged or missing


@dataclass(frozen=True, slots=True)
class Parsed:
    """What one file says.

    Samples in order of step, each step once; of lines that speak of one process each, the aggregate over ranks instead.
    (rank, world_size) of each rank line, the closing facts, and the groups of each line that the grammar calls a reading, as
    text."""

    said: tuple[StepSample, ...] | RankAggregate
    ranks: tuple[tuple[int, int | None], ...]
    closing: Mapping[str, Any] | None
    warnings: tuple[str, ...]
    readings: tuple[Mapping[str, str], ...] = ()

    @property
    def samples(self) -> tuple[StepSample, ...]:
        """The samples, of several processes their average."""
        return self.said.samples() if isinstance(self.said, RankAggregate) else self.said


def parse(data: bytes | mmap, grammar: LogGrammar, check: Callable[[], None] = lambda: None) -> Parsed:
    """Return what ``data`` says under ``grammar``. An unterminated last line is ignored: a number may be cut in it.

    ``check`` is called now and then and may raise, which is how a caller with a clock limits the time of a file.
    Raises ConfigError for a pattern that cannot be used, DataError (result_invalid) for a flood of samples.
    """
    collector = _Collector(grammar)
    long_bytes = 0
    newline = data.rfind(b"\n")
    for start, stop, is_long in blocks(data, max(newline, data.rfind(b"\r", newline + 1), 0)):
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


class _Collector:
    """Gathers matches line by line; `parsed` then sorts out ranks and attempts."""

    def __init__(self, grammar: LogGrammar) -> None:
        self.patterns = [compiled(f"log.patterns[{i}]", text, ("step", *VALUES)) for i, text in enumerate(grammar.patterns)]
        self.rank = compiled("log.rank", grammar.rank, ("rank", "world_size")) if grammar.rank else None
        self.closing_line = compiled("log.closing", grammar.closing, ("json",)) if grammar.closing else None
        self.reading = compiled("log.readings", grammar.readings, None) if grammar.readings else None
        self.others = [reader for reader in (self.rank, self.closing_line, self.reading) if reader]
        self.scope = grammar.scope
        self.shift = 1 - grammar.counts_from
        self.voices: dict[int | None, RankColumns] = defaultdict(RankColumns)
        self.days: dict[int | None, tuple[float, int]] = {}
        self.count = 0
        self.ranks: list[tuple[int, int | None]] = []
        self.closing: Mapping[str, Any] | None = None
        self.readings: list[Mapping[str, str]] = []
        self.warnings: dict[str, None] = {}

    def warn(self, text: str) -> None:
        if len(self.warnings) < _MAX_WARNINGS:
            self.warnings[text] = None

    def lines(self, raw: bytes) -> None:
        """Take a block of whole short lines. Where a literal is in the bytes it is in the text, unless escapes split it."""
        raw = raw.replace(b"\r", b"\n")
        if not any(reader.literal.encode() in raw for reader in (*self.patterns, *self.others)) and is_clean(raw):
            return
        text = cleaned(raw)
        steps, others = ([one for one in some if one.literal in text] for some in (self.patterns, self.others))
        # Who speaks, and how it ended, has lines of its own, as a rule; the steps then need not be read line by line.
        apart = _holding(text, others)
        mixed = any(one.literal in line for line in apart for one in steps)
        if steps and (mixed or not self._columns(steps, text)):
            apart = _holding(text, [*steps, *others])
        for line in apart:
            self.line(line, cut=False)

    def line(self, text: str, cut: bool) -> None:
        """Take one line; ``cut`` where its rest is missing, so that a match up to its end may hold half a number."""
        pieces = tagged(text) if TAG_END in text else [(None, text)]
        for number, (tag, piece) in enumerate(pieces, start=1):
            self._piece(tag, piece, len(piece) if cut and number == len(pieces) else -1)

    def _columns(self, readers: Sequence[Reader], text: str) -> bool:
        """Take a block, a column of values at a time. False, and nothing taken, where a line of it has less than a step and
        all its values as plain numbers, or where only the order of lines tells what belongs together: that is for `line`."""
        days = self.days.copy()
        try:
            tables = [(tag, *self._table(tag, readers, said)) for tag, said in by_rank(text).items()]
        except ValueError:
            self.days = days
            return False
        for tag, leading, steps, values in tables:
            voice = self.voices[tag]
            if leading and not voice.complete(leading):
                self.warn(_NO_STEP)
            # The first may complete the step before it; each of the others follows one that lacks nothing.
            again = bool(steps) and steps[:1] == voice.steps[-1:]
            done = int(again and voice.complete({name: column[0] for name, column in values.items()}))
            self._count(len(steps) - done)
            voice.add(steps[done:], {name: column[done:] for name, column in values.items()})
        return True

    def _table(
        self, tag: int | None, readers: Sequence[Reader], text: str
    ) -> tuple[Mapping[str, Any], Sequence[int], Mapping[str, Sequence[Any]]]:
        """Return what a text says of the step before them, their own steps, and the values of these. Raises ValueError."""
        leading, texts = columns(readers, text)
        steps = wholes(texts.pop("step", []))
        if self.shift:
            steps = [step + self.shift for step in steps]
        all_steps = self.voices[tag].steps[-1:] + steps
        if len(steps) == len(all_steps) and leading:
            raise ValueError("no step that values could belong to")
        if (len(readers) > 1 or not texts) and any(map(eq, all_steps, all_steps[1:])):
            raise ValueError("a step twice, and lines that may complete the first or be the second")
        gaps = len(readers) > 1
        before = {name: value for name, text in leading.items() for value in self._values(tag, name, [text], gaps)}
        return before, steps, {name: self._values(tag, name, column, gaps) for name, column in texts.items()}

    def _values(self, tag: int | None, name: str, texts: Sequence[str | None], gaps: bool) -> list[Any]:
        """Return the values of a column, None where it has no text, which may be with ``gaps``. Raises ValueError where one is
        no number."""
        there: Sequence[Any] = [text for text in texts if text is not None] if gaps and None in texts else texts
        if name == "timestamp" and there and ":" in there[0]:
            values: list[Any] = [self._value(tag, name, text) for text in there]
            if None in values:
                raise ValueError(name)
        else:
            values = wholes(there) if name == "samples" else list(map(float, there))
        found = iter(values)
        return values if len(there) == len(texts) else [None if text is None else next(found) for text in texts]

    def _piece(self, tag: int | None, text: str, cut_at: int) -> None:
        found = [
            match
            for reader in self.patterns
            if reader.literal in text
            for match in reader.pattern.finditer(text)
            if match.end() != cut_at
        ]
        for match in sorted(found, key=methodcaller("start")) if len(found) > 1 else found:
            self._sample(tag, match.groupdict())
        for match in self.rank.pattern.finditer(text) if self.rank and self.rank.literal in text else ():
            if match.end() != cut_at:
                self._rank(match.groupdict())
        closing = self.closing_line
        for match in closing.pattern.finditer(text) if closing and closing.literal in text else ():
            self._closing(match["json"])
        reading = self.reading
        for match in reading.pattern.finditer(text) if reading and reading.literal in text else ():
            if match.end() != cut_at:
                self._count(1)
                self.readings.append({name: value for name, value in match.groupdict().items() if value is not None})

    def _rank(self, groups: Mapping[str, str | None]) -> None:
        rank, world_size = whole(groups.get("rank")), whole(groups.get("world_size"))
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
        voice = self.voices[tag]
        # A pattern without a step (a monitor's line below the line of its epoch) speaks of the step before it.
        if groups.get("step") is None:
            step = voice.steps[-1] if voice.steps else None
        else:
            printed = whole(groups["step"])
            step = None if printed is None else printed + self.shift
        texts = [(name, text) for name, text in groups.items() if text is not None and name != "step"]
        values = {name: self._value(tag, name, text) for name, text in texts}
        if step is None or None in values.values():
            self.warn("step lines with a value that is no number were left out")
            return
        if not self._take(tag, step, values, own=groups.get("step") is not None):
            self.warn(_NO_STEP)

    def _take(self, tag: int | None, step: int, values: Mapping[str, Any], own: bool = True) -> bool:
        """Add values to the last step if it is this one and lacks them, else as a step; False where it is not their own."""
        voice = self.voices[tag]
        if voice.steps[-1:] == [step] and voice.complete(values):
            return True
        if own:
            self._count(1)
            voice.add([step], {name: [value] for name, value in values.items()})
        return own

    def _count(self, more: int) -> None:
        self.count += more
        if self.count > _MAX_SAMPLES:
            raise DataError(f"expected at most {_MAX_SAMPLES} step lines in a file, found more", kind="result_invalid")

    def _value(self, tag: int | None, name: str, text: str) -> Any:
        if name == "samples":
            return whole(text)
        if name == "timestamp" and ":" in text:
            return self._clock(tag, text)
        try:
            return float(text)
        except ValueError:
            return None

    def _clock(self, tag: int | None, text: str) -> float | None:
        """Return the seconds of a clock as printed. One without a date gains a day where it falls by more than 12 hours."""
        found = clock(text)
        if not found:
            return None
        day, of_day = found
        if day is not None:
            return day * 86400 + of_day
        before, days = self.days.get(tag, (of_day, 0))
        days += of_day < before - 43200
        self.days[tag] = (of_day, days)
        return days * 86400 + of_day

    def parsed(self) -> Parsed:
        spoken = {tag: voice for tag, voice in self.voices.items() if voice.steps}
        said: RankAggregate | tuple[StepSample, ...] = ()
        if self.scope == "process":
            said = RankAggregate()
            for voice in spoken.values():
                for part in self._complete(voice, slack=1):
                    said.add(*part)
        elif spoken:
            # Ranks of a run that print the global rate all say the same: one is taken, never the sum.
            first = min(spoken, key=lambda tag: (tag is not None, tag or 0))
            steps, values = self._complete(spoken[first], slack=0)[-1]
            taken = rows(steps, values)
            said = tuple(taken if in_order(steps) else {sample.step: sample for sample in taken}.values())
        return Parsed(said, tuple(self.ranks), self.closing, tuple(self.warnings), tuple(self.readings))

    def _complete(self, voice: RankColumns, slack: int) -> list[tuple[list[int], dict[str, list[Any]]]]:
        """Split where the step goes back, and return the last attempt that gets as far as any.

        Untagged ranks appended to one another look like attempts over the same steps; where lines speak of one process
        each, all of them are returned. Interleaved ranks are a step apart at most, hence ``slack``.
        """
        starts = _attempts(voice.steps, slack)
        attempts = list(zip(starts, [*starts[1:], len(voice.steps)], strict=True))
        ends = [max(voice.steps[start:stop]) for start, stop in attempts]
        reached = max(ends)
        whole = [attempt for attempt, end in zip(attempts, ends, strict=True) if end == reached]
        alike = [attempt for attempt in whole if voice.steps[attempt[0]] == voice.steps[whole[-1][0]]]
        if self.scope == "process" and len(alike) == len(attempts) > 1:
            self.warn(f"{len(attempts)} series of the same steps in one file were taken as {len(attempts)} ranks")
            return [voice.part(*attempt) for attempt in alike]
        if len(attempts) > 1:
            self.warn(f"the step goes back {len(attempts) - 1} times: the last attempt that reaches step {reached} is taken")
        return [voice.part(*whole[-1])]


def _holding(text: str, readers: Sequence[Reader]) -> list[str]:
    """Return the lines of a text that hold a literal of any of the readers; none is empty."""
    lines = filter(None, text.split("\n")) if readers else ()
    return [line for line in lines if any([reader.literal in line for reader in readers])]


def _attempts(steps: list[int], slack: int) -> list[int]:
    """Return where attempts begin: at the first step, and where one is lower than one before it by more than ``slack``."""
    if steps == sorted(steps):
        return [0]
    starts, highest = [0], steps[0]
    for row, step in enumerate(steps):
        if step < highest - slack:
            starts.append(row)
            highest = step
        elif step > highest:
            highest = step
    return starts
