"""The cause of a failed run: which of several failures came first, its most likely cause, and its last log lines.

All of it comes from collected evidence: the order by clocks, the logs, the nodes' own records, and facts in which a node
differs from the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

from orchestrator.checks.differences import sentences
from orchestrator.errors import DataError, OrchError, RunError
from orchestrator.logs import SETUP_LOG
from orchestrator.logs.failures import CAUSE, Failure, diagnose, is_consequence, last_output
from orchestrator.record import RunDir
from orchestrator.record.evidence import last_bytes, setup_failed
from orchestrator.record.node_record import ExitRecord, exit_record

__all__ = ["find_failure", "with_cause"]

_READ_BYTES = 32768
_SHOWN_LINES = 10
_SHOWN_CHARACTERS = 500
_SHOWN_DIFFERENCES = 3
_BY_ITSELF = re.compile(r" ended with (?P<how>exit code|SIGABRT\b)")


@dataclass(frozen=True, slots=True)
class _Death:
    """A failure with its last log lines (``words``) and the name of the log that holds them; empty without any."""

    error: OrchError
    log: str = ""
    words: Sequence[str] = ()

    @property
    def text(self) -> str:
        return "\n".join(self.words)


def with_cause(
    error: OrchError | None, rivals: Sequence[OrchError], run: RunDir, facts: Mapping[str, Mapping[str, Any]]
) -> OrchError | None:
    """Return the first cause of a run's failure, with everything known about it as its hint.

    ``rivals`` failed so soon after ``error`` that clocks cannot determine the order. A rank whose log only reports the loss of
    another rank is not chosen if any rank has an independent cause. That includes ranks that had logged their own cause when
    they were stopped: a program may close its connections long before it exits. Of a program that ended by itself for no known
    cause, its own last sentence stands in place of one.
    """
    if error is None or not error.host:
        return error
    first = _last_words(error, run)
    failures = chain([first], (_last_words(rival, run) for rival in rivals))
    causes = chain((death for death in failures if not is_consequence(death.text)), _stopped_while_dying(error, run, facts))
    death = next(causes, first)
    finding = _diagnosis(death, run)
    if not death.error.cause:
        death.error.cause = f"{finding.cause}; {finding.remedy}" if finding else _own_sentence(death)
    if not death.error.hint:
        death.error.hint = "\n".join(_hint_lines(death, finding, facts))
    return death.error


def find_failure(error: OrchError, run: RunDir) -> Failure | None:
    """Return the known failure that the logs of a run show for its error; None for none of its own."""
    return _diagnosis(_last_words(error, run), run)


def _stopped_while_dying(error: OrchError, run: RunDir, hosts: Iterable[str]) -> Iterator[_Death]:
    """Yield the ranks that were ended by the stop of the run and whose last lines show an independent cause."""
    for host in hosts:
        with suppress(DataError):
            record = exit_record(run, host)
            for number in record.ended_by("SIGTERM") if record else ():
                text = f"rank {number} was already failing when the run was stopped"
                dying = RunError(text, kind="rank_failed", host=host, run_id=error.run_id, phase=error.phase)
                death = _last_words(dying, run)
                finding = diagnose(death.text)
                if finding and finding.weight == CAUSE:
                    yield death


def _diagnosis(death: _Death, run: RunDir) -> Failure | None:
    """Return the failure that the last lines of a log show, None if they show none or only that of another process."""
    record: ExitRecord | None = None
    with suppress(DataError):
        record = exit_record(run, death.error.host)
    finding = diagnose(death.text, record.memory_kills(_rank(death.error)) if record else 0)
    return finding if finding and finding.kind != "ended_elsewhere" else None


def _own_sentence(death: _Death) -> str:
    """Return the sentence of a program that ended by itself. One that was ended from outside said nothing about that."""
    how = _BY_ITSELF.search(death.error.message)
    if death.error.kind != "rank_failed" or how is None:
        return ""
    is_output = death.log.endswith(".out") and death.log != SETUP_LOG
    # After an abort Python lists threads and modules.
    return last_output(death.words, exceptions_only=is_output or how["how"] == "SIGABRT")


def _hint_lines(death: _Death, finding: Failure | None, facts: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if finding:
        yield f"{finding.cause}; {finding.remedy}"
        yield f"  {_short(finding.line)}"
    if death.words:
        yield f"last lines of {death.log} on {death.error.host}:"
        yield from (f"  {_short(line)}" for line in death.words[-_SHOWN_LINES:])
    yield from sentences(facts)[:_SHOWN_DIFFERENCES]


def _short(line: str) -> str:
    """Return a long line without its middle: the failure is named at its beginning or at its end."""
    half = _SHOWN_CHARACTERS // 2
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:half]} […] {line[-half:]}"


def _last_words(error: OrchError, run: RunDir) -> _Death:
    """Read the last lines of the most specific log about a failure on its host."""
    rank = _rank(error)
    streams = () if rank is None else (f"rank-{rank}.err", f"rank-{rank}.out")
    setup = (SETUP_LOG,) if setup_failed(run, error.host) else ()
    for name in (*setup, *streams, "node.err", "node.out"):
        path = run.log_path(error.host, name)
        if path.is_file():
            text = last_bytes(run, error.host, name, _READ_BYTES).decode("utf-8", "replace")
            if lines := [line for line in text.splitlines() if line.strip()]:
                return _Death(error, name, lines)
    return _Death(error)


def _rank(error: OrchError) -> int | None:
    words = error.message.split()
    return int(words[1]) if words[:1] == ["rank"] and len(words) > 1 and words[1].isdigit() else None
