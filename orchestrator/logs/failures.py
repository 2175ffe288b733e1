"""The cause of a program's failure, from its last lines: a known cause, the line that shows it, and
a remedy.

Lines are of three kinds. A cause explains the failure: no memory, a port in use, a missing library.
A symptom is true but does not explain it: a collective that timed out, a transport to which NCCL
fell back. A consequence only reports another process: a connection that its peer reset.

A line counts by its place (`orchestrator.logs.endings`). A cause in what ended the process outranks
every earlier line. Where that shows only a symptom, an earlier cause explains it, and where it
shows nothing known, the program's own sentence is better than an earlier line that programs print
also where they carry on. Of exceptions in a chain the last one ended the process, whose sentence
is shown; a known one before it is its source. Harmless lines never count, but that a warning may explain a symptom.
Among lines of one kind and place the earliest counts, because it usually causes the later ones.

>>> failure = diagnose("step 4\\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\\nBroken pipe\\n")
>>> failure.kind, failure.cause, failure.line
('out_of_memory', 'the GPU had no memory left', 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.')

Where no known failure is found, what a program itself said last is shown in place of a cause:

>>> last_output(["Traceback (most recent call last):", '  File "t.py", line 8, in <module>', "ValueError: got 2", "  or 3"])
'last output: ValueError: got 2 or 3'
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile

from orchestrator.grouping import group_pairs
from orchestrator.logs.endings import Form, Line, nccl_sentence, read_endings
from orchestrator.logs.failure_table import KNOWN
from orchestrator.logs.known_failure import CAUSE as CAUSE
from orchestrator.logs.known_failure import CONSEQUENCE, SYMPTOM, KnownFailure
from orchestrator.logs.line_forms import ADDED, AT_EXIT, FRAME, HEADER, USAGE, Place, has_words
from orchestrator.logs.text import cut_middle
from orchestrator.plural import times

LAST_OUTPUT = "last output: "
"""How a cause begins that is the program's own sentence, which may have hosts, ranks and numbers of
one run.
"""

_SHOWN_CHARACTERS = 300
_ANY_DEPTH = 1 << 30
_ELSEWHERE = "ended_elsewhere"
_NCCL = "nccl_system_error"
_NOTHING = ""
_LAUNCHER = re.compile(r"[\w.]{0,80}\b(?:ChildFailedError|CalledProcessError):")
"""Exceptions of launchers, the last word of theirs."""
_WHAT = re.compile(r"\s{1,9}what\(\):\s{0,9}")

_Find = Callable[[str], KnownFailure | None]


@dataclass(frozen=True, slots=True)
class Failure:
    """A recognised failure: ``kind`` for programs, ``cause`` and ``remedy`` for people, ``line``
    the text that shows it.

    ``weight`` as in `orchestrator.logs.known_failure`: a cause weighs most, a consequence least.
    ``is_end``: the line is part of what ended the process. ``is_of_start``: every program that
    starts in the same way fails so. ``may_pass``: no property of the program.
    """

    kind: str
    cause: str
    remedy: str
    line: str
    weight: int
    is_end: bool = False
    is_of_start: bool = False
    may_pass: bool = False

    @property
    def is_consequence(self) -> bool:
        """Whether it only reports that another process ended."""
        return self.kind == _ELSEWHERE


def diagnose(text: str, memory_kills: int = 0) -> Failure | None:
    """Return the failure that the text of a log shows, preferably its end; None if no known failure
    is in it.

    ``memory_kills`` is how often the node's kernel killed for memory what may be the process of
    this log: no log contains that. Reads the last 400 lines, and 2000 characters of each.
    """
    if memory_kills > 0:
        return Failure(
            "host_out_of_memory",
            "the kernel killed a process because the node had no memory left",
            "lower --batch-size or the number of ranks, or raise the memory limit of the node's control group",
            f"the kernel counted an out-of-memory kill {times(memory_kills)} during the run",
            CAUSE,
        )
    find = cache(_known_in)
    lines = read_endings(text.splitlines(), lambda texts: _is_elsewhere(texts, find))
    ends = [line for line in lines if line.place == Place.END]
    others = [line for line in lines if line.place != Place.END]
    end = _heaviest(ends, find, lambda row: True)
    kind = end.kind if end else _NOTHING
    explained = _heaviest(others, find, lambda row: kind in row.explains)
    if end and explained:
        return explained
    if end and end.weight == CAUSE:
        return end
    is_symptom = end is not None and end.weight > CONSEQUENCE
    says = _another_rank_failed if is_symptom else _says_something_else
    is_said = says(ends, find)
    source = _source(lines, find)
    if source and is_said:
        words = f"{last_output(text.splitlines())} (its source: {source.cause})"
        return replace(source, cause=words, is_end=True, is_of_start=False)
    earlier = source or _heaviest(
        [line for line in others if line.place == Place.EARLIER],
        find,
        lambda row: not row.is_often_harmless,
    )
    if earlier and earlier.weight == CAUSE:
        return earlier
    if is_said:
        return None
    heaviest = [each for each in (end, earlier, explained) if each]
    found = max(heaviest, key=lambda each: each.weight, default=None)
    sentence = nccl_sentence(lines)
    if found and found.kind == _NCCL and sentence:
        said = _shorten(sentence)
        row = find(sentence)
        if row and row.kind == _ELSEWHERE:
            return Failure(row.kind, row.cause, row.remedy, said, row.weight, found.is_end)
        return replace(found, cause=f"{found.cause}: {said}", line=said)
    return found


def is_consequence(text: str) -> bool:
    """Return True if a text only reports that another process ended, and shows no cause of its own."""
    failure = diagnose(text)
    return failure is not None and failure.is_consequence


def last_output(lines: Sequence[str], *, exceptions_only: bool = False) -> str:
    """Return the sentence with which a program ended, behind `LAST_OUTPUT`; empty if it has none.

    That is its last exception, with all that it says; what NCCL gives as its last error; what a C++
    exception says; a fatal line, the first sentence of a box of mpirun or an error that the program
    printed; or else its last line that is not indented and no warning. ``exceptions_only``: not
    that line, as of usual output, which says nothing of the end.
    """
    find = cache(_known_in)
    read = read_endings(lines, lambda texts: _is_elsewhere(texts, find))
    statements = []
    for first in _by_weight([line for line in read if line.form is not None]):
        statements.append([line.text for line in read if line.statement == first.statement])
    own = [texts for texts in statements if not _is_elsewhere(texts, find)]
    own.sort(key=lambda texts: any(map(find, texts)))  # what is known shows only a symptom
    sentences = [*map(_sentence, own), nccl_sentence(read)]
    said = [] if exceptions_only else _before_usage([line for line in read if _is_said(line)])
    # Where statements only report another process, what this one printed before says more.
    last = max((number for number, line in enumerate(said) if line.form is not None), default=None)
    sentences += reversed([line.text for line in said[:last] if _is_own_word(line, find)])
    sentences += map(_sentence, statements)
    sentences += reversed([line.text for line in said])
    sentence = next(filter(None, sentences), "")
    if not sentence:
        return ""
    return f"{LAST_OUTPUT}{cut_middle(' '.join(sentence.split()), _SHOWN_CHARACTERS)}"


def is_silent(lines: Sequence[str]) -> bool:
    """Return True if lines say nothing of why a program ended: they are harmless, or a launcher's
    about processes that have ended."""
    find = cache(_known_in)
    read = read_endings(lines, lambda texts: _is_elsewhere(texts, find))
    said = [line for line in read if _is_said(line) and HEADER not in line.text]
    shown = list(takewhile(lambda line: not _LAUNCHER.match(line.text), said))
    statements = group_pairs((line.statement, line.text) for line in shown)
    single = [[text] for text in statements.pop(0, ())]
    return not any(line.form == Form.EXCEPTION for line in shown) and all(
        _is_elsewhere(texts, find) for texts in [*statements.values(), *single]
    )


def _by_weight(opening: Sequence[Line]) -> list[Line]:
    """Return the first lines of statements, those that say most first: the program's own word, of
    several of a rank the last, and of ranks that of the first one."""
    last = {(line.form, line.rank): line.statement for line in opening}

    def order(line: Line) -> tuple[int, bool, int]:
        is_last = last[line.form, line.rank] == line.statement
        return line.form or 0, not is_last, line.statement if is_last else -line.statement

    return sorted(opening, key=order)


def _sentence(texts: Sequence[str]) -> str:
    """Return the sentence of a statement: to the end of its paragraph, without frames and what
    libraries add to any message; or NCCL's own."""
    own = nccl_sentence([Line(text, Place.END) for text in texts])
    if own:
        return own
    words: list[str] = []
    source = _ANY_DEPTH  # the line of source below a frame is further in than the frame
    for text in texts:
        if not text.strip() and words and not words[-1].endswith(":"):
            break
        depth = len(text) - len(text.lstrip())
        if FRAME.match(text):
            source = depth
        elif text.strip() and depth <= source and not ADDED.match(text.lstrip()):
            source = _ANY_DEPTH
            words.append(_WHAT.sub("", text, count=1).strip())
    return " ".join(words)


