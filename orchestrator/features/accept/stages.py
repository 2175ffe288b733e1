"""The stages of an acceptance, read from its files: the judgement of their checks and runs, and the
benches that bars are about.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from orchestrator.feature import providers
from orchestrator.features.accept.blame import depend_on_hosts, succeeds_without
from orchestrator.features.accept.nodes import by_checks, by_lost_links, by_runs
from orchestrator.features.accept.observations import of_runs, see
from orchestrator.features.accept.record import AcceptanceDir, AcceptanceRecord, Attempt
from orchestrator.features.accept.suite import Suite, SuiteStage
from orchestrator.features.accept.verdicts import Judged
from orchestrator.record import BenchDir
from orchestrator.results import RunResult
from orchestrator.results.bench import notes_of, place_results
from orchestrator.results.planned import planned_runs
from orchestrator.results.read import read_run
from orchestrator.results.summary import Summary, of_bench
from orchestrator.yamlfile import Document


@dataclass(frozen=True, slots=True)
class StageRun:
    """A stage that was made: its bench, empty for checks, the configurations, its hosts, and how
    many runs have a number.
    ``notes`` qualify its numbers, such as a drift during the bench or lowered clocks."""

    name: str
    title: str
    bench_id: str
    configurations: tuple[str, ...]
    hosts: tuple[str, ...]
    measured: int
    planned: int
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Made:
    """A stage with the last of its benches, read."""

    stage: SuiteStage
    bench: BenchDir
    hosts: tuple[str, ...]
    results: Sequence[RunResult]
    summary: Summary


@dataclass(frozen=True, slots=True)
class Stages:
    """The stages that were made, in their order: ``runs`` of all, ``made`` of those that measure.
    ``judged`` are their checks and runs; ``seen`` has by host what no bar judges."""

    runs: list[StageRun] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    judged: list[Judged] = field(default_factory=list)
    seen: dict[str, list[str]] = field(default_factory=dict)


Inspected = Mapping[str, tuple[Mapping[str, Any], Sequence[Mapping[str, str]]]]
"""By stage the facts of each host, and the checks of them."""


def read_stages(
    folder: AcceptanceDir,
    record: AcceptanceRecord,
    suite: Suite,
    document: Document,
    inspected: Inspected,
) -> Stages:
    """Return the stages of an acceptance as far as they were made. Raises DataError for damaged
    files.
    """
    stages = Stages()
    for stage in suite.stages:
        if stage.name not in record.stages:
            continue
        if stage.checks:
            facts, checks = inspected.get(stage.name, ({}, []))
            if facts:
                hosts = tuple(record.hosts)
                stages.judged.append(by_checks(stage.name, checks, stage.checks, hosts))
                run = StageRun(stage.name, stage.title, "", (), hosts, len(facts), len(hosts))
                stages.runs.append(run)
        else:
            attempts = record.of_stage(stage.name)
            benches = [folder.bench(attempt.bench_id) for attempt in attempts]
            _read_stage(stages, stage, depend_on_hosts(document, stage), attempts, benches)
    return stages


def _read_stage(
    stages: Stages,
    stage: SuiteStage,
    by_hosts: Collection[str],
    attempts: Sequence[Attempt],
    benches: Sequence[BenchDir],
) -> None:
    """Add a stage that measures: each attempt is judged by its runs, and bars are about the last."""
    read = [place_results(bench, list(map(read_run, bench.runs()))) for bench in benches]
    if any(read):
        hosts = dict.fromkeys(host for attempt in attempts for host in attempt.hosts)
        runs = [run for results in read for run in results]
        stages.judged.append(by_lost_links(stage.name, runs, list(hosts)))
    for number, (attempt, bench, results) in enumerate(
        zip(attempts, benches, read, strict=True), 1
    ):
        if results or not stage.optional:
            after = (later.hosts for later in attempts[number:])
            blames = partial(
                succeeds_without, list(zip(after, read[number:], strict=True)), by_hosts
            )
            stages.judged.append(by_runs(stage.name, bench, results, attempt.hosts, blames))
        remarks = [
            remark for module in providers("remarks") for remark in module.remarks(bench, results)
        ]
        see(stages.seen, stage.name, (remark for remark in remarks if remark[0]))
        if number == len(attempts):
            summary = of_bench(planned_runs(bench, results), notes_of(bench))
            see(stages.seen, stage.name, of_runs(summary, results))
            made = Made(stage, bench, attempt.hosts, results, summary)
            stages.made.append(made)
            unnamed = [text for host, text in remarks if not host]
            stages.runs.append(_stage_run(made, attempt.bench_id, unnamed))


def _stage_run(made: Made, bench_id: str, remarks: Sequence[str]) -> StageRun:
    summary = made.summary
    rows = (*summary.rows, *summary.sheets)
    of_rows = (note for row in summary.rows for note in row.qualifications)
    return StageRun(
        made.stage.name,
        made.stage.title,
        bench_id,
        tuple(dict.fromkeys(f"{row.series} {row.shape}" for row in rows)),
        made.hosts,
        sum(run.is_good for run in made.results),
        len(made.bench.record().runs),
        tuple(dict.fromkeys([*summary.notes, *remarks, *of_rows])),
    )
