"""The cause of a failed run: which of several failures came first, its most likely cause, and its
last log lines.

All of it comes from collected evidence: the order by clocks, the logs, the nodes' own records, and
facts in which a node differs from the others.

A rank that ends with exit code 0 before the others are done is no failure by itself. It is the
cause if all that failed only lost it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from orchestrator.checks.differences import sentences
from orchestrator.controller.last_words import Death, how_it_ended, rank_of, read_last_words
from orchestrator.controller.lost_ranks import (
    find_early_end,
    find_survivors,
    hosts_by_address,
    name_hosts,
)
from orchestrator.errors import DataError, OrchError, RunError
from orchestrator.logs import SETUP_LOG
from orchestrator.logs.failures import CAUSE, Failure, diagnose, is_consequence, last_output
from orchestrator.logs.text import cut_middle
from orchestrator.record import RunDir
from orchestrator.record.node_record import ExitRecord, exit_record

_SHOWN_LINES = 10
_MISMATCH = "collective_mismatch"
_WAITED = {"collective_timeout", "link_retries", "no_rendezvous"}
"""Kinds of failures of a rank that waited for another: what ended the other one explains them."""
_SHOWN_CHARACTERS = 500
_SHOWN_DIFFERENCES = 3
_SHOWN_LOSSES = 3
_Facts = Mapping[str, Mapping[str, Any]]


def with_cause(
    error: OrchError | None, rivals: Sequence[OrchError], run: RunDir, facts: _Facts
) -> OrchError | None:
    """Return the first cause of a run's failure, with everything known about it as its hint.

    ``rivals`` failed so soon after ``error`` that clocks cannot determine the order. A rank whose
    log only reports the loss of another rank is not chosen if any rank has an independent cause.
    That includes ranks that had logged their own cause when they were stopped: a program may close
    its connections long before it exits. If there is none, a rank that had ended with exit code 0
    before its planned last step is the cause, and else the one that all have lost though it still
    ran, or nobody. Of a program that ended by itself for no known cause,
    its own last sentence stands in place of one.
    """
    if (
        error is None or not error.host or error.cause
    ):  # a cause that is known already is not in the logs
        return error
    first = read_last_words(error, run)
    failures = chain([first], (read_last_words(rival, run) for rival in rivals))
    causes = chain(
        (death for death in failures if not is_consequence(death.text)),
        _stopped_while_dying(error, run, facts),
    )
    names = hosts_by_address(run, facts)
    death, finding = _first_cause(causes, run)
    if (death is None or (finding and finding.weight < CAUSE)) and (
        early := find_early_end(error, run)
    ):
        lost = chain([error], rivals)
        early.error.hint = "\n".join(
            name_hosts(line, names) for line in _lines_of_early_end(early, lost, run, facts)
        )
        return early.error
    if death is None and (survivors := find_survivors(error, run, facts)):
        return survivors
    death = death or first
    if not death.error.cause:
        cause = f"{finding.cause}; {finding.remedy}" if finding else _own_sentence(death)
        death.error.cause = name_hosts(cause, names)
    if not death.error.hint:
        death.error.hint = "\n".join(
            name_hosts(line, names) for line in _hint_lines(death, finding, facts)
        )
    if finding and finding.kind == _MISMATCH:
        return _judge_mismatch(death.error, finding)
    return death.error


def _first_cause(deaths: Iterator[Death], run: RunDir) -> tuple[Death | None, Failure | None]:
    """Return the first of several failures and what its log shows. One that waited for another rank
    comes behind one with a cause, or an exception, of its own.
    """
    waited: tuple[Death, Failure] | None = None
    for death in deaths:
        finding = _diagnosis(death, run)
        if finding and finding.kind in _WAITED:
            waited = waited or (death, finding)
        elif waited is None or _has_own_cause(death, finding):
            return death, finding
    return waited or (None, None)


def _has_own_cause(death: Death, finding: Failure | None) -> bool:
    if finding:
        return finding.weight == CAUSE
    return last_output(death.words, exceptions_only=True) != ""


def _judge_mismatch(error: OrchError, finding: Failure) -> OrchError:
    """Return the error of a rank that ended because ranks called different collectives: its own if
    all others called the same, else one without a host, as others may have ended it.
    """
    agreed = error.others_agree if isinstance(error, RunError) else ""
    if agreed:
        text = f"{error.message}: it called another collective, or another size, than the others; {agreed}"
    else:
        unknown = f"which rank is wrong is not known, and {error.host}: {error.message}"
        text = f"{finding.cause}; {unknown}"
    told = RunError(
        text,
        kind=error.kind,
        host=error.host if agreed else "",
        run_id=error.run_id,
        phase=error.phase,
        hint=(error.hint or "").removeprefix(f"{finding.cause}; "),
    )
    told.cause = finding.remedy
    return told


def find_failure(error: OrchError, run: RunDir) -> Failure | None:
    """Return the known failure that the logs of a run show for its error; None without one of its
    own.
    """
    return _diagnosis(read_last_words(error, run), run)


def may_pass(error: OrchError, run: RunDir) -> bool:
    """Return whether the logs of a run show for its error only what another process, a network or a
    scheduler did.
    """
    failure = diagnose(read_last_words(error, run).text)
    if failure and failure.is_consequence:
        return is_consequence(error.cause)
    return failure is not None and failure.may_pass


def _stopped_while_dying(error: OrchError, run: RunDir, hosts: Iterable[str]) -> Iterator[Death]:
    """Yield the ranks that were ended by the stop of the run and whose last lines show an
    independent cause.
    """
    for host in hosts:
        with suppress(DataError):
            record = exit_record(run, host)
            for number in record.ended_by("SIGTERM") if record else ():
                text = f"rank {number} was already failing when the run was stopped"
                dying = RunError(
                    text, kind="rank_failed", host=host, run_id=error.run_id, phase=error.phase
                )
                death = read_last_words(dying, run)
                finding = diagnose(death.text)
                if finding and finding.weight == CAUSE:
                    yield death


def _lines_of_early_end(
    death: Death, lost: Iterable[OrchError], run: RunDir, facts: _Facts
) -> Iterator[str]:
    yield death.error.cause
    for other in islice(lost, _SHOWN_LOSSES):
        said = read_last_words(other, run)
        sentence = last_output(said.words, exceptions_only=said.log.endswith(".out"))
        yield f"  {other.host}: {other.message}{f'; {sentence}' if sentence else ''}"
    yield from _hint_lines(death, None, facts)


def _diagnosis(death: Death, run: RunDir) -> Failure | None:
    """Return the failure that the last lines of a log show.

    None if they show no failure, or only the failure of another process.
    """
    record: ExitRecord | None = None
    with suppress(DataError):
        record = exit_record(run, death.error.host)
    finding = diagnose(death.text, record.memory_kills(rank_of(death.error)) if record else 0)
    if finding and finding.is_of_start and not death.is_by_itself:
        return None  # What was ended from outside had started.
    return None if finding and finding.is_consequence else finding


def _own_sentence(death: Death) -> str:
    """Return the last sentence of a program that ended by itself; empty if it was ended from
    outside.
    """
    how = how_it_ended(death.error)
    if death.error.kind != "rank_failed" or not how:
        return ""
    is_output = death.log.endswith(".out") and death.log != SETUP_LOG
    # After an abort Python lists threads and modules.
    return last_output(death.words, exceptions_only=is_output or how == "SIGABRT")


def _hint_lines(death: Death, finding: Failure | None, facts: _Facts) -> Iterator[str]:
    if finding:
        yield f"{finding.cause}; {finding.remedy}"
        yield f"  {cut_middle(finding.line, _SHOWN_CHARACTERS)}"
    if death.words:
        yield f"last lines of {death.log} on {death.error.host}:"
        shown = [line for line in death.words if line.strip()]
        yield from (f"  {cut_middle(line, _SHOWN_CHARACTERS)}" for line in shown[-_SHOWN_LINES:])
    yield from sentences(facts)[:_SHOWN_DIFFERENCES]
