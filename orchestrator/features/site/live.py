"""The present state of a bench, from its files and from its nodes' answers. Reads, and never
writes.

The files of a bench that is being run change under the reader. What cannot be read is said in the
place of it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.errors import DataError, OrchError
from orchestrator.features.site.catalogue import page_name
from orchestrator.logs.parse import parse
from orchestrator.plan import RunSpec
from orchestrator.plan.option_values import shortest
from orchestrator.plan.placement import Slot
from orchestrator.record import BenchDir, RunDir, holder
from orchestrator.record.evidence import last_bytes
from orchestrator.record.journal import ENDS, Entry, Event, last_controller, suspicion
from orchestrator.record.manifest import Manifest, read_manifest
from orchestrator.record.rundir import PROGRESS_LOG
from orchestrator.record.telemetry import TELEMETRY, telemetry_of
from orchestrator.report.html.sparkline import bar, sparkline
from orchestrator.report.text import visible
from orchestrator.results import RUNNING, RunResult
from orchestrator.results.bench import place_results
from orchestrator.results.numbers.throughput import Terms, speed_of_line
from orchestrator.results.planned import Counts, planned_runs
from orchestrator.results.read import read_run
from orchestrator.results.telemetry.utilization import node_use

LOG_BYTES, SHORT_BYTES = 24 << 10, 1 << 10
"""Of the shown log, and of other nodes' logs."""
MOST_NODES = 16
"""Nodes that are shown, in order of node_rank; the log of any other can be chosen."""
_PROGRESS_LINES, _SHORT_LINES = 40, 3
_PROGRESS_BYTES = 16 << 10
_PHASES = (
    Event.PLANNED,
    Event.STAGED,
    Event.ARMED,
    Event.STARTED,
    Event.TAKEN_OVER,
    Event.STALLED,
    Event.STOPPING,
    *ENDS,
)


@dataclass(frozen=True, slots=True)
class Seen:
    """The answer of a node about a run: the sizes of its logs in bytes, the end of one of them
    without secrets, its samples as in ``telemetry.jsonl``; or the error that it gave."""

    lives: bool = False
    sizes: Mapping[str, int] = field(default_factory=dict)
    log: bytes = b""
    samples: bytes = b""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Watched:
    """The questions to the nodes of a bench: the log of each host of a run that is under way, with
    the bytes of its end."""

    bench: BenchDir
    run_id: str
    logs: Mapping[str, tuple[str, int]]


Look = Callable[[Watched], Mapping[str, Seen]]
"""Returns what is known of each host by now, and has the nodes asked again; a host that did not
answer yet is missing.
"""


