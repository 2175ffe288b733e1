"""From the collected files of a run to its result: the manifest says what was planned, the logs prove what happened.

Nothing is taken on trust: every log must have the size and digest of its node's exit record, every planned rank must have
spoken once on its planned node, and the program's last line must agree with the plan. Otherwise the run has an error and no
number, and the other runs are reported all the same. No node is needed, only the run directory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatchcase
from statistics import median
from typing import Any

from orchestrator.errors import ConfigError, DataError, OrchError, RunError, recorded_error
from orchestrator.inventory import fold
from orchestrator.logs import nccl
from orchestrator.logs.parse import Parsed
from orchestrator.plan import RunSpec
from orchestrator.plan.placement import Slot
from orchestrator.record import RunDir
from orchestrator.record.evidence import invalid
from orchestrator.record.manifest import Manifest, RecordedOutcome, read_manifest
from orchestrator.record.node_record import ExitRecord, exit_record, short
from orchestrator.results.hardware import infiniband_gbit, slowed
from orchestrator.results.links import collectives
from orchestrator.results.links.pair_times import pair_times
from orchestrator.results.node_logs import read_logs
from orchestrator.results.numbers.tempo import tempo
from orchestrator.results.numbers.throughput import (
    Terms,
    disagreement,
    published,
    step_times,
    throughput,
    trend,
    variation,
)
from orchestrator.results.run import RunResult

__all__ = ["read_run"]

_SLOW_ANSWER_S, _STRAGGLER_TIMES = 0.03, 5.0
_OUTPUT_TYPES = {"fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
_AGREE = ("world_size", "steps", "dtype", "batch_size", "global_batch", "model")
_READERS: Mapping[str, Callable[[RunSpec, Sequence[Mapping[str, str]], Mapping[str, Any]], tuple[Any, ...]]] = {
    "collectives": collectives.points,
    "pairs": pair_times,
}
"""By kind of measurement: what understands the lines of a run, given its spec, and what the program said at its end with the
hosts in order of node_rank as ``nodes``."""


def read_run(run: RunDir, *, each_rank: bool = False) -> RunResult:
    """Return one run's result. What is wrong with the run is in the result's ``error``; nothing of the run is raised."""
    try:
        planned = read_manifest(run)
    except DataError as error:
        return RunResult(run.run_id, 0, None, False, "damaged", error=error)
    result = RunResult(
        run.run_id, planned.repeat, planned.spec, planned.simulated, "incomplete", facts=planned.facts, measure=planned.measure
    )
    outcome = planned.outcome or RecordedOutcome("")
    if not outcome.measured:
        return replace(result, state=outcome.state, error=outcome.error or recorded_error(None, run.run_id))
    try:
        return _measured(run, planned, result, each_rank)
    except ConfigError as error:  # a grammar that was sound when the run was planned
        damaged = DataError(error.message, kind="state_damaged", where=f"{run.path / 'manifest.json'}: {error.where}")
        return replace(result, state="damaged", error=damaged)
    except OrchError as error:
        error.run_id = run.run_id
        # What follows from several logs has no place of its own yet.
        error.host, error.where = error.host or planned.slots[0].host, error.where or ", ".join(planned.grammar.files)
        state = "incomplete" if not outcome.state and not _ended_everywhere(run, planned) else "failed"
        return replace(result, state=state, error=error)


def _measured(run: RunDir, planned: Manifest, result: RunResult, each_rank: bool) -> RunResult:
    spec, grammar = planned.spec, planned.grammar
    records = _exit_records(run, planned)
    holders = planned.slots[:1] if grammar.nodes == "first" else planned.slots
    terms = Terms.of(spec, grammar)
    every = terms if each_rank and grammar.nodes == "every" else None
    logs, aggregate = read_logs(run, records, grammar, frozenset(node.host for node in holders), every)
    parsed = {host: found.files for host, found in logs.items()}
    doubts = [planned.caveat] * bool(planned.caveat) + _prove_ranks(planned, parsed)
    sampled = [logs[node.host].files[name] for node in holders for name in logs[node.host].sampled]
    if not sampled:
        raise invalid(f"expected a log like {', '.join(grammar.files)}, the exit record lists none", holders[0].host)
    observed = _closing(planned, sampled)
    samples = aggregate.samples() if aggregate else next((one.samples for one in sampled if one.samples), ())
    doubts += [text for one in sampled for text in one.warnings] + _remarks(observed)
    doubts += _leftovers(planned.outcome) + _stragglers(planned.outcome)
    doubts += _arithmetic(spec.dtype, observed.get("output_dtype"))
    spoken = _transport(run, planned, records)
    words = spoken.words(spec.nodes, spec.world_size)
    observed = {**observed, "networks": list(spoken.networks), "transport": {**asdict(spoken), "words": list(words)}}
    doubts += nccl.fallbacks(spoken, spec.nodes, spec.world_size, infiniband_gbit(planned.facts))
    result = replace(
        result,
        state="finished",
        simulated=planned.simulated or observed.get("simulated") is True,
        qualifications=tuple(dict.fromkeys(doubts)),
        observed=observed,
        slowed=slowed(records),
    )
    if not planned.measure.has_speed:
        return replace(result, readings=_readings(planned, [line for one in sampled for line in one.readings], observed))
    measured = throughput(samples, terms)
    planned_samples = (spec.steps - spec.warmup_steps) * spec.global_batch
    if measured.samples != planned_samples:
        raise invalid(f"expected {planned_samples} samples in the window, the log counts {measured.samples}")
    times = step_times(samples, terms)
    doubts += _disagreement(disagreement(samples, terms), measured.samples_per_s)
    doubts += _unsteady(trend(times))
    return replace(
        result,
        throughput=measured,
        qualifications=tuple(dict.fromkeys(doubts)),
        step_variation=variation(times),
        tempo=tempo(samples, terms),
        by_rank={f"{node.host}/{name}": found for node in holders for name, found in logs[node.host].rhythm.items()},
    )


def _readings(planned: Manifest, lines: Sequence[Mapping[str, str]], observed: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a program that trains nothing has measured, understood. Raises DataError where that is not all of it."""
    if not lines:
        raise invalid(f"expected lines that tell of {planned.measure.noun}, the log has none")
    return _READERS.get(planned.measure.name, _as_read)(planned.spec, lines, {**observed, "nodes": planned.hosts})


