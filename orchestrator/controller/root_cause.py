"""The cause of a failed run: which of several failures came first, its most likely cause, and its
last log lines.

All of it comes from collected evidence: the order by clocks, the logs, the nodes' own records, and
facts in which a node differs from the others.

A rank that ends with exit code 0 before the others are done is no failure by itself. It is the
cause if all that failed only lost it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from typing import Any

from orchestrator.checks.differences import sentences
from orchestrator.errors import DataError, OrchError, RunError
from orchestrator.logs import SETUP_LOG, is_named
from orchestrator.logs.failures import CAUSE, Failure, diagnose, is_consequence, last_output
from orchestrator.logs.parse import parse
from orchestrator.plural import plural
from orchestrator.record import RunDir
from orchestrator.record.evidence import last_bytes, setup_failed
from orchestrator.record.manifest import Manifest, read_manifest
from orchestrator.record.node_record import ExitRecord, exit_record

_READ_BYTES = 32768
_SHOWN_LINES = 10
_MISMATCH = "collective_mismatch"
_WAITED = {"collective_timeout", "link_retries", "no_rendezvous"}
"""Kinds of failures of a rank that waited for another: what ended the other one explains them."""
_SHOWN_CHARACTERS = 500
_SHOWN_DIFFERENCES = 3
_SHOWN_LOSSES = 3
_CLOSE_S = 1.0
"""Within this, the clocks of two nodes, each since its own start of the run, do not tell an order.
"""
_LEFT_EARLY = "see why its program ended: its share of the data, or a condition that only it met"
_ADDRESS = re.compile(
    r"(?<![\w.:])(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|[0-9a-f]{1,4}(?::[0-9a-f]{0,4}){2,7})(?![\w.]*\w)"
)
_BY_ITSELF = re.compile(r" ended with (?P<how>exit code|SIGABRT\b)")
_Facts = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class _Death:
    """A failure with its last log lines (``words``) and the name of the log that holds them; empty
    without any. ``warned``: what NCCL says of failures on the standard output of a rank whose other
    words are on its standard error."""

    error: OrchError
    log: str = ""
    words: Sequence[str] = ()
    warned: Sequence[str] = ()

    @property
    def text(self) -> str:
        return "\n".join([*self.warned, *self.words])

    @property
    def is_by_itself(self) -> bool:
        """Return whether the program ended by itself, so that its last lines explain its end."""
        return _BY_ITSELF.search(self.error.message) is not None


def with_cause(
    error: OrchError | None, rivals: Sequence[OrchError], run: RunDir, facts: _Facts
) -> OrchError | None:
    """Return the first cause of a run's failure, with everything known about it as its hint.

    ``rivals`` failed so soon after ``error`` that clocks cannot determine the order. A rank whose
    log only reports the loss of another rank is not chosen if any rank has an independent cause.
    That includes ranks that had logged their own cause when they were stopped: a program may close
    its connections long before it exits. If there is none, a rank that had ended with exit code 0
    before its planned last step is the cause. Of a program that ended by itself for no known cause,
    its own last sentence stands in place of one.
    """
    if (
        error is None or not error.host or error.cause
    ):  # a cause that is known already is not in the logs
        return error
    first = _last_words(error, run)
    failures = chain([first], (_last_words(rival, run) for rival in rivals))
    causes = chain(
        (death for death in failures if not is_consequence(death.text)),
        _stopped_while_dying(error, run, facts),
    )
    names = _hosts_by_address(run, facts)
    death, finding = _first_cause(causes, run)
    if (death is None or (finding and finding.weight < CAUSE)) and (
        early := _early_end(error, run)
    ):
        lost = chain([error], rivals)
        early.error.hint = "\n".join(
            _name_hosts(line, names) for line in _lines_of_early_end(early, lost, run, facts)
        )
        return early.error
    death = death or first
    if not death.error.cause:
        cause = f"{finding.cause}; {finding.remedy}" if finding else _own_sentence(death)
        death.error.cause = _name_hosts(cause, names)
    if not death.error.hint:
        death.error.hint = "\n".join(
            _name_hosts(line, names) for line in _hint_lines(death, finding, facts)
        )
    if finding and finding.kind == _MISMATCH:
        return _blame_nobody(death.error, finding)
    return death.error


def _first_cause(deaths: Iterator[_Death], run: RunDir) -> tuple[_Death | None, Failure | None]:
    """Return the first of several failures and what its log shows. One that waited for another rank
    comes behind one with a cause, or an exception, of its own.
    """
    waited: tuple[_Death, Failure] | None = None
    for death in deaths:
        finding = _diagnosis(death, run)
        if finding and finding.kind in _WAITED:
            waited = waited or (death, finding)
        elif waited is None or _has_own_cause(death, finding):
            return death, finding
    return waited or (None, None)


def _has_own_cause(death: _Death, finding: Failure | None) -> bool:
    if finding:
        return finding.weight == CAUSE
    return last_output(death.words, exceptions_only=True) != ""


def _blame_nobody(error: OrchError, finding: Failure) -> OrchError:
    """Return the error of a rank that others have ended, without a host: which of them is wrong is
    not known.
    """
    text = f"{finding.cause}; which rank is wrong is not known, and {error.host}: {error.message}"
    hint = (error.hint or "").removeprefix(f"{finding.cause}; ")
    told = RunError(text, kind=error.kind, run_id=error.run_id, phase=error.phase, hint=hint)
    told.cause = finding.remedy
    return told


def find_failure(error: OrchError, run: RunDir) -> Failure | None:
    """Return the known failure that the logs of a run show for its error; None without one of its
    own.
    """
    return _diagnosis(_last_words(error, run), run)


def _stopped_while_dying(error: OrchError, run: RunDir, hosts: Iterable[str]) -> Iterator[_Death]:
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
                death = _last_words(dying, run)
                finding = diagnose(death.text)
                if finding and finding.weight == CAUSE:
                    yield death


@dataclass(frozen=True, slots=True)
class _End:
    """The end of a rank, in seconds since the start of the run on its node. ``is_early``: with exit
    code 0, and not because the run was stopped."""

    rank: int
    host: str
    after_s: float
    is_early: bool


def _early_end(error: OrchError, run: RunDir) -> _Death | None:
    """Return the rank that left with exit code 0 before the others, and before its planned last
    step; None if none did.
    """
    if error.kind != "rank_failed":
        return None
    with suppress(DataError, OSError):
        planned = read_manifest(run)
        found = {slot.host: exit_record(run, slot.host) for slot in planned.slots}
        records = {host: record for host, record in found.items() if record}
        ends = [end for host, record in records.items() for end in _ends(host, record)]
        failed_s = min((end.after_s for end in ends if not end.is_early), default=None)
        steps = {host: _last_step(run, host, record, planned) for host, record in records.items()}
        last = max((step for step, _ in steps.values()), default=0)
        # A program that prints every tenth step may print none later when it is done.
        spacing = max((between for _, between in steps.values()), default=1)
        total = planned.spec.steps - planned.spec.warmup_steps * planned.grammar.after_warmup
        if failed_s is None or not planned.grammar.patterns or last > total - spacing:
            return None
        early = [
            end
            for end in sorted(ends, key=lambda end: end.after_s)
            if end.is_early
            and end.after_s <= failed_s + _CLOSE_S
            and not _has_lost_another(end, run)
        ]
        if early:
            others = plural(len(early) - 1, "more rank") if early[1:] else ""
            step = steps[early[0].host][0] or last
            when = f"after step {step} of {total}" if step else "before its first step"
            text = (
                f"rank {early[0].rank} ended with exit code 0 {when}, and the others waited for it"
            )
            text += f"; so did {others}" if others else ""
            own = RunError(
                text, kind="rank_failed", host=early[0].host, run_id=error.run_id, phase=error.phase
            )
            own.cause = _LEFT_EARLY
            return _last_words(own, run)
    return None


def _ends(host: str, record: ExitRecord) -> Iterator[_End]:
    """Yield the ranks of a node that ended by themselves, not because the run was stopped."""
    stopped_s = float("inf") if record.stopped_mono_s is None else record.stopped_mono_s
    for rank in record.ranks:
        if (
            rank.ended_mono_s is not None
            and record.started_mono_s is not None
            and rank.signal is None
        ):
            is_stopped = rank.ended_mono_s >= stopped_s
            if rank.code != 0 or not is_stopped:
                yield _End(
                    rank.rank, host, rank.ended_mono_s - record.started_mono_s, rank.code == 0
                )


def _has_lost_another(end: _End, run: RunDir) -> bool:
    """Return whether a rank that ended well reports the loss of another, as a program that handles
    it does.
    """
    text = f"rank {end.rank} ended"
    death = _last_words(RunError(text, kind="rank_failed", host=end.host), run)
    streams = (f"rank-{end.rank}.err", f"rank-{end.rank}.out")
    # A launcher says what became of the others, not of its rank.
    is_of_launcher = death.log not in streams and any(
        run.log_path(end.host, name).is_file() for name in streams
    )
    return not is_of_launcher and is_consequence(death.text)


def _last_step(run: RunDir, host: str, record: ExitRecord, planned: Manifest) -> tuple[int, int]:
    """Return the last step in the logs of a node, 0 if there is none, and how many steps its lines
    are apart.
    """
    last, spacing = 0, 1
    for name in record.files:
        if is_named(name, planned.grammar.files) and run.log_path(host, name).is_file():
            samples = parse(last_bytes(run, host, name, _READ_BYTES), planned.grammar).samples
            steps = sorted({sample.step for sample in samples})
            last = max([last, *steps])
            spacing = max([spacing, *(after - before for before, after in pairwise(steps))])
    return last, spacing


def _lines_of_early_end(
    death: _Death, lost: Iterable[OrchError], run: RunDir, facts: _Facts
) -> Iterator[str]:
    yield death.error.cause
    for other in islice(lost, _SHOWN_LOSSES):
        said = _last_words(other, run)
        sentence = last_output(said.words, exceptions_only=said.log.endswith(".out"))
        yield f"  {other.host}: {other.message}{f'; {sentence}' if sentence else ''}"
    yield from _hint_lines(death, None, facts)


def _name_hosts(line: str, names: Mapping[str, str]) -> str:
    """Return a line with the host behind each address of a node: programs name a lost peer by its
    address.
    """
    return _ADDRESS.sub(
        lambda match: f"{match[0]} ({names[match[0]]})" if match[0] in names else match[0], line
    )


def _hosts_by_address(run: RunDir, facts: _Facts) -> Mapping[str, str]:
    """Return the hosts of a run by the addresses that one alone of them has."""
    pairs = set()
    with suppress(DataError):
        pairs |= {(slot.address, slot.host) for slot in read_manifest(run).slots}
    for host, values in facts.items():
        networks = values.get("networks")
        for entry in networks if isinstance(networks, list) else ():
            addresses = entry.get("addresses") if isinstance(entry, dict) else None
            for address in addresses if isinstance(addresses, list) else ():
                pairs.add((str(address).partition("/")[0], host))
    counts = Counter(address for address, _ in pairs)
    return {address: host for address, host in pairs if counts[address] == 1 and address != host}


def _diagnosis(death: _Death, run: RunDir) -> Failure | None:
    """Return the failure that the last lines of a log show.

    None if they show no failure, or only the failure of another process.
    """
    record: ExitRecord | None = None
    with suppress(DataError):
        record = exit_record(run, death.error.host)
    finding = diagnose(death.text, record.memory_kills(_rank(death.error)) if record else 0)
    if finding and finding.is_of_start and not death.is_by_itself:
        return None  # What was ended from outside had started.
    return finding if finding and finding.kind != "ended_elsewhere" else None


def _own_sentence(death: _Death) -> str:
    """Return the last sentence of a program that ended by itself; empty if it was ended from
    outside.
    """
    how = _BY_ITSELF.search(death.error.message)
    if death.error.kind != "rank_failed" or how is None:
        return ""
    is_output = death.log.endswith(".out") and death.log != SETUP_LOG
    # After an abort Python lists threads and modules.
    return last_output(death.words, exceptions_only=is_output or how["how"] == "SIGABRT")


def _hint_lines(death: _Death, finding: Failure | None, facts: _Facts) -> Iterator[str]:
    if finding:
        yield f"{finding.cause}; {finding.remedy}"
        yield f"  {_short(finding.line)}"
    if death.words:
        yield f"last lines of {death.log} on {death.error.host}:"
        shown = [line for line in death.words if line.strip()]
        yield from (f"  {_short(line)}" for line in shown[-_SHOWN_LINES:])
    yield from sentences(facts)[:_SHOWN_DIFFERENCES]


def _short(line: str) -> str:
    """Return a long line without its middle: the failure is named at its beginning or at its end."""
    half = _SHOWN_CHARACTERS // 2
    if len(line) <= _SHOWN_CHARACTERS:
        return line
    return f"{line[:half]} […] {line[-half:]}"


def _last_words(error: OrchError, run: RunDir) -> _Death:
    """Read the last lines of the most specific log about a failure on its host."""
    rank = _rank(error)
    streams = () if rank is None else (f"rank-{rank}.err", f"rank-{rank}.out")
    setup = (SETUP_LOG,) if setup_failed(run, error.host) else ()
    for name in (*setup, *streams, "node.err", "node.out"):
        path = run.log_path(error.host, name)
        if path.is_file() and (lines := _last_lines(run, error.host, name)):
            warned: list[str] = []
            output = name.removesuffix(".err") + ".out"
            if name in streams and output != name and run.log_path(error.host, output).is_file():
                warned = [
                    line for line in _last_lines(run, error.host, output) if "NCCL WARN" in line
                ]
            return _Death(error, name, lines, warned)
    return _Death(error)


def _last_lines(run: RunDir, host: str, name: str) -> list[str]:
    text = last_bytes(run, host, name, _READ_BYTES).decode("utf-8", "replace")
    lines = text.splitlines()  # an empty line ends a sentence
    return lines if any(map(str.strip, lines)) else []


def _rank(error: OrchError) -> int | None:
    words = error.message.split()
    if words[:1] == ["rank"] and len(words) > 1 and words[1].isdigit():
        return int(words[1])
    return None
