"""From the collected files of a run to its result: the manifest holds the plan, the logs prove what
happened.

Everything is verified: every log must have the size and digest of its node's exit record, every
planned rank must have logged its rank line exactly once on its planned node, and the program's last
line must agree with the plan. Otherwise the run has an error and no number; the other runs are
still reported. Only the run directory is needed, no node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from statistics import median

from orchestrator.documents import short
from orchestrator.errors import ConfigError, DataError, OrchError, RunError, recorded_error
from orchestrator.inventory import fold
from orchestrator.logs import is_named, nccl
from orchestrator.logs.parse import Parsed
from orchestrator.notes import Note
from orchestrator.plan import RunSpec
from orchestrator.plan.measures import LANGUAGE_MODEL, TOKENS_PER_S
from orchestrator.plan.placement import Slot
from orchestrator.record import RunDir
from orchestrator.record.evidence import invalid, log_bytes
from orchestrator.record.manifest import Manifest, RecordedOutcome, read_manifest
from orchestrator.record.node_record import ExitRecord, exit_record
from orchestrator.results.binding import binding_words, bound_ranks, shared_cores
from orchestrator.results.final_record import arithmetic, as_trained, closing_of, remarks
from orchestrator.results.hardware import devices_of_node, infiniband_gbit, loaded, quiet, slowed
from orchestrator.results.language_model import (
    language_values,
    layout_note,
    peak_note,
    with_devices,
)
from orchestrator.results.log_checks import digest, read_window, sizes_of, verify_statements
from orchestrator.results.lost_links import lost_links, lost_links_of, lost_links_words
from orchestrator.results.measured import measured_values, metrics_of, readings_of
from orchestrator.results.node_logs import NodeLogs, read_logs
from orchestrator.results.notes import (
    CPU_BINDING,
    END_NOT_VERIFIED,
    FOLDER_CAVEAT,
    LEFTOVER_PROCESSES,
    LOG_REREAD,
    NO_SIZES,
    RANKS_NOT_VERIFIED,
    SLOW_ANSWERS,
)
from orchestrator.results.numbers.clock import Clock, Sizes
from orchestrator.results.numbers.throughput import Terms
from orchestrator.results.rank_parts import parts_of_ranks
from orchestrator.results.reported_figures import RunContext, figures
from orchestrator.results.run import REREAD, RESUME, RETRY, RunResult
from orchestrator.results.silent_ranks import verify_ranks_logged
from orchestrator.results.telemetry.doubts import lowered_by_host
from orchestrator.results.telemetry.read import WindowTimes, run_use
from orchestrator.results.telemetry.utilization import sampled_values
from orchestrator.results.unmatched import verify_matched
from orchestrator.results.unread_logs import unread_results
from orchestrator.results.values import Value

__all__ = ["read_run"]

_SLOW_ANSWER_S, _STRAGGLER_TIMES = 0.03, 5.0


def read_run(run: RunDir, *, each_rank: bool = False) -> RunResult:
    """Return one run's result. A fault of the run is in the result's ``error``; it is never raised."""
    try:
        planned = read_manifest(run)
    except DataError as error:
        return RunResult(run.run_id, 0, None, False, "damaged", error=error)
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
        cause = outcome.error or recorded_error(None, run.run_id)
        lost = lost_links_of(run, planned.hosts)
        return replace(result, state=outcome.state, error=cause, repeated_by=again, lost_links=lost)
    try:
        return _measured(run, planned, result, each_rank)
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
            error.host or _holders(planned)[0].host,
            error.where or ", ".join(planned.grammar.files),
        )
        state = (
            "incomplete" if not outcome.state and not _ended_everywhere(run, planned) else "failed"
        )
        # A run that finished is never made again in its bench, even if its evidence is found
        # damaged later.
        again = "" if outcome.state else RESUME
        result = replace(result, lost_links=lost_links_of(run, planned.hosts))
        return replace(
            result,
            state=state,
            error=error,
            repeated_by=REREAD if error.kind == "log_unmatched" else again,
        )


def _measured(run: RunDir, planned: Manifest, result: RunResult, each_rank: bool) -> RunResult:
    spec, grammar = planned.spec, planned.grammar
    records = _exit_records(run, planned)
    holders = _holders(planned)
    terms = Terms.of(spec, grammar)
    rank_terms = terms if each_rank and grammar.nodes == "every" else None
    logs, aggregate = read_logs(
        run, records, grammar, frozenset(node.host for node in holders), rank_terms
    )
    parsed = {host: node_logs.files for host, node_logs in logs.items()}
    places = {
        (node.host, name): logs[node.host].files[name]
        for node in holders
        for name in logs[node.host].sampled
    }
    sampled = list(places.values())
    samples = (
        aggregate.samples()
        if aggregate
        else next((log.samples for log in sampled if log.samples), ())
    )
    _verify_statements(parsed, spec)
    verify_matched(run, planned, list(records[holders[0].host].files), parsed, places, samples)
    notes = [LOG_REREAD(text=planned.reread)] if planned.reread else []
    notes += [FOLDER_CAVEAT(text=planned.caveat)] if planned.caveat else []
    notes += _verify_ranks(planned, parsed)
    notes += unread_results(run, records, grammar, places)
    observed = closing_of(planned, sampled, holders[0].host)
    spec = as_trained(spec, observed)
    terms = Terms.of(spec, grammar)
    notes += [text for log in sampled for text in log.warnings] + remarks(observed)
    notes += _leftovers(planned.outcome) + _stragglers(planned.outcome)
    notes += arithmetic(spec.dtype, observed.get("output_dtype"))
    lost = lost_links(records)
    notes += lost_links_words(lost)
    paths = _transport(run, planned, records)
    transport = {**asdict(paths), "words": list(paths.words(spec.nodes, spec.world_size))}
    bound = bound_ranks(records)
    notes += [CPU_BINDING(binding=binding_words(bound))] if bound else []
    notes += shared_cores(bound)
    observed = {**observed, **({"cpu_binding": binding_words(bound)} if bound else {})}
    observed = {**observed, "networks": list(paths.networks), "transport": transport}
    notes += nccl.fallbacks(paths, spec.nodes, spec.world_size, infiniband_gbit(planned.facts))
    result = replace(
        result,
        spec=spec,
        state="finished",
        simulated=planned.simulated or observed.get("simulated") is True,
        qualifications=tuple(dict.fromkeys(notes)),
        observed=observed,
        slowed=slowed(records),
        loaded=loaded(records),
        lost_links=lost,
    )
    by_log = {place: log.readings for place, log in places.items()}
    if not planned.measure.has_samples:
        lines = [line for readings in by_log.values() for line in readings]
        readings = readings_of(planned, lines, observed)
        digests = (_digests(records, holders, logs),)
        return replace(
            result,
            readings=readings,
            metric_values=measured_values(planned, readings, by_log),
            digests=digests,
        )
    files = {node.host: len(logs[node.host].sampled) for node in holders}
    verify_ranks_logged(aggregate, grammar, terms, planned.slots, files)
    printed = {name: finest for log in sampled for name, finest in log.resolution.items()}
    arrivals = next((logs[node.host].arrivals for node in holders), ())
    steps = read_window(
        samples,
        terms,
        printed,
        simulated=result.simulated,
        sampled=grammar.sampled,
        items=spec.items,
        clock=(
            Clock(arrivals, _life_s(records[holders[0].host])),
            Sizes(spec.nodes, spec.world_size),
        ),
    )
    measured = steps.throughput
    planned_samples = (spec.steps - spec.warmup_steps) * spec.global_batch
    if measured.samples != planned_samples:
        raise invalid(
            f"expected {planned_samples} samples in the window, the log counts {measured.samples}"
        )
    if not result.simulated:
        notes += quiet(records, spec, observed.get("parameters"), planned.placement.master_addr)
    notes += steps.notes
    rank_parts, unusable = parts_of_ranks(parsed, planned.slots, spec)
    notes += unusable
    derived: tuple[Value, ...] = ()
    known = with_devices(
        observed,
        (name for host in planned.hosts for name in devices_of_node(planned.facts.get(host))),
    )
    if planned.measure.name == LANGUAGE_MODEL:
        derived = language_values(
            spec, planned.transformer, measured.samples_per_s, known, steps.resolution
        )
        without = NO_SIZES(framework=spec.framework, model=spec.model)
        notes += peak_note(spec, known, derived) if planned.transformer else [without]
        notes += layout_note(spec, observed)
    started = steps.tempo.clock if steps.tempo and grammar.nodes != "every" else None
    times_of_window = WindowTimes(holders[0].host, started, arrivals)
    use, unread = run_use(run, planned, records, measured, steps.window, times_of_window)
    notes += unread
    values = (
        *derived,
        *measured_values(planned, (), by_log),
        *sampled_values(use, planned.measure.sampled),
    )
    speed = Value(
        TOKENS_PER_S.name, (), measured.samples_per_s * spec.items, steps.resolution * spec.items
    )
    return replace(
        result,
        **steps.fields(),
        metric_values=values,
        said=figures(
            grammar.metrics,
            values,
            speed,
            steps.times,
            RunContext.of(spec, planned.transformer, known),
        ),
        slowed=slowed(records, measured.seconds, lowered_by_host(use)),
        use=use,
        qualifications=tuple(dict.fromkeys(notes)),
        digests=(_digests(records, holders, logs), steps.digest),
        rank_parts=rank_parts,
        by_rank={
            f"{node.host}/{name}": values
            for node in holders
            for name, values in logs[node.host].rhythm.items()
        },
    )


def _verify_statements(parsed: Mapping[str, Mapping[str, Parsed]], spec: RunSpec) -> None:
    """Check what each log says of itself and of the run. A size that the program finds itself is
    not planned.
    """
    sizes = sizes_of(spec)
    if spec.step.batch_size_up_to:
        sizes = {
            name: size for name, size in sizes.items() if name not in ("batch_size", "global_batch")
        }
    for host, logs in parsed.items():
        for name, log in logs.items():
            try:
                verify_statements(log, sizes)
            except DataError as error:
                error.host, error.where = host, name
                raise


def _holders(planned: Manifest) -> tuple[Slot, ...]:
    """Return the nodes whose logs have the samples."""
    of_nodes = {"first": planned.slots[:1], "last": planned.slots[-1:]}
    return of_nodes.get(planned.grammar.nodes, planned.slots)


def _digests(
    records: Mapping[str, ExitRecord], holders: Sequence[Slot], logs: Mapping[str, NodeLogs]
) -> str:
    return digest(
        records[node.host].files[name].sha256
        for node in holders
        for name in logs[node.host].sampled
    )


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


def _exit_records(run: RunDir, planned: Manifest) -> dict[str, ExitRecord]:
    """Return every node's exit record. Raises the error of a node that failed before those of nodes
    stopped because of it.
    """
    records: dict[str, ExitRecord] = {}
    errors: list[OrchError] = []
    for node in planned.slots:
        try:
            record = exit_record(run, node.host)
            if record is None:
                hint = "run `orch collect`"
                raise invalid("expected an exit record, none was collected", node.host, hint=hint)
            records[node.host] = record
            _check_exit(record, run, node)
        except (DataError, RunError) as error:
            error.host = error.host or node.host
            errors.append(error)
    if errors:
        causes = [
            error
            for error in errors
            if error.host in records and records[error.host].state == "failed"
        ]
        raise (causes or errors)[0]
    return records


def _check_exit(record: ExitRecord, run: RunDir, node: Slot) -> None:
    for key, expected, got in (
        ("run_id", run.run_id, record.run_id),
        ("node_rank", node.node_rank, record.node_rank),
    ):
        if got != expected:
            raise invalid(f"expected {key} {expected!r}, got {short(got)}", node.host, "exit.json")
    if record.state in ("failed", "stopped"):
        reason = short(record.reason or record.how)
        raise RunError(
            f"the node reports {record.state}: {reason}",
            kind="rank_failed",
            host=node.host,
            where="exit.json",
        )
    if record.code != 0 or record.signal is not None:
        got = (
            f"state {short(record.state)}, code {short(record.code)}, signal {short(record.signal)}"
        )
        raise invalid(f"expected state 'finished' with code 0, got {got}", node.host, "exit.json")
    for rank in record.ranks:
        if rank.code != 0:
            how = short(rank.signal or rank.code)
            raise invalid(
                f"rank {rank.rank} ended with {how} in a run recorded as finished",
                node.host,
                "exit.json",
            )


def _verify_ranks(planned: Manifest, parsed: Mapping[str, Mapping[str, Parsed]]) -> list[Note]:
    """Check that each rank logged its rank line once, on its planned node. Return a qualification
    without a rank pattern.
    """
    grammar = planned.grammar
    if not grammar.rank:
        # Of metrics of ranks or nodes, `values.values_of` has verified that all have one.
        is_verified = grammar.metrics and all(
            metric.scope != "global" for metric in grammar.metrics
        )
        if not planned.measure.has_samples and (is_verified or planned.spec.world_size == 1):
            return []
        return [RANKS_NOT_VERIFIED()]
    patterns = grammar.rank_files or grammar.files
    world = planned.spec.world_size
    seen: dict[int, str] = {}
    for node in planned.slots:
        for name, log in parsed[node.host].items():
            if not is_named(name, patterns):
                continue
            for rank, world_size in log.ranks:
                if world_size not in (None, world):
                    raise invalid(
                        f"expected world size {world}, rank {rank} logged {world_size}",
                        node.host,
                        name,
                    )
                if rank not in node.ranks:
                    raise invalid(
                        f"expected rank lines of {_span(node.ranks)} on this node, got one of rank {rank}",
                        node.host,
                        name,
                    )
                if rank in seen:
                    raise invalid(
                        f"expected one rank line of rank {rank}, got another after {seen[rank]}",
                        node.host,
                        name,
                    )
                seen[rank] = f"{node.host}/{name}"
    missing = sorted(set(range(world)) - set(seen))
    if missing:
        hosts = fold(node.host for node in planned.slots if set(node.ranks) & set(missing))
        raise invalid(
            f"expected rank lines of {world} ranks, {len(missing)} are missing, first rank {missing[0]}",
            hosts,
        )
    return []


def _life_s(record: ExitRecord) -> float | None:
    """Return for how long a node's part of a run lasted; None if it is not known."""
    began, ended = record.started_mono_s, record.ended_mono_s
    return None if began is None or ended is None else ended - began


def _ended_everywhere(run: RunDir, planned: Manifest) -> bool:
    try:
        return all(exit_record(run, host) is not None for host in planned.hosts)
    except DataError:
        return True


def _span(ranks: range) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0]) if ranks else "none"
