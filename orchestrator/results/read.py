"""Read the result of a run from its collected files: the manifest holds the plan, the logs prove
what happened.

Everything is verified: every log must have the size and digest of its node's exit record, every
planned rank must have logged its rank line exactly once on its planned node, and the program's last
line must agree with the plan. Otherwise the run has an error and no number; the other runs are
still reported. Only the run directory is needed, no node.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from statistics import median

from orchestrator.errors import ConfigError, DataError, OrchError, restore_error
from orchestrator.inventory import fold
from orchestrator.logs import is_named, nccl
from orchestrator.notes import Note
from orchestrator.plan import RunSpec
from orchestrator.plan.measures import LANGUAGE_MODEL, TOKENS_PER_S
from orchestrator.record import RunDir
from orchestrator.record.evidence import invalid, log_bytes
from orchestrator.record.manifest import Manifest, RecordedOutcome, read_manifest
from orchestrator.record.node_record import ExitRecord, exit_record
from orchestrator.results.binding import binding_words, find_shared_cores, read_bindings
from orchestrator.results.final_record import arithmetic, as_trained, closing_of, remarks
from orchestrator.results.hardware import (
    devices_of_node,
    find_load,
    find_slowdowns,
    infiniband_gbit,
    quiet,
)
from orchestrator.results.language_model import (
    language_values,
    layout_note,
    peak_note,
    with_devices,
)
from orchestrator.results.log_checks import (
    StepReading,
    read_window,
)
from orchestrator.results.lost_links import count_lost_links, lost_link_notes, read_lost_links
from orchestrator.results.measured import metrics_of, read_values, readings_of
from orchestrator.results.notes import (
    CPU_BINDING,
    END_NOT_VERIFIED,
    FOLDER_CAVEAT,
    LEFTOVER_PROCESSES,
    LOG_REREAD,
    NO_SIZES,
    SLOW_ANSWERS,
)
from orchestrator.results.numbers.clock import Clock, Sizes
from orchestrator.results.numbers.throughput import Terms
from orchestrator.results.rank_parts import parts_of_ranks
from orchestrator.results.reported_figures import RunContext, figures, verify_tokens
from orchestrator.results.run import REREAD, RESUME, RETRY, RunResult
from orchestrator.results.run_evidence import (
    RunEvidence,
    holders_of,
    read_evidence,
    verify_ranks,
    verify_sizes,
)
from orchestrator.results.silent_ranks import verify_ranks_logged
from orchestrator.results.telemetry.doubts import lowered_by_host
from orchestrator.results.telemetry.read import WindowTimes, run_use
from orchestrator.results.telemetry.utilization import sampled_values
from orchestrator.results.unmatched import verify_matched
from orchestrator.results.unread_logs import unread_results
from orchestrator.results.values import Value

_SLOW_ANSWER_S, _STRAGGLER_TIMES = 0.03, 5.0


def read_run(run: RunDir) -> RunResult:
    """Return one run's result. A fault of the run is in the result's ``error``; it is never raised."""
    try:
        planned = read_manifest(run)
    except DataError as error:
        again = "" if (run.path / "manifest.json").exists() else RESUME
        return RunResult(run.run_id, 0, None, False, "damaged", error=error, repeated_by=again)
    result = RunResult(
        run.run_id,
        planned.repeat,
        planned.spec,
        planned.simulated,
        "incomplete",
        facts=planned.facts,
        measure=planned.measure,
        metrics=metrics_of(planned.measure, planned.grammar),
        planned_units=planned.planned_units,
    )
    outcome = planned.outcome or RecordedOutcome("")
    again = RETRY if outcome.counts else RESUME
    if not outcome.measured:
        cause = outcome.error or restore_error(None, run.run_id)
        lost = read_lost_links(run, planned.hosts)
        return replace(result, state=outcome.state, error=cause, repeated_by=again, lost_links=lost)
    try:
        return _measure(run, planned, result)
    except ConfigError as error:  # the grammar was valid when the run was planned
        damaged = DataError(
            error.message,
            kind="state_damaged",
            where=f"{run.path / 'manifest.json'}: {error.where}",
        )
        return replace(result, state="damaged", error=damaged)
    except OrchError as error:
        error.run_id = run.run_id
        # An error that follows from several logs has no location yet.
        error.host, error.where = (
            error.host or holders_of(planned)[0].host,
            error.where or ", ".join(planned.grammar.files),
        )
        state = "failed"
        if not outcome.state and not _ended_everywhere(run, planned):
            state = "incomplete"
        # A run that finished is never made again in its bench, even if its evidence is found
        # damaged later.
        again = "" if outcome.state else RESUME
        result = replace(result, lost_links=read_lost_links(run, planned.hosts))
        return replace(
            result,
            state=state,
            error=error,
            repeated_by=REREAD if error.kind == "log_unmatched" else again,
        )


def _measure(run: RunDir, planned: Manifest, result: RunResult) -> RunResult:
    evidence = read_evidence(run, planned)
    places, parsed, records = evidence.places, evidence.parsed, evidence.records
    files = list(records[evidence.holders[0].host].files)
    verify_sizes(parsed, planned.spec)
    verify_matched(run, planned, files, parsed, places, evidence.samples)
    notes = [LOG_REREAD(text=planned.reread)] if planned.reread else []
    notes += [FOLDER_CAVEAT(text=planned.caveat)] if planned.caveat else []
    notes += verify_ranks(planned, parsed)
    notes += unread_results(run, records, planned.grammar, places)
    observed = closing_of(planned, list(places.values()), evidence.holders[0].host)
    spec = as_trained(planned.spec, observed)
    notes += [text for log in places.values() for text in log.warnings] + remarks(observed)
    notes += _leftovers(planned.outcome) + _stragglers(planned.outcome)
    notes += arithmetic(spec.dtype, observed.get("output_dtype"))
    lost = count_lost_links(records)
    notes += lost_link_notes(lost)
    paths = _transport(run, planned, records)
    if bound := read_bindings(records):
        binding = binding_words(bound)
        observed = {**observed, "cpu_binding": binding}
        notes.append(CPU_BINDING(binding=binding))
    notes += find_shared_cores(bound)
    transport = {**asdict(paths), "words": list(paths.words(spec.nodes, spec.world_size))}
    observed = {**observed, "networks": list(paths.networks), "transport": transport}
    notes += nccl.fallbacks(paths, spec.nodes, spec.world_size, infiniband_gbit(result.nodes))
    result = replace(
        result,
        spec=spec,
        state="finished",
        simulated=planned.simulated or observed.get("simulated") is True,
        observed=observed,
        slowed=find_slowdowns(records),
        loaded=find_load(records),
        lost_links=lost,
    )
    if planned.measure.has_samples:
        result, of_steps = _with_steps(result, spec, evidence)
        notes += of_steps
    else:
        result = _with_readings(result, evidence)
    return replace(result, qualifications=tuple(dict.fromkeys(notes)))


def _with_readings(result: RunResult, evidence: RunEvidence) -> RunResult:
    """Return the result of a program that prints measurements, not steps."""
    by_log = evidence.readings
    lines = [line for readings in by_log.values() for line in readings]
    readings = readings_of(evidence.planned, lines, result.observed)
    values = read_values(evidence.planned, readings, by_log)
    return replace(result, readings=readings, metric_values=values, digests=(evidence.digest,))


def _with_steps(
    result: RunResult, spec: RunSpec, evidence: RunEvidence
) -> tuple[RunResult, list[Note]]:
    """Return the result of a training: its throughput, and what follows from it."""
    planned, grammar = evidence.planned, evidence.planned.grammar
    records, holders, observed = evidence.records, evidence.holders, result.observed
    steps = _read_steps(result, spec, evidence)
    measured = steps.throughput
    notes: list[Note] = []
    if not result.simulated:
        notes += quiet(records, spec, observed.get("parameters"), planned.placement.master_addr)
    notes += steps.notes
    rank_parts, unusable = parts_of_ranks(evidence.parsed, planned.slots, spec)
    notes += unusable
    derived: tuple[Value, ...] = ()
    known = with_devices(
        observed,
        (name for host in planned.hosts for name in devices_of_node(result.nodes.get(host))),
    )
    if planned.measure.name == LANGUAGE_MODEL:
        derived = language_values(
            spec, planned.transformer, measured.samples_per_s, known, steps.resolution
        )
        without = NO_SIZES(framework=spec.framework, model=spec.model)
        notes += peak_note(spec, known, derived) if planned.transformer else [without]
        notes += layout_note(spec, observed)
    started = steps.tempo.clock if steps.tempo and grammar.nodes != "every" else None
    times_of_window = WindowTimes(holders[0].host, started, evidence.arrivals)
    use, unread = run_use(evidence.run, planned, records, measured, steps.window, times_of_window)
    notes += unread
    values = (
        *derived,
        *read_values(planned, (), evidence.readings),
        *sampled_values(use, planned.measure.sampled),
    )
    speed = Value(
        TOKENS_PER_S.name, (), measured.samples_per_s * spec.items, steps.resolution * spec.items
    )
    context = RunContext.of(spec, planned.transformer, known)
    said = figures(grammar.metrics, values, speed, steps.times, context)
    verify_tokens(said, context)
    done = replace(
        result,
        **steps.fields(),
        metric_values=values,
        said=said,
        slowed=find_slowdowns(records, measured.seconds, lowered_by_host(use)),
        use=use,
        digests=(evidence.digest, steps.digest),
        rank_parts=rank_parts,
    )
    return done, notes


def _read_steps(result: RunResult, spec: RunSpec, evidence: RunEvidence) -> StepReading:
    """Return the steps of the window. Raises DataError if the log has other steps than the plan."""
    grammar, holders = evidence.planned.grammar, evidence.holders
    terms = Terms.of(spec, grammar)
    files = {node.host: len(evidence.logs[node.host].sampled) for node in holders}
    verify_ranks_logged(evidence.aggregate, grammar, terms, evidence.planned.slots, files)
    printed = {
        name: finest for log in evidence.places.values() for name, finest in log.resolution.items()
    }
    life_s = evidence.records[holders[0].host].took_s
    steps = read_window(
        evidence.samples,
        terms,
        printed,
        simulated=result.simulated,
        sampled=grammar.sampled,
        items=spec.items,
        clock=(Clock(evidence.arrivals, life_s), Sizes(spec.nodes, spec.world_size)),
    )
    samples = steps.throughput.samples
    planned_samples = (spec.steps - spec.warmup_steps) * spec.global_batch
    if samples != planned_samples:
        raise invalid(f"expected {planned_samples} samples in the window, the log counts {samples}")
    return steps


def _transport(run: RunDir, planned: Manifest, records: Mapping[str, ExitRecord]) -> nccl.Paths:
    """Return the transports that NCCL chose on all nodes, from its own logs, which were verified
    with all others.
    """
    logs = (
        log_bytes(run, node.host, name)
        for node in planned.slots
        for name in records[node.host].files
        if is_named(name, planned.grammar.nccl_files)
    )
    return nccl.transport(logs)


def _leftovers(outcome: RecordedOutcome | None) -> list[Note]:
    """Return qualifications if the controller found processes of the run after its end, or could
    not verify its end.
    """
    clean = outcome.clean if outcome else {}
    left = [host for host, node in clean.items() if node.left]
    doubtful = [host for host, node in clean.items() if node.unverified]
    notes = []
    if left:
        notes.append(LEFTOVER_PROCESSES(hosts=fold(left)))
    if doubtful:
        notes.append(END_NOT_VERIFIED(hosts=fold(doubtful)))
    return notes


def _stragglers(outcome: RecordedOutcome | None) -> list[Note]:
    """Return a qualification for each node that answered far more slowly than the others during the
    run.
    """
    answers = outcome.answers if outcome else {}
    times = {host: answer.round_trip_s for host, answer in answers.items() if answer.round_trip_s}
    notes = []
    for host, took in times.items():
        others = [other for name, other in times.items() if name != host]
        if others and took > max(_SLOW_ANSWER_S, _STRAGGLER_TIMES * (usual := median(others))):
            notes.append(SLOW_ANSWERS(host=host, ms=took * 1e3, usual_ms=usual * 1e3))
    return notes


def _ended_everywhere(run: RunDir, planned: Manifest) -> bool:
    try:
        return all(exit_record(run, host) is not None for host in planned.hosts)
    except DataError:
        return True