def _is_own_word(line: Line, find: _Find) -> bool:
    """Return True if a line outside of statements may be a program's own word about its end."""
    is_plain = line.statement == 0 and line.place != Place.HARMLESS and HEADER not in line.text
    return is_plain and not _is_elsewhere([line.text], find)


def _is_said(line: Line) -> bool:
    """Return True for a line with words at its beginning that is no warning, and that Python does
    not add at exit."""
    text = line.text
    is_said = line.place != Place.HARMLESS and has_words(text) and not AT_EXIT.match(text)
    return is_said and not text[0].isspace() and text[0] != "="


def _before_usage(lines: list[Line]) -> list[Line]:
    """Return the lines before the text about a program's arguments; all, where it comes first."""
    usage = (number for number, line in enumerate(lines) if USAGE.match(line.text))
    return lines[: next(usage, 0)] or lines


def _known_in(text: str) -> KnownFailure | None:
    lowered = text.lower()
    return next((row for row in KNOWN if row.is_in(text, lowered)), None)


def _heaviest(
    lines: Sequence[Line], find: _Find, counts: Callable[[KnownFailure], bool]
) -> Failure | None:
    """Return the failure of the most weight in lines, of equal ones the first one in the first
    statement."""
    found: Failure | None = None
    for line in sorted(lines, key=lambda each: each.statement):
        row = find(line.text)
        if row and counts(row) and (found is None or row.weight > found.weight):
            is_end = line.place == Place.END
            shown = _shorten(line.text.strip())
            is_of_start = row.is_of_start and not line.is_running
            found = Failure(
                row.kind,
                row.cause,
                row.remedy,
                shown,
                row.weight,
                is_end,
                is_of_start,
                row.may_pass,
            )
    return found


