"""Find, in the last lines of a log, the statements with which processes ended.

Programs print many lines that sound like failures and are none: a library that warns and carries
on, a file that is looked for in several places, an exception that was handled. So lines are told
apart by their place. The end of a process is its last traceback (of a chain the last exception),
what a C++ exception says, a fatal line, the box of mpirun, or a last line of a shell, a loader or
a launcher. A line that says itself that it is a warning, information, or a failure that is ignored
or tried again, is harmless. All others are earlier lines.

>>> warned = "lib.py:3: UserWarning: x.so: cannot open\\n  warn("
>>> thrown = 'Traceback (most recent call last):\\n  File "t.py", line 8\\nValueError: got 2'
>>> [(line.place.name, line.text) for line in read_endings(f"{warned}\\n{thrown}".splitlines())]
[('HARMLESS', 'lib.py:3: UserWarning: x.so: cannot open'), ('HARMLESS', '  warn('), \
('EARLIER', 'Traceback (most recent call last):'), ('EARLIER', '  File "t.py", line 8'), \
('END', 'ValueError: got 2')]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import count, dropwhile, pairwise, takewhile

from orchestrator.grouping import group_pairs
from orchestrator.logs.line_forms import (
    BOX,
    BOX_HARMLESS,
    DIRECT_CAUSE,
    DURING,
    ENTRY,
    ERROR,
    EXCEPTION,
    FATAL,
    FATAL_BLOCK,
    FRAME,
    GLOG,
    GROUP_MARGIN,
    HEADER,
    IMPORT_FRAME,
    LAUNCHER,
    NCCL_WARN,
    PROCESS,
    PYTHON_WARNING,
    RANK_TAG,
    STAMP,
    WHAT,
    Place,
    has_words,
    is_header,
    place_itself,
)
from orchestrator.logs.text import clean_text, cut_middle

_LINE_CHARACTERS = 2000
_LINES = 400
_BOX_LINES = 60
_WARNING_LINES = 12
_PRINTED = 12
"""Among so many last lines, an error that the program prints is why it ended."""
_OF_OTHERS = (
    "terminate called",
    "====",
    "*** ",
    "wandb: ",
    "Exception ignored in",
    "Exception in ",
    "Child process with PID ",
)
"""How a line begins that is no part of the message above it."""
_AFTER = (BOX, ENTRY, GLOG, LAUNCHER, PROCESS)
"""Forms of such lines."""
_TRAILING = 3
"""So many last lines are the end of a log that has no statement of an end."""


class Form(IntEnum):
    """The form of a statement of an end; the program's own word comes first. The last two are the
    sources of an exception in its chain: its direct cause, or what was handled when it came."""

    EXCEPTION = 0
    WHAT = 1
    FATAL = 2
    BOX = 3
    LAUNCHER = 4
    ERROR = 5
    RAISED_FROM = 6
    HANDLED = 7


@dataclass(frozen=True, slots=True)
class Line:
    """One line, or the first sentence of a box, with its place.

    ``statement``: the number of the statement of an end that it is part of, or of the source of
    one, in the order of the log; 0 for none. ``form`` is its form, at its first line. ``rank``:
    whose line it is by its tag, empty without one. ``is_running``: part of an exception of a
    function, which came when all modules of the program were loaded.
    """

    text: str
    place: Place
    statement: int = 0
    form: Form | None = None
    rank: str = ""
    is_running: bool = False


@dataclass(frozen=True, slots=True)
class _Traceback:
    """The lines of a traceback from its exception on. ``before``: how the one before it belongs to
    it, None if it does not. ``is_of_thread``: it ended a thread, not the process. ``is_running``: a
    function raised it."""

    lines: Sequence[int]
    before: Form | None
    is_of_thread: bool
    is_running: bool


def read_endings(
    lines: Sequence[str],
    is_consequence: Callable[[Sequence[str]], bool] = lambda texts: False,
) -> list[Line]:
    """Return the last lines of a log, each with its place.

    ``is_consequence`` returns whether lines only report the end of another process: the last
    traceback that does more than that is the end, and what follows it.
    """
    shown = [_cut(line) for line in lines[-_LINES:]]
    if all(STAMP.match(line) for line in shown if line):
        shown = [STAMP.sub("", line, count=1) for line in shown]
    prefixes = tuple(_find_prefixes(shown))
    tags = _rank_tags(shown, prefixes)
    numbers = group_pairs((rank, number) for number, (rank, _) in enumerate(tags))
    placed: dict[int, Line] = {}
    numbering = count(1)
    for rank, own in numbers.items():
        texts = [shown[number][tags[number][1] :] for number in own]
        lines_of_rank = _Stream(rank, texts, is_consequence, numbering).read()
        placed |= zip(own, lines_of_rank, strict=True)
    found = _in_order([placed[number] for number in range(len(shown))])
    if _has_end(found, is_consequence):
        return found
    return _with_last_lines(found, is_consequence, len(found) + 1)


def _in_order(lines: Sequence[Line]) -> list[Line]:
    """Return the lines with their statements numbered in the order of the log, not rank by rank."""
    numbers = dict.fromkeys(line.statement for line in lines if line.statement)
    order = {0: 0} | {number: place for place, number in enumerate(numbers, 1)}
    return [replace(line, statement=order[line.statement]) for line in lines]


def nccl_sentence(lines: Sequence[Line]) -> str:
    """Return NCCL's sentence on its failure: the line behind "Last error:", or else its first
    warning about a failure; empty without one.
    """
    texts = [line.text.strip() for line in lines]
    for text, after in pairwise(texts):
        if text == "Last error:" and after:
            return after
    for line in lines:
        if line.place != Place.HARMLESS and NCCL_WARN.search(line.text):
            return NCCL_WARN.split(line.text, maxsplit=1)[1].strip()
    return ""


def _has_end(lines: Sequence[Line], is_consequence: Callable[[Sequence[str]], bool]) -> bool:
    """Return whether a statement reports an end rather than a consequence of another failure."""
    statements = group_pairs((line.statement, line.text) for line in lines)
    statements.pop(0, None)
    return any(not is_consequence(texts) for texts in statements.values())


def _with_last_lines(
    lines: list[Line], is_consequence: Callable[[Sequence[str]], bool], statement: int
) -> list[Line]:
    """Return the lines with the last ones of any kind as the end. An error that a program prints
    itself, before it aborts or leaves, is a statement of its end."""
    said = [
        number
        for number, line in enumerate(lines)
        if line.place == Place.EARLIER and has_words(line.text) and not is_consequence([line.text])
    ]
    for number in said[-_TRAILING:]:
        lines[number] = replace(lines[number], place=Place.END)
    first = next((number for number in said[-_PRINTED:] if ERROR.match(lines[number].text)), None)
    for number in _paragraph(lines, first, is_consequence) if first is not None else ():
        form = Form.ERROR if number == first else None
        lines[number] = replace(lines[number], place=Place.END, statement=statement, form=form)
    return lines


def _paragraph(
    lines: Sequence[Line], first: int, is_consequence: Callable[[Sequence[str]], bool]
) -> Iterator[int]:
    """Yield the line numbers of a paragraph: up to an empty line or a line of another kind."""
    for number in range(first, len(lines)):
        line = lines[number]
        is_other = line.place == Place.HARMLESS or is_consequence([line.text])
        is_other = is_other or (number > first and ERROR.match(line.text) is not None)
        if is_other or not has_words(line.text):
            return
        yield number


def _find_prefixes(texts: Sequence[str]) -> Iterator[str]:
    """Yield a launcher's prefixes of a rank's lines, as they stand before a traceback."""
    for text, after in pairwise(texts):
        prefix, header, _ = text.partition(HEADER)
        if header and prefix.strip() and len(prefix) <= 80 and after.startswith(prefix):
            yield prefix


def _rank_tags(texts: Sequence[str], prefixes: tuple[str, ...]) -> list[tuple[str, int]]:
    """Return for each line its rank's name in the tag, and the length of the tag.

    An empty line is of the rank of the line before it.
    """
    tags: list[tuple[str, int]] = []
    rank = ""
    for text in texts:
        length = 0
        if match := RANK_TAG.match(text):
            rank, length = match["timed"] or match["named"], match.end()
        elif text.strip():
            rank = next((prefix for prefix in prefixes if text.startswith(prefix)), "")
            length = len(rank)
        tags.append((rank, length))
    return tags


class _Stream:
    """The lines of one rank, or those that name none, and their places."""

    def __init__(
        self,
        rank: str,
        texts: Sequence[str],
        is_consequence: Callable[[Sequence[str]], bool],
        numbering: Iterator[int],
    ) -> None:
        self.texts = texts
        self.is_consequence = is_consequence
        self.numbering = numbering
        self.lines = [Line(text, place_itself(text), rank=rank) for text in texts]
        self.boxes: set[int] = set()

    def read(self) -> list[Line]:
        """Return the lines with their places."""
        self._pass_over_warnings()
        self._read_boxes()
        within = self._read_tracebacks()
        for number, text in enumerate(self.texts):
            if number in within or number in self.boxes:
                continue
            if WHAT.match(text):
                self._mark(self._block(number), Form.WHAT)
            elif FATAL_BLOCK.match(text) and not self._is_other([number]):
                self._mark(self._block(number), Form.FATAL)
            elif FATAL.match(text):
                self._mark([number], Form.FATAL)
        self._read_last_lines()
        return self.lines

    def _pass_over_warnings(self) -> None:
        """Mark the further lines of Python's warnings, and exceptions that Python itself ignored."""
        for number, text in enumerate(self.texts):
            if PYTHON_WARNING.match(text):
                self._hide(range(number, self._end_of_warning(number)))
            elif text.startswith("Exception ignored in") and self._is_header(number + 1):
                last = self._exception_place(number + 1)
                self._hide(range(number, (number + 1 if last is None else last) + 1))

    def _end_of_warning(self, number: int) -> int:
        for place in range(number + 1, min(number + _WARNING_LINES, len(self.texts))):
            if self._is_header(place) or PYTHON_WARNING.match(self.texts[place]):
                break
            if self.texts[place].startswith("  "):
                return place + 1
        return number + 1

    def _read_boxes(self) -> None:
        """Mark the boxes of mpirun, whose first sentence may be broken into lines."""
        number = 0
        while number < len(self.texts):
            if not BOX.match(self.texts[number]):
                number += 1
                continue
            end = min(number + _BOX_LINES, len(self.texts))
            bounds = (place for place in range(number + 1, end) if BOX.match(self.texts[place]))
            close = next(bounds, end)
            self._read_box(list(range(number + 1, close)))
            self.boxes |= set(range(number, min(close + 1, len(self.texts))))
            number = close + 1

    def _read_box(self, inner: list[int]) -> None:
        while inner and not self.texts[inner[0]].strip():
            inner = inner[1:]
        if not inner:
            return
        parts = list(takewhile(bool, (self.texts[place].strip() for place in inner)))
        if parts[-1].endswith(":"):  # "… an executable:", and after an empty line its name
            rest = [self.texts[place].strip() for place in inner[len(parts) :]]
            more = list(takewhile(bool, dropwhile(lambda text: not text, rest)))
            parts += [*takewhile(lambda text: not text, rest), *more]
        sentence = " ".join(filter(None, parts))
        if BOX_HARMLESS.match(sentence):
            self._hide(inner)
            return
        self._hide(inner[1 : len(parts)])
        self._mark([inner[0], *inner[len(parts) :]], Form.BOX)
        self.lines[inner[0]] = replace(self.lines[inner[0]], text=sentence)

    def _read_tracebacks(self) -> set[int]:
        """Mark the tracebacks that are the end: the last one that is no consequence, and the
        consequences after it; and the sources of that one. Return the lines of all."""
        tracebacks = self._tracebacks()
        causes = [entry for entry in tracebacks if not self._is_other(entry.lines)]
        causes = [entry for entry in causes if not entry.is_of_thread] or causes
        # Exceptions that ended a thread count where the process has none of its own.
        is_of_thread = bool(causes) and causes[-1].is_of_thread
        found = [entry for entry in tracebacks if is_of_thread or not entry.is_of_thread]
        last = found.index(causes[-1]) if causes else max(len(found) - 1, 0)
        for entry in found[last:]:
            self._mark(entry.lines, Form.EXCEPTION, is_running=entry.is_running)
        while last > 0 and (form := found[last].before):
            last -= 1
            self._mark(found[last].lines, form, Place.EARLIER)
        return {number for entry in tracebacks for number in entry.lines}

    def _tracebacks(self) -> list[_Traceback]:
        found: list[_Traceback] = []
        before: Form | None = None
        number = 0
        while number < len(self.texts):
            text = self.texts[number]
            if DURING in text or DIRECT_CAUSE in text:
                before = Form.RAISED_FROM if DIRECT_CAUSE in text else Form.HANDLED
            first = self._exception_of(number)
            if first is None:
                number += 1
                continue
            block = self._block(first)
            is_of_thread = number > 0 and self.texts[number - 1].startswith("Exception in thread")
            is_of_thread |= before is not None and bool(found) and found[-1].is_of_thread
            frames = [text for text in self.texts[number:first] if FRAME.match(text)]
            is_running = any(not IMPORT_FRAME.match(frame) for frame in frames)
            found.append(_Traceback(block, before, is_of_thread, is_running))
            before, number = None, block[-1] + 1
        return found

    def _exception_of(self, number: int) -> int | None:
        """Return the place of the exception of a traceback that begins here, or that stands here
        without one; None if there is none, or if it was ignored."""
        if self._is_header(number):
            is_ignored = number > 0 and self.texts[number - 1].startswith("Exception ignored in")
            return None if is_ignored else self._exception_place(number)
        is_shown = self.lines[number].place != Place.HARMLESS and number not in self.boxes
        if is_shown and EXCEPTION.match(self.texts[number]):
            return number
        return None

    def _exception_place(self, header: int) -> int | None:
        """Return the place of the first line that is not further in than the header."""
        depth = _depth(self.texts[header])
        for place in range(header + 1, len(self.texts)):
            text = self.texts[place]
            if text.strip() and _depth(text) <= depth:
                return None if self._is_header(place) or GLOG.match(text) else place
        return None

    def _is_header(self, number: int) -> bool:
        return number < len(self.texts) and is_header(self.texts[number])

    def _block(self, first: int) -> list[int]:
        """Return the lines of a message, from its first line up to one of another kind."""
        block = [first]
        for place in range(first + 1, len(self.texts)):
            text = self.texts[place]
            if self._is_header(place) or DURING in text or DIRECT_CAUSE in text or WHAT.match(text):
                break
            if any(form.match(text) for form in _AFTER) or NCCL_WARN.search(text):
                break
            if text.startswith(_OF_OTHERS) or EXCEPTION.match(text):
                break
            if self.lines[place].place != Place.HARMLESS:
                block.append(place)
        return block

    def _read_last_lines(self) -> None:
        """Mark the lines of a launcher that nothing follows but harmless lines and consequences."""
        found = []
        for number in range(len(self.texts) - 1, -1, -1):
            line = self.lines[number]
            if not line.text.strip() or line.place == Place.HARMLESS or number in self.boxes:
                continue
            if LAUNCHER.match(line.text) and not line.statement:
                found.append(number)
            elif not self._is_other([number]):
                break
        for number in reversed(found):
            self._mark([number], Form.LAUNCHER)

    def _is_other(self, numbers: Sequence[int]) -> bool:
        return self.is_consequence([self.lines[number].text for number in numbers])

    def _mark(
        self,
        numbers: Sequence[int],
        form: Form,
        place: Place = Place.END,
        is_running: bool = False,
    ) -> None:
        statement = next(self.numbering)
        for number in numbers:
            self.lines[number] = replace(
                self.lines[number],
                place=place,
                statement=statement,
                form=form if number == numbers[0] else None,
                is_running=is_running,
            )

    def _hide(self, places: Sequence[int]) -> None:
        for place in places:
            self.lines[place] = replace(self.lines[place], place=Place.HARMLESS)


def _cut(line: str) -> str:
    """Return a line without controls and, if it is long, without its middle."""
    short = cut_middle(line, _LINE_CHARACTERS)
    return GROUP_MARGIN.sub("", clean_text(short.encode("utf-8", "replace")), count=1)


def _depth(text: str) -> int:
    return len(text) - len(text.lstrip())
