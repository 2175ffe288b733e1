"""The record of a bench besides its numbers: course, machines, files and command of each run.

This is secondary evidence: a missing or damaged part is left out, and the numbers, which
`orchestrator.results.read` verifies by itself, do not depend on it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import unified_diff
from pathlib import Path
from typing import Any

from orchestrator.checks import by_value
from orchestrator.errors import DataError
from orchestrator.grouping import group_pairs
from orchestrator.plan import RunSpec
from orchestrator.plan.placement import Slot
from orchestrator.record import BenchDir, RunDir
from orchestrator.record.bench_record import BenchRecord
from orchestrator.record.evidence import read_rendered_files
from orchestrator.record.journal import ENDS, Entry, Event
from orchestrator.record.manifest import Manifest, StartRecord, read_manifest
from orchestrator.record.node_record import exit_record
from orchestrator.results.run import RunResult

PHASES = ("planned", "staged", "armed", "started", "over", "collected")


@dataclass(frozen=True, slots=True)
class NodeTimes:
    """The begin of a node's part of a run, relative to the run's first node, and its duration, in
    seconds.
    """

    host: str
    began_s: float
    took_s: float


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The course of one run.

    ``phases`` are seconds relative to the start signal by the controller's clock. ``skew_s`` is the
    start skew of the nodes, ``bound_s`` its error bound; both None without a record of a start.
    ``first_step_s`` is the time from the start of the first node to the end of the first step, None
    if the log has no timestamps of its node's clock.
    """

    run_id: str
    phases: Mapping[str, float]
    nodes: tuple[NodeTimes, ...]
    first_step_s: float | None
    skew_s: float | None
    bound_s: float | None


@dataclass(frozen=True, slots=True)
class ShapePlacement:
    """The placement of runs of one shape: hosts in order of node_rank, each with ranks and devices."""

    shape: str
    slots: tuple[tuple[str, str, str, str], ...]
    master_addr: str


@dataclass(frozen=True, slots=True)
class RenderedFile:
    """A rendered file of a run: its text on the first hosts, and the differences on other hosts as
    lines of a diff.
    """

    path: str
    hosts: tuple[str, ...]
    text: str
    others: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class BenchHistory:
    """The record of a bench besides its summary.

    ``commands`` are the argv of all controllers that ran it; ``facts`` maps each fact to its values
    and their hosts. ``files`` has the files of a cell's first run, by run id, and ``unlike`` the
    runs of the same cell whose files differ from these by more than rendezvous port and run id.
    """

    bench_id: str
    created: str
    orch: str
    commands: tuple[tuple[str, ...], ...]
    superseded: Mapping[str, str]
    runs: Mapping[str, RunHistory]
    facts: Mapping[str, Mapping[str, Sequence[str]]]
    placed: tuple[ShapePlacement, ...]
    files: Mapping[str, tuple[RenderedFile, ...]]
    unlike: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]


def history_of(bench: BenchDir, results: Sequence[RunResult]) -> BenchHistory:
    """Return the history of a bench whose runs have these results. Raises DataError if
    ``bench.json`` is damaged.
    """
    record = bench.record()
    notes = []
    events: list[Entry] = []
    try:
        events = bench.events()
    except (DataError, OSError) as error:
        notes.append(f"the journal cannot be read, so phases of runs are not shown: {error}")
    by_run = group_pairs((event.run, event) for event in events)
    manifests = {}
    for result in results:
        with suppress(DataError):
            manifests[result.run_id] = read_manifest(bench.run(result.run_id))
    files, unlike = _files(bench, results, manifests)
    return BenchHistory(
        bench_id=record.bench_id,
        created=record.created,
        orch=record.orch,
        commands=_commands(record, events),
        superseded=record.superseded,
        runs={
            result.run_id: _run(
                bench.run(result.run_id), result, manifests.get(result.run_id), by_run
            )
            for result in results
        },
        facts=_facts(results),
        placed=tuple(dict.fromkeys(_shape_placements(results, manifests))),
        files=files,
        unlike=unlike,
        notes=tuple(notes),
    )


def _commands(record: BenchRecord, events: Iterable[Entry]) -> tuple[tuple[str, ...], ...]:
    """Return each distinct command line once: `orch bench`, and the commands that continued it."""
    lines = [record.argv, *(event.argv for event in events if event.event == Event.BEGUN)]
    return tuple(dict.fromkeys((Path(line[0]).name, *line[1:]) for line in lines if line))


def _facts(results: Iterable[RunResult]) -> dict[str, dict[str, list[str]]]:
    seen: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        for host, facts in result.facts.items():
            if isinstance(facts, Mapping) and facts not in seen.setdefault(host, []):
                seen[host].append(facts)
    return by_value((host, facts) for host, several in sorted(seen.items()) for facts in several)


def _shape_placements(
    results: Iterable[RunResult], manifests: Mapping[str, Manifest]
) -> Iterator[ShapePlacement]:
    for result in results:
        if result.spec and result.state != "damaged":
            placement = manifests[result.run_id].placement
            slots = tuple(
                (slot.host, slot.address, _ranks(slot), slot.devices) for slot in placement.slots
            )
            yield ShapePlacement(result.spec.shape, slots, placement.master_addr)