def _source(lines: Sequence[Line], find: _Find) -> Failure | None:
    """Return the known cause among the sources of the last exception.

    A symptom counts only as the direct cause, and of a handled exception only a cause with which
    programs do not carry on.
    """
    forms = {line.statement: line.form for line in lines if line.form}
    direct = [line for line in lines if forms.get(line.statement) == Form.RAISED_FROM]
    handled = [line for line in lines if forms.get(line.statement) == Form.HANDLED]
    found = _heaviest(direct, find, lambda row: row.weight >= SYMPTOM)
    return found or _heaviest(
        handled, find, lambda row: row.weight == CAUSE and not row.is_often_harmless
    )


def _is_elsewhere(texts: Sequence[str], find: _Find) -> bool:
    """Return True if lines report the end of another process, and nothing that weighs more."""
    rows = [row for row in map(find, texts) if row]
    heaviest = max(rows, key=lambda row: row.weight, default=None)
    if heaviest and heaviest.kind == _NCCL:
        heaviest = find(nccl_sentence([Line(text, Place.END) for text in texts]))
    return heaviest is not None and heaviest.kind == _ELSEWHERE


def _says_something_else(ends: Sequence[Line], find: _Find) -> bool:
    """Return True if a statement at the end shows no known failure, not even of another process."""
    opening = [line.statement for line in ends if line.form is not None]
    known = {line.statement for line in ends if find(line.text) is not None}
    return any(number not in known for number in opening)


def _another_rank_failed(ends: Sequence[Line], find: _Find) -> bool:
    """Return True if an exception of one rank shows no known failure, and those of others do."""
    known = {line.statement for line in ends if find(line.text) is not None}
    ranks = {line.rank for line in ends if line.statement in known}
    return any(
        line.form == Form.EXCEPTION
        and line.statement not in known
        and line.rank not in {"", *ranks}
        for line in ends
    )


def _shorten(line: str) -> str:
    if len(line) <= _SHOWN_CHARACTERS:
        return line
    return line[: _SHOWN_CHARACTERS - 1] + "…"