def _as_read(_: RunSpec, lines: Sequence[Mapping[str, str]], __: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(lines)


def _transport(run: RunDir, planned: Manifest, records: Mapping[str, ExitRecord]) -> nccl.Paths:
    """Return what NCCL chose on all nodes, from its own logs; they were checked with all the others."""
    logs = (
        run.log_path(node.host, name).read_bytes()
        for node in planned.slots
        for name in records[node.host].files
        if any(fnmatchcase(name, pattern) for pattern in planned.grammar.nccl_files)
    )
    return nccl.transport(logs)


def _remarks(observed: Mapping[str, Any]) -> list[str]:
    """Return what the program itself says of its numbers: ``remarks`` of its last line."""
    found = observed.get("remarks")
    return [text[:300] for text in found if isinstance(text, str)] if isinstance(found, list) else []


def _leftovers(outcome: RecordedOutcome | None) -> list[str]:
    """Return a qualification where the controller found processes of the run after its end."""
    left = [host for host, node in outcome.clean.items() if node.left] if outcome else []
    return [f"processes of the run were left on {fold(left)} and had to be ended"] if left else []


def _stragglers(outcome: RecordedOutcome | None) -> list[str]:
    """Return a qualification for each node that answered far more slowly than the others while the run went on."""
    answers = outcome.answers if outcome else {}
    times = {host: answer.round_trip_s for host, answer in answers.items() if answer.round_trip_s}
    found = []
    for host, took in times.items():
        others = [other for name, other in times.items() if name != host]
        if others and took > max(_SLOW_ANSWER_S, _STRAGGLER_TIMES * (usual := median(others))):
            found.append(f"{host} answered slowly: {took * 1e3:.0f} ms, the others {usual * 1e3:.1f} ms")
    return found


def _arithmetic(dtype: str, found: Any) -> list[str]:
    """Return a qualification where the program found its model's output to be of another type than the run asked for."""
    wanted = _OUTPUT_TYPES.get(dtype)
    return [] if None in (wanted, found) or found == wanted else [f"asked for {dtype}, the model's output was {short(found)}"]


def _exit_records(run: RunDir, planned: Manifest) -> dict[str, ExitRecord]:
    """Return every node's exit record, all of them good. A node that failed is named before those stopped because of it."""
    records: dict[str, ExitRecord] = {}
    errors: list[OrchError] = []
    for node in planned.slots:
        try:
            record = exit_record(run, node.host)
            if record is None:
                hint = "run `orch collect`"
                raise invalid("expected an exit record, none came home", node.host, hint=hint)
            records[node.host] = record
            _check_exit(record, run, node)
        except (DataError, RunError) as error:
            error.host = error.host or node.host
            errors.append(error)
    if errors:
        causes = [error for error in errors if error.host in records and records[error.host].state == "failed"]
        raise (causes or errors)[0]
    return records


def _check_exit(record: ExitRecord, run: RunDir, node: Slot) -> None:
    for key, wanted, got in (("run_id", run.run_id, record.run_id), ("node_rank", node.node_rank, record.node_rank)):
        if got != wanted:
            raise invalid(f"expected {key} {wanted!r}, got {short(got)}", node.host, "exit.json")
    if record.state in ("failed", "stopped"):
        reason = short(record.reason or record.how)
        raise RunError(f"the node says {record.state}: {reason}", kind="rank_failed", host=node.host, where="exit.json")
    if record.code != 0 or record.signal is not None:
        got = f"state {short(record.state)}, code {short(record.code)}, signal {short(record.signal)}"
        raise invalid(f"expected state 'finished' with code 0, got {got}", node.host, "exit.json")
    for rank in record.ranks:
        if rank.code != 0:
            how = short(rank.signal or rank.code)
            raise invalid(f"rank {rank.rank} ended with {how} in a run called finished", node.host, "exit.json")


def _prove_ranks(planned: Manifest, parsed: Mapping[str, Mapping[str, Parsed]]) -> list[str]:
    """Check that each rank spoke once, on its planned node. Returns a qualification where the grammar has no rank line."""
    grammar = planned.grammar
    if not grammar.rank:
        return ["ranks not proven: this program does not say who they are"]
    patterns = grammar.rank_files or grammar.files
    world = planned.spec.world_size
    spoken: dict[int, str] = {}
    for node in planned.slots:
        for name, one in parsed[node.host].items():
            if not any(fnmatchcase(name, pattern) for pattern in patterns):
                continue
            for rank, world_size in one.ranks:
                if world_size not in (None, world):
                    raise invalid(f"expected world size {world}, rank {rank} logged {world_size}", node.host, name)
                if rank not in node.ranks:
                    raise invalid(f"expected ranks {_span(node.ranks)} on this node, rank {rank} spoke", node.host, name)
                if rank in spoken:
                    raise invalid(f"expected rank {rank} once, it spoke again after {spoken[rank]}", node.host, name)
                spoken[rank] = f"{node.host}/{name}"
    silent = sorted(set(range(world)) - set(spoken))
    if silent:
        hosts = fold(node.host for node in planned.slots if set(node.ranks) & set(silent))
        raise invalid(f"expected {world} ranks to say who they are, {len(silent)} did not, rank {silent[0]} first", hosts)
    return []


def _disagreement(found: tuple[str, float] | None, speed: float) -> list[str]:
    """Return a text where a log's own rates or step times are at odds with the time that it shows to have passed."""
    if not found:
        return []
    name, other = found
    told = f"{published(other):.2f} samples/s by its {name}, {published(speed):.2f} by the time that passed"
    return [f"the log disagrees with itself: {told}"]


def _unsteady(trend: float | None) -> list[str]:
    """Return a text where the steps of the window grow quicker or slower; the window stays what was asked for."""
    if trend is None:
        return []
    how, cause = ("slower", "the machine slows down") if trend > 0 else ("quicker", "more --warmup-steps may be needed")
    return [f"not steady: the last fifth of the window is {abs(trend):.1%} {how} a step than the first; {cause}"]


def _closing(planned: Manifest, sampled: Sequence[Parsed]) -> Mapping[str, Any]:
    """Return what the program said at its end. Raises DataError where it did not, or speaks of another run."""
    if not planned.grammar.closing:
        return {}
    host = planned.slots[0].host
    closing = next((one.closing for one in sampled if one.closing is not None), None)
    if closing is None:
        reasons = [text for one in sampled for text in one.warnings if text.startswith("closing line")]
        raise invalid("expected the program's closing line, the log lacks it", host, hint="; ".join(reasons))
    wanted = planned.spec.as_dict() | {"world_size": planned.spec.world_size, "global_batch": planned.spec.global_batch}
    for key in _AGREE:
        if key in closing and closing[key] != wanted[key]:
            raise invalid(f"expected {key} {wanted[key]!r} as planned, the program says {short(closing[key])}", host)
    ranks = closing.get("ranks")
    if ranks is not None and ranks != list(range(planned.spec.world_size)):
        raise invalid(f"expected ranks 0-{planned.spec.world_size - 1} in the closing line, got {short(ranks)}", host)
    return closing


def _ended_everywhere(run: RunDir, planned: Manifest) -> bool:
    try:
        return all(exit_record(run, host) is not None for host in planned.hosts)
    except DataError:
        return True


def _span(ranks: range) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0]) if ranks else "none"