def _ranks(slot: Slot) -> str:
    first, last = slot.ranks[0], slot.ranks[-1]
    if last > first:
        return f"ranks {first}-{last}"
    return f"rank {first}"


# -- how a run went


def _run(
    run: RunDir, result: RunResult, manifest: Manifest | None, events: Mapping[str, list[Entry]]
) -> RunHistory:
    start = manifest.start if manifest else None
    spans = _spans(run, start) if start else {}
    go = min((began - offset for began, _, offset in spans.values()), default=0.0)
    return RunHistory(
        run_id=run.run_id,
        phases=_phases(events.get(run.run_id, [])),
        nodes=tuple(
            NodeTimes(host, began - offset - go, ended - began)
            for host, (began, ended, offset) in spans.items()
        ),
        first_step_s=_first_step(result, manifest, spans, go) if manifest else None,
        skew_s=start.skew_s if start else None,
        bound_s=start.bound_s if start else None,
    )


def _phases(events: Iterable[Entry]) -> dict[str, float]:
    """Return the times at which the last attempt at a run reached each phase; empty for a run that
    never started.
    """
    at = {}
    for event in events:
        name = "over" if event.event in ENDS else event.event
        if name in PHASES and event.at is not None:
            at[name] = event.at
    if "started" not in at:
        return {}
    return {name: at[name] - at["started"] for name in PHASES if name in at}


def _spans(run: RunDir, start: StartRecord) -> dict[str, tuple[float, float, float]]:
    """Return start and end of every node with an exit record by its own clock, and the offset of
    that clock, in seconds.
    """
    spans = {}
    for host, node in start.hosts.items():
        with suppress(DataError):
            record = exit_record(run, host)
            began, ended = (record.started_mono_s, record.ended_mono_s) if record else (None, None)
            if began is not None and ended is not None and ended >= began:
                spans[host] = (float(began), float(ended), node.offset_s)
    return spans


def _first_step(
    result: RunResult,
    manifest: Manifest,
    spans: Mapping[str, tuple[float, float, float]],
    go: float,
) -> float | None:
    """Return the seconds from start to end of the first step, if one node logs steps, by its own
    clock.
    """
    tempo = result.tempo
    if tempo is None or tempo.clock is None or manifest.grammar.nodes == "every":
        return None
    printing = manifest.slots[-1 if manifest.grammar.nodes == "last" else 0]
    began, ended, offset = spans.get(printing.host, (0.0, 0.0, 0.0))
    first = tempo.clock + tempo.first_s
    if began < first <= ended:
        return first - offset - go
    return None


# -- what was sent to the nodes


def _files(
    bench: BenchDir, results: Sequence[RunResult], manifests: Mapping[str, Manifest]
) -> tuple[dict[str, tuple[RenderedFile, ...]], dict[str, tuple[str, ...]]]:
    """Return the files of the first run of each cell, and the runs of the same cell whose files
    differ.
    """
    first: list[tuple[RunSpec, str, dict[str, dict[str, str]]]] = []
    unlike: dict[str, list[str]] = {}
    for result in results:
        if result.spec is None or result.run_id not in manifests:
            continue
        texts = _texts(bench.run(result.run_id), manifests[result.run_id])
        first_run = next(
            ((run_id, files) for spec, run_id, files in first if spec == result.spec), None
        )
        if first_run is None:
            first.append((result.spec, result.run_id, texts))
        elif _plain(texts, manifests[result.run_id]) != _plain(
            first_run[1], manifests[first_run[0]]
        ):
            unlike.setdefault(first_run[0], []).append(result.run_id)
    files = {}
    for _, run_id, texts in first:
        files[run_id] = tuple(_fold_file(path, on) for path, on in texts.items())
    return files, {run_id: tuple(others) for run_id, others in unlike.items()}


def _texts(run: RunDir, manifest: Manifest) -> dict[str, dict[str, str]]:
    """Return the text of each rendered file by path and host, hosts in order of node_rank."""
    texts: dict[str, dict[str, str]] = {}
    for host in manifest.hosts:
        with suppress(DataError):
            for path, text in read_rendered_files(run, host).items():
                texts.setdefault(path, {})[host] = text
    return texts


def _plain(texts: Mapping[str, Mapping[str, str]], manifest: Manifest) -> dict[str, dict[str, str]]:
    """Return the texts without port and run id, which differ between repeats in any case."""
    varying = re.compile(rf"\b(?:{manifest.placement.master_port}|{re.escape(manifest.run_id)})\b")
    stripped = {}
    for path, on in texts.items():
        stripped[path] = {host: varying.sub("", text) for host, text in on.items()}
    return stripped


def _fold_file(path: str, on: Mapping[str, str]) -> RenderedFile:
    groups = group_pairs((text, host) for host, text in on.items())
    (text, hosts), *others = groups.items()
    diffs: dict[tuple[str, ...], list[str]] = {}
    for other, other_hosts in others:
        lines = tuple(
            line.rstrip("\n")
            for line in unified_diff(text.splitlines(), other.splitlines(), n=0, lineterm="")
        )
        diffs.setdefault(lines[2:], []).extend(other_hosts)
    return RenderedFile(
        path,
        tuple(hosts),
        text,
        tuple((tuple(other_hosts), lines) for lines, other_hosts in diffs.items()),
    )
