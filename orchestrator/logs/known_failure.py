"""One known failure: the words that show it, and where they have to stand.

Each pattern is part of a message as the program prints it. Quantifiers are bounded and never
nested, so that the time for a hostile line is at most proportional to its length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain

CAUSE, SYMPTOM, GENERAL, CONSEQUENCE = 4, 3, 2, 1
"""Weights of lines: a cause explains the failure, a symptom does not; general words say only which
library failed, and a consequence only reports another process."""
_SIGNALS = {4: "ILL", 7: "BUS", 9: "KILL", 11: "SEGV"}


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """One known failure. A line shows it if it matches ``pattern`` but not ``unless``."""

    kind: str
    weight: int
    cause: str
    remedy: str
    pattern: re.Pattern[str]
    # A harmless use of the same words.
    unless: re.Pattern[str] | None = None
    # Programs print these words also where they carry on: they count only in what ended the
    # process.
    is_often_harmless: bool = False
    # Kinds of symptoms that it explains, even from the line of a warning.
    explains: frozenset[str] = frozenset()
    # Every program that starts in the same way fails so.
    is_of_start: bool = False
    # It is what another process, a network or a scheduler did, and no property of the program.
    may_pass: bool = False
    # Text in lower case, of which a line that matches has one: a search for it is much faster.
    literals: tuple[str, ...] = ("",)

    def is_in(self, line: str, lowered: str) -> bool:
        """Return whether a line, also given in lower case, shows this failure."""
        if not any(literal in lowered for literal in self.literals):
            return False
        if not self.pattern.search(line):
            return False
        return self.unless is None or not self.unless.search(line)


def literals_of(words: str) -> list[str]:
    r"""Return the longest text in lower case that a match of each alternative of a pattern has; an
    empty one where there is none.

    >>> literals_of(r"Xid \([^)]{1,40}\): [0-9]{1,3}"), literals_of("colou?r of(?: the)? skies|S[a]")
    (['xid '], [' skies', 's'])
    """
    found = []
    runs, depth, place = [""], 0, 0
    while place < len(words):
        char = words[place]
        if char in "?*+{":  # a repeated item may be absent
            runs[-1] = runs[-1][:-1]
        if char == "\\":
            place += 1
        elif char in "[{":
            place = words.index("]" if char == "[" else "}", place + 2)
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "|" and depth == 0:
            found.append(max(runs, key=len))
            runs = []
        elif depth == 0 and char not in "?*+.^$|":
            runs[-1] += char.lower()
            place += 1
            continue
        runs.append("")
        place += 1
    return [*found, max(runs, key=len)]


def signal_words(number: int) -> str:
    r"""Return the pattern of what launchers say of a process that a signal ended: torchrun, mpirun
    and prterun, deepspeed, a shell in between, and of their own UCX.

    >>> bool(re.search(signal_words(9), "process rank 3 with PID 4411 on node n1 exited on signal 9 (Killed)."))
    True
    """
    by_torchrun = (
        rf"Signal {number} \(SIG[A-Z]{{2,5}}\) received by PID|failed \(exitcode: -{number}\)"
    )
    by_others = rf"return code = -{number}\b|exit code:? {128 + number}\b"
    return (
        rf"{by_torchrun}|exited on\s{{1,9}}signal {number}\b|Caught signal {number} \("
        rf"|{by_others}|(?:terminated with signal |died with <Signals\.)SIG{_SIGNALS[number]}\b"
    )


def define_failure(
    kind: str,
    cause: str,
    remedy: str,
    *words: str,
    weight: int = CAUSE,
    unless: str = "",
    is_often_harmless: bool = False,
    explains: tuple[str, ...] = (),
    is_of_start: bool = False,
    may_pass: bool = False,
) -> KnownFailure:
    """Return a row of the table; a line must match one of the patterns in ``words``, in any case."""
    return KnownFailure(
        kind,
        weight,
        cause,
        remedy,
        re.compile("|".join(words), re.IGNORECASE),
        re.compile(unless, re.IGNORECASE) if unless else None,
        is_often_harmless,
        frozenset(explains),
        is_of_start,
        may_pass,
        tuple(chain.from_iterable(map(literals_of, words))),
    )
