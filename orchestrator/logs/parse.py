"""Parse step samples from the bytes of a log, by a grammar that is data.

A log is hostile text: it may be cut at any byte, contain several ranks, several attempts, colour
codes and progress bars, or no line end in 100 MB. Unknown lines are never an error; a matched value
that is not a number is a warning. `orchestrator.results.numbers.throughput` interprets the numbers;
`orchestrator.results.run_evidence` assigns files to ranks.

>>> grammar = LogGrammar(files=("*.out",), patterns=(r"step=(?P<step>[0-9]+) t=(?P<timestamp>[0-9.]+)",))
>>> [(s.step, s.timestamp) for s in parse(b"noise\\nstep=1 t=0.50\\nstep=2 t=0.7", grammar).samples]
[(1, 0.5)]
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from mmap import mmap
from operator import eq, methodcaller
from typing import Any

from orchestrator.errors import DataError
from orchestrator.logs.agreements import Row
from orchestrator.logs.columns import RankColumns, are_as_fast, attempts_in, with_counts
from orchestrator.logs.grammar import Agreement, LogGrammar
from orchestrator.logs.launchers import launcher_prefix
from orchestrator.logs.left_out import LeftOut
from orchestrator.logs.micro_batches import as_steps
from orchestrator.logs.near_miss import may_begin
from orchestrator.logs.notes import (
    LINE_CUT_OFF,
    LONG_LINES_CUT,
    NO_STEP,
    NOT_A_NUMBER,
    READ_AS_RANKS,
    STEP_GOES_BACK,
)
from orchestrator.logs.numbers import Finest
from orchestrator.logs.patterns import (
    Reader,
    columns,
    compile_pattern,
    lines_with,
    shortest,
    step_readers,
    tags_of,
)
from orchestrator.logs.statements import Statements
from orchestrator.logs.steps import RankAggregate, StepSample, in_order, rows
from orchestrator.logs.text import LONG_LINE, blocks, by_rank, clean_text, clock, is_clean, wholes
from orchestrator.notes import Note
from orchestrator.plural import times

LINE_LIMIT = 64 * 1024
"""The patterns read this many bytes of a line."""
_LONG_LINES_IN_ALL = 4 * 1024 * 1024
_MAX_SAMPLES = 400_000
"""Limit for one file; so many samples need about 110 MiB."""
_MAX_WARNINGS = 20
_RESOLVED = 1000
"""The resolution of printed numbers is taken from the first lines, or one line of each block."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The content of one file.

    ``said``: samples in order of step, without equal ones, or the aggregate over ranks if each line
    is about one process. ``ranks``: (rank, world_size) of each rank line. ``rank_parts``: the JSON
    of each line with the parts of a rank's steps. ``closing``: the facts of the closing line.
    ``readings``: the groups of each line that matches the grammar's ``readings`` or has metrics of
    a step, as text. ``misread``: the first matched value that is not a number, with its name.
    ``resolution`` is what a unit of the last printed digit of each value is worth, by name, taken
    from some of its lines. ``void``: why the log has no results although it has lines with some;
    ``facts``: what it says of the size of its run, the line by value by name; ``listed``: how often
    its list of ranks has each rank, ``places`` each host and device; ``open_rows``: rows with
    agreements that depend on the size of the run; ``prefix``: that of a launcher, if the grammar
    does not declare it.
    """

    said: tuple[StepSample, ...] | RankAggregate
    ranks: tuple[tuple[int, int | None], ...]
    closing: Mapping[str, Any] | None
    warnings: tuple[Note, ...]
    readings: tuple[Mapping[str, str], ...] = ()
    misread: str = ""
    rank_parts: tuple[str, ...] = ()
    resolution: Mapping[str, float] = field(default_factory=dict, compare=False, repr=False)
    void: tuple[str, ...] = ()
    facts: Mapping[str, Mapping[Any, str]] = field(default_factory=dict)
    listed: Mapping[int, int] = field(default_factory=dict)
    places: Mapping[tuple[str, str], int] = field(default_factory=dict)
    open_rows: tuple[tuple[Row, Sequence[Agreement]], ...] = ()
    prefix: str = ""

    @property
    def has_results(self) -> bool:
        """Whether it has a step or a line with results."""
        return bool(self.readings or self.samples)

    @property
    def samples(self) -> tuple[StepSample, ...]:
        """The samples, averaged over the ranks if each line is about one process."""
        if isinstance(self.said, RankAggregate):
            return self.said.samples()
        return self.said


def parse(
    data: bytes | mmap, grammar: LogGrammar, check: Callable[[], None] = lambda: None
) -> Parsed:
    """Parse ``data`` by ``grammar``. An unterminated last line is ignored, with a warning if it has
    results: it may be cut.

    A log without results is read again without the prefix of its launcher, if it has one that the
    grammar does not know. ``check`` is called regularly and may raise; callers use it to limit the
    time for a file. Raises ConfigError for a pattern that cannot be used, DataError
    (result_invalid) for too many samples.
    """
    parsed = _parse(data, grammar, check)
    prefix = "" if grammar.prefix or parsed.has_results else launcher_prefix(data)
    if prefix:
        again = _parse(data, replace(grammar, prefix=prefix), check)
        if again.has_results:
            return replace(again, prefix=prefix)
    return parsed


def _parse(data: bytes | mmap, grammar: LogGrammar, check: Callable[[], None]) -> Parsed:
    collector = _Collector(grammar)
    long_bytes = 0
    last = max(newline := data.rfind(b"\n"), data.rfind(b"\r", newline + 1))
    collector.read_cut_line(data[last + 1 : last + 1 + LONG_LINE])
    for start, stop, is_long in blocks(data, max(last, 0)):
        check()
        if not is_long:
            collector.lines(data[start:stop])
            continue
        long_bytes += min(stop - start, LINE_LIMIT)
        if long_bytes > _LONG_LINES_IN_ALL:
            collector.warn(LONG_LINES_CUT(line_bytes=LONG_LINE, most_bytes=_LONG_LINES_IN_ALL))
            continue
        collector.line(
            clean_text(data[start : min(stop, start + LINE_LIMIT)]), cut=stop - start > LINE_LIMIT
        )
    return collector.finish()


class _Collector:
    """Collects matches line by line; `finish` then separates ranks and attempts."""

    def __init__(self, grammar: LogGrammar) -> None:
        self.patterns, self.metrics = step_readers(
            grammar.by_key("patterns"), grammar.metric_groups
        )
        rows_by_key = {
            key: compile_pattern(key, text, None)
            for key, text in grammar.by_key("readings").items()
        }
        self.rows = list(rows_by_key.values())
        of_metrics = {metric.group or metric.name for metric in grammar.metrics}
        self.measured = of_metrics if grammar.patterns and grammar.agreements else None
        by_key = dict(zip(grammar.by_key("patterns"), self.patterns, strict=True))
        facts = {
            key: compile_pattern(key, text, None) for key, text in grammar.by_key("facts").items()
        }
        # A step without a time or a loss is missing, or judged, where steps are.
        results = () if grammar.patterns else self.rows
        self.left_out = LeftOut({**by_key, **rows_by_key, **facts}, results)
        self.statements = Statements(grammar, self.left_out.hit)
        self.others = [*self.statements.readers, *self.rows, *self.metrics]
        plain = {
            reader.literal for reader in (*self.patterns, *self.others)
        } | self.left_out.literals
        self.literals = [literal.encode() for literal in shortest(plain)]
        self.scope, self.shift = grammar.scope, 1 - grammar.counts_from
        self.numbers, self.tags = grammar.numbers, tags_of(grammar.prefix)
        self.factors = {name: grammar.factor(name) for name in grammar.units}
        self.finest = Finest(self.numbers, self.factors)
        self.voices: dict[int | None, RankColumns] = defaultdict(RankColumns)
        self.days: dict[int | None, tuple[float, int]] = {}
        self.count, self.misread = 0, ""
        self.micro_batches = grammar.micro_batches if isinstance(grammar.micro_batches, int) else 1
        self.readings: list[Mapping[str, str]] = []
        self.warnings: dict[Note, None] = {}

    def warn(self, note: Note) -> None:
        if len(self.warnings) < _MAX_WARNINGS:
            self.warnings[note] = None

    def read_cut_line(self, raw: bytes) -> None:
        text = clean_text(raw)
        pieces = [piece for _, piece in self.tags.pieces(text)]
        readers = (*self.rows, *self.metrics) if raw else ()  # each has many patterns of cut lines
        if any(may_begin(reader.pattern.pattern, piece) for piece in pieces for reader in readers):
            self.warn(LINE_CUT_OFF(line=text[:100]))
        self.statements.read_last(pieces)

    def lines(self, raw: bytes) -> None:
        """Read a block of whole short lines. A literal in the text is in the bytes too, unless
        escapes split it.
        """
        raw = raw.replace(b"\r", b"\n")
        if not any(literal in raw for literal in self.literals) and is_clean(raw):
            return
        text = clean_text(raw)
        self.left_out.hits.clear()
        is_tagged, block = self.tags.literal in text, f"\n{text}"
        steps = [reader for reader in self.patterns if reader.may_be_in(block, is_tagged)]
        others = [reader for reader in self.others if reader.may_be_in(block, is_tagged)]
        # Rank lines and closing lines are usually separate from step lines, which then need not be
        # read line by line.
        lines = lines_with(text, others)
        mixed = any(reader.literal in line for line in lines for reader in steps)
        if steps and (mixed or not self._columns(steps, text)):
            lines = lines_with(text, [*steps, *others])
        for line in lines:
            self.line(line, cut=False)
        self.left_out.look(text, self.tags)

    def line(self, text: str, cut: bool) -> None:
        """Read one line; ``cut``: its rest is missing, so that a match up to its end may contain
        half a number.
        """
        pieces = self.tags.pieces(text)
        for number, (tag, piece) in enumerate(pieces, start=1):
            self._piece(tag, piece, len(piece) if cut and number == len(pieces) else -1)

    def _columns(self, readers: Sequence[Reader], text: str) -> bool:
        """Read a block by columns of values. Return False, and take nothing, if only `line` can
        read it: a line has less than a step and all its values as plain numbers, or only the order
        of the lines shows which values belong together."""
        days = self.days.copy()
        try:
            tables = [
                (tag, *self._table(tag, readers, lines))
                for tag, lines in by_rank(text, self.tags).items()
            ]
        except ValueError:
            self.days = days
            return False
        for tag, leading, steps, values in tables:
            for reader in readers:
                self.left_out.hit_columns(reader, leading, {"step": steps, **values})
            voice = self.voices[tag]
            if leading and not (voice.complete(leading) or voice.renew(leading)):
                self.warn(NO_STEP())
            # The first row may complete the previous step; each of the others follows a complete
            # one.
            again = bool(steps) and steps[:1] == voice.steps[-1:]
            done = int(
                again and voice.complete({name: column[0] for name, column in values.items()})
            )
            self._count(len(steps) - done)
            voice.add(steps[done:], {name: column[done:] for name, column in values.items()})
        return True

    def _table(
        self, tag: int | None, readers: Sequence[Reader], text: str
    ) -> tuple[Mapping[str, Any], Sequence[int], Mapping[str, Sequence[Any]]]:
        """Return a text's values for the step before its first one, its own steps, and their
        values. Raises ValueError.
        """
        leading, texts = columns(readers, text)
        steps = wholes(self.numbers.join_digits(texts.pop("step", [])))
        if self.shift:
            steps = [step + self.shift for step in steps]
        all_steps = self.voices[tag].steps[-1:] + steps
        if len(steps) == len(all_steps) and leading:
            raise ValueError("no step that values could belong to")
        if (len(readers) > 1 or not texts) and any(map(eq, all_steps, all_steps[1:])):
            raise ValueError("a duplicate step, and lines that may belong to either")
        gaps = len(readers) > 1
        before = {
            name: value
            for name, text in leading.items()
            for value in self._values(tag, name, [text], gaps)
        }
        return (
            before,
            steps,
            {name: self._values(tag, name, column, gaps) for name, column in texts.items()},
        )

    def _values(
        self, tag: int | None, name: str, texts: Sequence[str | None], gaps: bool
    ) -> list[Any]:
        """Return the values of a column, None for rows without a text, which only occur with
        ``gaps``. Raises ValueError for a text that is not a number."""
        present: Sequence[Any] = (
            [text for text in texts if text is not None] if gaps and None in texts else texts
        )
        for text in present[:1]:
            self.finest.see(name, text)
        if name == "timestamp" and present and ":" in present[0]:
            values: list[Any] = [self._value(tag, name, text) for text in present]
            if None in values:
                raise ValueError(name)
        else:
            values = (
                wholes(self.numbers.join_digits(present))
                if name == "samples"
                else self.numbers.numbers(present)
            )
            if factor := self.factors.get(name):
                values = [value * factor for value in values]
        remaining = iter(values)
        if len(present) == len(texts):
            return values
        return [None if text is None else next(remaining) for text in texts]

    def _piece(self, tag: int | None, text: str, cut_at: int) -> None:
        searched = [
            reader.pattern.finditer(text) for reader in self.patterns if reader.literal in text
        ]
        matches = [match for found in searched for match in found if match.end() != cut_at]
        for match in sorted(matches, key=methodcaller("start")) if len(matches) > 1 else matches:
            self.left_out.hit(match.re)
            self._sample(tag, match.groupdict())
        self.statements.read(tag, text, self.warn, cut_at)
        for reader in self.rows:
            self._readings(reader, tag, text, cut_at, {})
        if self.metrics:
            steps = self.voices[tag].steps
            step = {"step": str(steps[-1] - self.shift)} if steps else {}
            for reader in self.metrics:
                self._readings(reader, tag, text, cut_at, step)

    def _readings(
        self, reader: Reader, tag: int | None, text: str, cut_at: int, step: Mapping[str, str]
    ) -> None:
        """Keep the groups of each match in a piece; a match without a step takes it from ``step``.

        Beside steps, a pattern without a metric is only compared with itself.
        """
        for match in reader.pattern.finditer(text) if reader.literal in text else ():
            if match.end() != cut_at:
                self._count(1)
                said = {
                    name: value for name, value in match.groupdict().items() if value is not None
                }
                said = self.statements.row(
                    {**said, **step} if step and "step" not in said else said,
                    text,
                    (tag, match.re),
                )
                self.left_out.hit(match.re)
                if self.measured is None or self.measured & match.re.groupindex.keys():
                    self.readings.append(
                        said if tag is None else {self.tags.group: str(tag), **said}
                    )

    def _sample(self, tag: int | None, groups: Mapping[str, str | None]) -> None:
        voice = self.voices[tag]
        # A pattern without a step (a monitor's line below the line of its epoch) belongs to the
        # step before it.
        if groups.get("step") is None:
            step = voice.steps[-1] if voice.steps else None
        else:
            printed = self.numbers.whole(groups["step"])
            step = None if printed is None else printed + self.shift
        texts = [
            (name, text) for name, text in groups.items() if text is not None and name != "step"
        ]
        values = {name: self._value(tag, name, text) for name, text in texts}
        if self.count < _RESOLVED:
            for name, text in texts:
                self.finest.see(name, text)
        if step is None or None in values.values():
            if step is None:
                texts.insert(0, ("step", groups.get("step") or ""))
            unread = (
                f"{name} {text!r}" for name, text in texts if text and values.get(name) is None
            )
            self.misread = self.misread or next(unread, "")
            self.warn(NOT_A_NUMBER())
            return
        has_step = groups.get("step") is not None
        if not self._take(tag, step, values, has_step) and not self.voices[tag].renew(values):
            self.warn(NO_STEP())

    def _take(
        self, tag: int | None, step: int, values: Mapping[str, Any], has_step: bool = True
    ) -> bool:
        """Add values to the last step if it is this one and does not have them, else as a new step.
        Return False if the values have no step of their own (``has_step``) and do not fit the last
        one."""
        voice = self.voices[tag]
        if voice.steps[-1:] == [step] and voice.complete(values):
            return True
        if has_step:
            self._count(1)
            voice.add([step], {name: [value] for name, value in values.items()})
        return has_step

    def _count(self, added: int) -> None:
        self.count += added
        if self.count > _MAX_SAMPLES:
            raise DataError(
                f"expected at most {_MAX_SAMPLES} step lines in a file, got more",
                kind="result_invalid",
            )

    def _value(self, tag: int | None, name: str, text: str) -> Any:
        if name == "samples":
            return self.numbers.whole(text)
        if name == "timestamp" and ":" in text:
            return self._clock(tag, text)
        number = self.numbers.number(text)
        if number is None:
            return None
        return number * self.factors.get(name, 1.0)

    def _clock(self, tag: int | None, text: str) -> float | None:
        """Return a printed clock in seconds. A clock without a date gains a day when it falls by
        more than 12 hours.
        """
        reading = clock(text)
        if not reading:
            return None
        day, of_day = reading
        if day is not None:
            return day * 86400 + of_day
        before, days = self.days.get(tag, (of_day, 0))
        days += of_day < before - 43200
        self.days[tag] = (of_day, days)
        return days * 86400 + of_day

    def finish(self) -> Parsed:
        with_steps = {tag: voice for tag, voice in self.voices.items() if voice.steps}
        samples: RankAggregate | tuple[StepSample, ...] = ()
        if self.scope == "process":
            samples = RankAggregate()
            for voice in with_steps.values():
                for part in self._complete(voice, slack=1):
                    samples.add(*part)
        elif with_steps:
            # Ranks that print the global rate all print the same: use one of them, never the sum.
            first = min(with_steps, key=lambda tag: (tag is not None, tag or 0))
            steps, values = self._complete(with_steps[first], slack=0)[-1]
            by_row = rows(steps, values)
            # A line may be printed again as it is; another line for the same step is another
            # measurement, and not lost here.
            samples = tuple(
                by_row if in_order(steps) else {repr(sample): sample for sample in by_row}.values()
            )
        statements, readings = self.statements, tuple(self.readings)
        left_out = self.left_out.notes()
        for line in self.left_out.not_finite:
            statements.refuse(f"expected finite numbers, got {line!r}")
        return Parsed(
            said=samples,
            ranks=tuple(statements.ranks),
            closing=statements.closing,
            warnings=(*self.warnings, *left_out),
            readings=readings,
            misread=self.misread,
            rank_parts=tuple(statements.rank_parts),
            resolution=self.finest.by_name,
            void=statements.verdict(bool(readings or samples), has_all_rows=not left_out),
            facts=statements.facts,
            listed=statements.listed,
            places=statements.places,
            open_rows=tuple(
                (row.with_known(statements.given), alternatives)
                for row, alternatives in statements.open_rows
            ),
        )

    def _complete(
        self, voice: RankColumns, slack: int
    ) -> list[tuple[list[int], dict[str, list[Any]]]]:
        """Split where the step goes back, and return the last attempt that reaches the highest
        step.

        Untagged ranks appended to one another look like attempts over the same steps; if each line
        is about one process, all of them are returned if they are equally fast. Interleaved ranks
        are at most one step apart, hence ``slack``.
        """
        starts = attempts_in(voice.steps, slack)
        attempts = list(zip(starts, [*starts[1:], len(voice.steps)], strict=True))
        ends = [max(voice.steps[start:stop]) for start, stop in attempts]
        reached = max(ends)
        whole = [attempt for attempt, end in zip(attempts, ends, strict=True) if end == reached]
        same_start = [
            attempt for attempt in whole if voice.steps[attempt[0]] == voice.steps[whole[-1][0]]
        ]
        are_ranks = self.scope == "process" and len(same_start) == len(attempts) > 1
        if are_ranks and are_as_fast(voice, attempts):
            self.warn(READ_AS_RANKS(count=len(attempts)))
            return [self._steps_of(voice, attempt) for attempt in same_start]
        if len(attempts) > 1:
            self.warn(STEP_GOES_BACK(times=times(len(attempts) - 1), step=reached))
        return [self._steps_of(voice, whole[-1])]

    def _steps_of(
        self, voice: RankColumns, attempt: tuple[int, int]
    ) -> tuple[list[int], dict[str, list[Any]]]:
        steps, values = voice.part(*attempt)
        return as_steps(steps, with_counts(steps, values), self.micro_batches)
