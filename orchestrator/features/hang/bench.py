"""The hangs of a bench: of each run that was ended because it did not go on, the recorded verdict
and what its ranks did.

Nobody is named here who was not named when the run was ended: the controller had two looks at all
ranks, of which the last one is among the logs, ``hang.json`` of each node.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import DataError
from orchestrator.features.hang.activity import activity, phases_that_tell
from orchestrator.features.hang.cause import VERDICT_KEY, Verdict
from orchestrator.features.hang.node_report import HangReport, RankSeen
from orchestrator.features.hang.waits import main_stack
from orchestrator.record import BenchDir, RunDir
from orchestrator.record.evidence import verify_log
from orchestrator.record.journal import Entry, Event
from orchestrator.record.manifest import read_manifest
from orchestrator.record.node_record import exit_record

if TYPE_CHECKING:
    from orchestrator.results import RunResult

_REPORT = "hang.json"
_MOST_BYTES = 16 << 20
_MOST_LINES = 40


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A suspicion, ``after_s`` seconds after the start, None if that is not recorded."""

    after_s: float | None
    words: str


@dataclass(frozen=True, slots=True)
class RankAccount:
    """The activity of a rank when it was last looked at.

    ``does`` is a predicate (``waits in all-reduce 119``), ``waits``: in a collective. ``step`` is
    None for a rank that reports none. ``state`` is as in ``ps``; ``call`` and ``channel`` are its
    system call and the place in the kernel, ``processor`` is its share of one processor, ``stack``
    has the lines of its main thread's Python stack, innermost first.
    """

    rank: int
    host: str
    step: int | None
    phase: str
    does: str
    waits: bool
    state: str
    call: str
    channel: str
    processor: float
    stack: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hang:
    """A run that was ended because it did not go on.

    ``kind``, ``host``, ``ranks`` and ``sentence`` are the recorded verdict; of a run whose
    controller was gone they are empty, because nobody compared its nodes. ``waiting`` are the ranks
    that waited in a collective. ``missing`` says which nodes left no report, and why.
    """

    run_id: str
    kind: str
    host: str
    ranks: tuple[int, ...]
    sentence: str
    waiting: tuple[int, ...]
    suspicions: tuple[Suspicion, ...]
    seen: tuple[RankAccount, ...]
    missing: tuple[str, ...]


def hangs_of_bench(bench: BenchDir, results: Sequence[RunResult]) -> tuple[Hang, ...]:
    """Return the hangs of a bench in the order of its runs. Damaged evidence is named and costs no
    more than itself.
    """
    ended = [result.run_id for result in results if result.has_failed or result.is_interrupted]
    if not ended:
        return ()
    try:
        events = bench.events()
    except (DataError, OSError):  # named in the account of the bench
        events = []
    hangs = (
        _hang(bench.run(run_id), [event for event in events if event.run == run_id])
        for run_id in ended
    )
    return tuple(hang for hang in hangs if hang is not None)


def _hang(run: RunDir, events: Sequence[Entry]) -> Hang | None:
    """Return how a run hung; None if it was not ended for that."""
    try:
        planned = read_manifest(run)
    except DataError:  # the cause of the run without a number
        return None
    told = Verdict.of(planned.outcome.evidence.get(VERDICT_KEY)) if planned.outcome else None
    reports = {}
    missing = []
    for host in planned.hosts:
        try:
            report = _report(run, host)
        except DataError as error:
            missing.append(f"{host}: {error.message}")
            continue
        if report is None:
            missing.append(f"{host}: its ranks were not inspected, or the report was not collected")
        else:
            reports[host] = report
    if told is None and not reports:
        return None
    telling = phases_that_tell([rank for report in reports.values() for rank in report.ranks])
    accounts = (
        _account(rank, host, telling) for host, report in reports.items() for rank in report.ranks
    )
    seen = sorted(accounts, key=lambda own: own.rank)
    return Hang(
        run_id=run.run_id,
        kind=told.kind if told else "",
        host=told.host if told else "",
        ranks=told.ranks if told else (),
        sentence=told.sentence if told else "",
        waiting=tuple(own.rank for own in seen if own.waits),
        suspicions=_suspicions(events),
        seen=tuple(seen),
        missing=tuple(missing),
    )


def _report(run: RunDir, host: str) -> HangReport | None:
    """Return a node's last report; None if it left none.

    Raises DataError for a report that differs from the node's record.
    """
    record = exit_record(run, host)
    entry = record.files.get(_REPORT) if record else None
    if entry is None:
        return None
    if entry.bytes > _MOST_BYTES:
        raise DataError(
            f"expected {_REPORT} of at most {_MOST_BYTES >> 20} MiB, got {entry.bytes} bytes",
            kind="result_invalid",
        )
    try:
        return HangReport.of(
            json.loads(bytes(verify_log(run, host, _REPORT, entry)).decode("utf-8", "replace"))
        )
    except (ValueError, RecursionError) as error:
        raise DataError(f"expected JSON in {_REPORT}", kind="result_invalid") from error


def _account(seen: RankSeen, host: str, telling: frozenset[str]) -> RankAccount:
    does = activity(seen, telling)
    return RankAccount(
        rank=seen.rank,
        host=host,
        step=seen.progress.step if seen.progress else None,
        phase=seen.progress.phase if seen.progress else "",
        does=does.words,
        waits=does.kind == "waits",
        state=seen.state,
        call=seen.call,
        channel=seen.channel,
        processor=seen.cpu_s / seen.window_s if seen.window_s > 0 else 0.0,
        stack=tuple(line.strip() for line in main_stack(seen)[:_MOST_LINES]),
    )


def _suspicions(events: Sequence[Entry]) -> tuple[Suspicion, ...]:
    """Return the suspicions about a silent run, in order, and its return to work."""
    begun = next((event.at for event in reversed(events) if event.event == Event.STARTED), None)
    said = []
    for event in events:
        if event.event == Event.STALLED:
            words = str(event.fields.get("words", ""))
        elif event.event == Event.RESUMED:
            words = f"the run continued after {event.fields.get('silent_s')} s"
        else:
            continue
        said.append(
            Suspicion(
                event.at - begun if event.at is not None and begun is not None else None, words
            )
        )
    return tuple(said)