@dataclass(frozen=True, slots=True)
class LiveNode:
    """A node of the current run, or of the last one. ``lines`` are the end of ``log``; ``use`` are
    a name, the newest value and a drawing of each quantity that is sampled."""

    host: str
    ranks: str
    state: str
    log: str
    is_chosen: bool
    lines: str
    logs: tuple[tuple[str, int], ...]
    use: tuple[tuple[str, str, str], ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class LiveBench:
    """A bench as its page shows it."""

    name: str
    title: str
    is_held: bool
    state: str
    bar: str
    facts: tuple[str, ...]
    run_id: str
    run_words: tuple[str, ...]
    nodes: tuple[LiveNode, ...]
    more_nodes: int
    runs: tuple[RunResult, ...]
    progress: str
    notes: tuple[str, ...]

    @property
    def page(self) -> str:
        """The name of its page in the site, without extension."""
        return page_name(self.name)


class Live:
    """Benches of one folder. Results of runs that are over are kept, since nothing changes them."""

    def __init__(self, runs: Path, look: Look) -> None:
        self.runs = runs
        self._look = look
        self._known: dict[Path, tuple[int, RunResult]] = {}

    def bench(self, name: str, log: str = "") -> LiveBench:
        """Return a bench; ``log``, as ``HOST/LOG``, is the one that is shown in full. Raises
        OrchError if its record cannot be read."""
        bench, notes = BenchDir.open(self.runs / name), list[str]()
        record, process = bench.record(), holder(bench)
        planned = planned_runs(
            bench, place_results(bench, [self._result(run) for run in _runs_begun_by_now(bench)])
        )
        events: list[Entry] = []
        try:
            events = bench.events()
        except (DataError, OSError) as error:
            notes.append(f"the journal cannot be read: {error}")
        run_id = _current(events)
        is_over = not (process and run_id) or any(
            event.run == run_id and event.event in ENDS for event in events
        )
        manifest = _manifest(bench, run_id, notes)
        nodes, more = _nodes(
            bench,
            manifest,
            log,
            {} if is_over or not manifest else self._ask(bench, manifest, log),
            is_over,
        )
        counts = planned.counts
        facts = [
            f"{counts.measured} of {counts.planned} runs measured",
            *_count_missing(counts, is_held=process is not None),
        ]
        facts += [f"run by {process}"] if process else []
        doubt = suspicion(events) if process else ""
        return LiveBench(
            name=name,
            title=record.label or ", ".join(dict.fromkeys(map(_cell_words, record.cells))) or name,
            is_held=process is not None,
            state=_state(events, process is not None),
            bar=_bar(planned.results, counts.planned),
            facts=(*facts, *_estimate_rest(events, counts.planned, process is not None)),
            run_id=run_id,
            run_words=tuple(_run_words(events, run_id, manifest, nodes, is_over)),
            nodes=nodes,
            more_nodes=more,
            runs=planned.results,
            progress=_progress(bench),
            notes=(*notes, *([doubt] if doubt else [])),
        )

    def _result(self, run: RunDir) -> RunResult:
        try:
            changed = (run.path / "manifest.json").stat().st_mtime_ns
        except OSError:
            changed = 0
        known = self._known.get(run.path)
        if known and known[0] == changed:
            return known[1]
        result = read_run(run)
        with suppress(DataError):
            if read_manifest(run).outcome is not None:
                self._known[run.path] = changed, result
        return result

    def _ask(self, bench: BenchDir, manifest: Manifest, log: str) -> Mapping[str, Seen]:
        """Return the nodes' answers so far."""
        shown = _choose_logs(manifest, log)
        logs = {
            slot.host: (name, LOG_BYTES if is_chosen else SHORT_BYTES)
            for slot, name, is_chosen in shown
        }
        return self._look(Watched(bench, manifest.run_id, logs))


def _runs_begun_by_now(bench: BenchDir) -> list[RunDir]:
    """Return the runs that have begun; if the journal is damaged, which names those without files,
    the others.
    """
    try:
        return bench.runs()
    except DataError:
        return [run for run in map(bench.run, bench.record().runs) if run.path.is_dir()]


def _choose_logs(manifest: Manifest, log: str) -> list[tuple[Slot, str, bool]]:
    """Return the nodes that are shown, each with the name of a log and whether that is shown in
    full: of the node that is chosen, as ``HOST/LOG``, else of the first."""
    host, _, name = log.partition("/")
    is_known = bool(name) and host in manifest.hosts
    shown = []
    for slot in manifest.slots:
        if is_known and slot.host == host:
            shown.append((slot, name, True))
        elif slot.node_rank < MOST_NODES or slot.host == host:
            is_first = not is_known and slot.node_rank == 0
            shown.append((slot, f"rank-{slot.first_rank}.out", is_first))
    return shown


def _current(events: Sequence[Entry]) -> str:
    """Return the run that began last; empty without one."""
    return next(
        (
            event.run
            for event in reversed(events)
            if event.event in (Event.PLANNED, Event.TAKEN_OVER)
        ),
        "",
    )


def _manifest(bench: BenchDir, run_id: str, notes: list[str]) -> Manifest | None:
    if not run_id:
        return None
    try:
        return read_manifest(bench.run(run_id))
    except (DataError, OSError) as error:
        notes.append(f"{run_id}: {error}")
        return None


def _count_missing(counts: Counts, *, is_held: bool) -> list[str]:
    """Return the counts of runs without a number; those that were never started are to come while a
    controller runs it.
    """
    return [words.replace("never run", "to come") if is_held else words for words in counts.words()]


def _cell_words(spec: RunSpec) -> str:
    return f"{spec.model} {spec.dtype} with {spec.framework}"


def _state(events: Sequence[Entry], is_held: bool) -> str:
    if is_held:
        return "in progress"
    last = last_controller(events)
    if not last:
        return "not begun"
    if last[-1].event != Event.OVER:
        return "its controller is gone; orch resume continues it"
    if last[-1].code == 0:
        return "over"
    return f"over, exit status {last[-1].code}"


def _bar(results: Sequence[RunResult], planned: int) -> str:
    good, failed = sum(run.is_good for run in results), sum(run.has_failed for run in results)
    stopped, running = (
        sum(run.is_interrupted for run in results),
        sum(run.state == RUNNING for run in results),
    )
    shares = [("one", good), ("bad", failed), ("two", stopped), ("wait", running)]
    label = (
        f"{good} measured, {failed} failed, {stopped} interrupted, {running} running, of {planned}"
    )
    if not planned:
        return ""
    return bar([(colour, count / planned) for colour, count in shares if count], label)


def _estimate_rest(events: Sequence[Entry], planned: int, is_held: bool) -> list[str]:
    """Return how long the rest will take if runs take as long as they did under this controller."""
    own, began, took = last_controller(events), dict[str, float](), list[float]()
    for event in own:
        if event.event == Event.PLANNED and event.at:
            began[event.run] = event.at
        elif event.event == Event.COLLECTED and event.at and event.run in began:
            took.append(event.at - began[event.run])
    over = len({event.run for event in events if event.event in ENDS})
    if not (is_held and took and planned > over):
        return []
    return [f"about {shortest(round(sum(took) / len(took) * (planned - over)) or 1)} left"]


def _run_words(
    events: Sequence[Entry],
    run_id: str,
    manifest: Manifest | None,
    nodes: Sequence[LiveNode],
    is_over: bool,
) -> list[str]:
    """Describe the progress of a run: its phase and for how long, and step and speed by its first
    node's log.
    """
    phase = next(
        (event for event in reversed(events) if event.run == run_id and event.event in _PHASES),
        None,
    )
    words = []
    if phase:
        ago = ""
        if phase.at and not is_over:
            ago = f" {shortest(max(1, round(time.time() - phase.at)))} ago"
        words.append(f"{phase.event.replace('_', ' ')}{ago}")
    if (
        manifest
        and nodes
        and not is_over
        and nodes[0].log == f"rank-{manifest.slots[0].first_rank}.out"
    ):
        words += _step(manifest, f"{nodes[0].lines}\n".encode())
    return words


def _step(manifest: Manifest, log: bytes) -> list[str]:
    """Return the last step of a log and its speed, as a display; numbers come from collected logs
    alone.
    """
    samples = parse(log[: 1 + log.rfind(b"\n")], manifest.grammar).samples
    if not samples:
        return []
    spec, measured, last = manifest.spec, manifest.measure.speed, samples[-1]
    speed = speed_of_line(last, Terms.of(spec, manifest.grammar))
    words = [f"step {last.step} of {spec.steps}"]
    if speed and measured:
        return [*words, f"{speed * spec.items:.1f} {measured.unit} in it"]
    return words


def _nodes(
    bench: BenchDir, manifest: Manifest | None, log: str, seen: Mapping[str, Seen], is_over: bool
) -> tuple[tuple[LiveNode, ...], int]:
    if manifest is None:
        return (), 0
    shown = _choose_logs(manifest, log)
    nodes = []
    for slot, name, is_chosen in shown:
        answer = (
            _read_collected(bench.run(manifest.run_id), slot.host, name)
            if is_over
            else seen.get(slot.host)
        )
        last = slot.first_rank + slot.nproc - 1
        ranks = f"rank {last}" if slot.nproc == 1 else f"ranks {slot.first_rank} to {last}"
        if answer is None:
            nodes.append(LiveNode(slot.host, ranks, "not asked yet", name, is_chosen, "", (), ()))
            continue
        text = visible(answer.log.decode("utf-8", "backslashreplace").replace("\r\n", "\n"))
        nodes.append(
            LiveNode(
                slot.host,
                ranks,
                "running" if answer.lives else "over" if is_over else "not running",
                name,
                is_chosen,
                text if is_chosen else "\n".join(text.splitlines()[-_SHORT_LINES:]),
                tuple(answer.sizes.items()),
                _use(answer.samples, slot.host),
                answer.error,
            )
        )
    return tuple(nodes), len(manifest.slots) - len(shown)


def _read_collected(run: RunDir, host: str, name: str) -> Seen | None:
    """Read the collected logs of a run that is over; None if there are none."""
    try:
        sizes = {path.name: path.stat().st_size for path in run.logs(host)}
        if not sizes:
            return Seen(error="nothing is collected")
        log = last_bytes(run, host, name, LOG_BYTES) if name in sizes else b""
        samples = last_bytes(run, host, TELEMETRY, 4 << 20) if TELEMETRY in sizes else b""
        return Seen(False, sizes, log, samples)
    except (OrchError, OSError) as error:
        return Seen(error=str(error))


def _use(samples: bytes, host: str) -> tuple[tuple[str, str, str], ...]:
    try:
        telemetry = telemetry_of(samples, host) if samples.strip() else None
    except DataError as error:
        return (("telemetry", str(error), ""),)
    if telemetry is None or len(telemetry.times) < 2:
        return ()
    lines = node_use(host, telemetry, telemetry.times[0], telemetry.times[-1]).lines
    return tuple(
        (
            line.quantity,
            f"{line.points[-1][1]:,.4g}",
            sparkline(line.points, f"{line.quantity} of {host}"),
        )
        for line in lines
        if line.points
    )


def _progress(bench: BenchDir) -> str:
    try:
        with (bench.path / PROGRESS_LOG).open("rb") as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - _PROGRESS_BYTES))
            lines = log.read(_PROGRESS_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return visible("\n".join(lines[-_PROGRESS_LINES:]))
