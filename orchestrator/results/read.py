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
from orchestrator.inventory.hostset import fold
from orchestrator.logs import nccl
from orchestrator.logs.parse import Parsed
from orchestrator.plan.spec import RunSpec
from orchestrator.record.evidence import invalid
from orchestrator.record.manifest import Planned, PlannedNode, planned_of
from orchestrator.record.rundir import RunDir
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
        planned = planned_of(run.manifest(), str(run.path / "manifest.json"), run.run_id)
    except DataError as error:
        return RunResult(run.run_id, 0, None, False, "damaged", error=error)
    result = RunResult(
        run.run_id, planned.repeat, planned.spec, planned.simulated, "incomplete", facts=planned.facts, measure=planned.measure
    )
    recorded = planned.outcome.get("state")
    if recorded is not None and recorded != "finished":
        return replace(result, state=str(recorded), error=recorded_error(planned.outcome.get("error"), run.run_id))
    try:
        return _measured(run, planned, result, each_rank)
    except ConfigError as error:  # a grammar that was sound when the run was planned
        damaged = DataError(error.message, kind="state_damaged", where=f"{run.path / 'manifest.json'}: {error.where}")
        return replace(result, state="damaged", error=damaged)
    except OrchError as error:
        error.run_id = run.run_id
        # What follows from several logs has no place of its own yet.
        error.host, error.where = error.host or planned.nodes[0].host, error.where or ", ".join(planned.grammar.files)
        state = "incomplete" if recorded is None and not _ended_everywhere(run, planned) else "failed"
        return replace(result, state=state, error=error)


def _measured(run: RunDir, planned: Planned, result: RunResult, each_rank: bool) -> RunResult:
    spec, grammar = planned.spec, planned.grammar
    records = _exit_records(run, planned)
    for node in planned.nodes:
        _mapping(records[node.host], "files", node.host)
    holders = planned.nodes[:1] if grammar.nodes == "first" else planned.nodes
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
    doubts += _leftovers(planned.outcome)
    doubts += _stragglers(planned.outcome)
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


def _readings(planned: Planned, lines: Sequence[Mapping[str, str]], observed: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what a program that trains nothing has measured, understood. Raises DataError where that is not all of it."""
    if not lines:
        raise invalid(f"expected lines that tell of {planned.measure.noun}, the log has none")
    return _READERS.get(planned.measure.name, _as_read)(
        planned.spec, lines, {**observed, "nodes": [node.host for node in planned.nodes]}
    )


def _as_read(_: RunSpec, lines: Sequence[Mapping[str, str]], __: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(lines)


def _transport(run: RunDir, planned: Planned, records: Mapping[str, Mapping[str, Any]]) -> nccl.Paths:
    """Return what NCCL chose on all nodes, from its own logs; they were checked with all the others."""
    logs = (
        run.log_path(node.host, name).read_bytes()
        for node in planned.nodes
        for name in _mapping(records[node.host], "files", node.host)
        if any(fnmatchcase(name, pattern) for pattern in planned.grammar.nccl_files)
    )
    return nccl.transport(logs)


def _remarks(observed: Mapping[str, Any]) -> list[str]:
    """Return what the program itself says of its numbers: ``remarks`` of its last line."""
    found = observed.get("remarks")
    return [text[:300] for text in found if isinstance(text, str)] if isinstance(found, list) else []


def _leftovers(outcome: Mapping[str, Any]) -> list[str]:
    """Return a qualification where the controller found processes of the run after its end."""
    clean = outcome.get("clean")
    left = (
        [host for host, state in clean.items() if isinstance(state, dict) and state.get("left")]
        if isinstance(clean, dict)
        else []
    )
    return [f"processes of the run were left on {fold(left)} and had to be ended"] * bool(left)


def _stragglers(outcome: Mapping[str, Any]) -> list[str]:
    """Return a qualification for each node that answered far more slowly than the others while the run went on."""
    answers = outcome.get("answers")
    entries = answers.items() if isinstance(answers, dict) else ()
    times = {host: one["round_trip_s"] for host, one in entries if isinstance(one, dict) and one.get("round_trip_s")}
    found = []
    for host, took in times.items():
        others = [other for name, other in times.items() if name != host]
        if others and took > max(_SLOW_ANSWER_S, _STRAGGLER_TIMES * (usual := median(others))):
            found.append(f"{host} answered slowly: {took * 1e3:.0f} ms, the others {usual * 1e3:.1f} ms")
    return found


def _arithmetic(dtype: str, found: Any) -> list[str]:
    """Return a qualification where the program found its model's output to be of another type than the run asked for."""
    wanted = _OUTPUT_TYPES.get(dtype)
    return [] if None in (wanted, found) or found == wanted else [f"asked for {dtype}, the model's output was {_short(found)}"]


def _exit_records(run: RunDir, planned: Planned) -> dict[str, Mapping[str, Any]]:
    """Return every node's exit record, all of them good. A node that failed is named before those stopped because of it."""
    records: dict[str, Mapping[str, Any]] = {}
    errors: list[OrchError] = []
    for node in planned.nodes:
        try:
            record = run.exit_record(node.host)
            if record is None:
                hint = "run `orch collect`"
                raise invalid("expected an exit record, none came home", node.host, hint=hint)
            records[node.host] = record
            _check_exit(record, run, node)
        except (DataError, RunError) as error:
            error.host = error.host or node.host
            errors.append(error)
    if errors:
        causes = [error for error in errors if records.get(error.host, {}).get("state") == "failed"]
        raise (causes or errors)[0]
    return records


def _check_exit(record: Mapping[str, Any], run: RunDir, node: PlannedNode) -> None:
    for key, wanted in (("schema", 1), ("run_id", run.run_id), ("node_rank", node.node_rank)):
        if not _is(record.get(key), wanted):
            raise invalid(f"expected {key} {wanted!r}, got {_short(record.get(key))}", node.host, "exit.json")
    state, code, signal = record.get("state"), record.get("code"), record.get("signal")
    if state in ("failed", "stopped"):
        reason = _short(record.get("reason") or signal or f"exit code {code}")
        raise RunError(f"the node says {state}: {reason}", kind="rank_failed", host=node.host, where="exit.json")
    if state != "finished" or not _is(code, 0) or signal is not None:
        got = f"state {_short(state)}, code {_short(code)}, signal {_short(signal)}"
        raise invalid(f"expected state 'finished' with code 0, got {got}", node.host, "exit.json")
    ranks = record.get("ranks")
    if not isinstance(ranks, list) or not all(isinstance(rank, dict) for rank in ranks):
        raise invalid("ranks: expected a list of objects", node.host, "exit.json")
    bad = [rank for rank in ranks if not _is(rank.get("code"), 0)]
    if bad:
        how = _short(bad[0].get("signal") or bad[0].get("code"))
        raise invalid(f"rank {_short(bad[0].get('rank'))} ended with {how} in a run called finished", node.host, "exit.json")


def _prove_ranks(planned: Planned, parsed: Mapping[str, Mapping[str, Parsed]]) -> list[str]:
    """Check that each rank spoke once, on its planned node. Returns a qualification where the grammar has no rank line."""
    grammar = planned.grammar
    if not grammar.rank:
        return ["ranks not proven: this program does not say who they are"]
    patterns = grammar.rank_files or grammar.files
    world = planned.spec.world_size
    spoken: dict[int, str] = {}
    for node in planned.nodes:
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
        hosts = fold(node.host for node in planned.nodes if set(node.ranks) & set(silent))
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


def _closing(planned: Planned, sampled: Sequence[Parsed]) -> Mapping[str, Any]:
    """Return what the program said at its end. Raises DataError where it did not, or speaks of another run."""
    if not planned.grammar.closing:
        return {}
    host = planned.nodes[0].host
    closing = next((one.closing for one in sampled if one.closing is not None), None)
    if closing is None:
        reasons = [text for one in sampled for text in one.warnings if text.startswith("closing line")]
        raise invalid("expected the program's closing line, the log lacks it", host, hint="; ".join(reasons))
    wanted = planned.spec.as_dict() | {"world_size": planned.spec.world_size, "global_batch": planned.spec.global_batch}
    for key in _AGREE:
        if key in closing and closing[key] != wanted[key]:
            raise invalid(f"expected {key} {wanted[key]!r} as planned, the program says {_short(closing[key])}", host)
    ranks = closing.get("ranks")
    if ranks is not None and ranks != list(range(planned.spec.world_size)):
        raise invalid(f"expected ranks 0-{planned.spec.world_size - 1} in the closing line, got {_short(ranks)}", host)
    return closing


def _ended_everywhere(run: RunDir, planned: Planned) -> bool:
    try:
        return all(run.exit_record(node.host) is not None for node in planned.nodes)
    except DataError:
        return True


def _mapping(record: Mapping[str, Any], key: str, host: str) -> Mapping[str, Any]:
    value = record.get(key)
    if not isinstance(value, dict):
        raise invalid(f"{key}: expected an object, got {_short(value)}", host, "exit.json")
    return value


def _is(value: Any, wanted: int | str) -> bool:
    """Tell whether a value is the wanted one and of its type: to Python, ``false`` of JSON is 0 and ``true`` is 1."""
    return type(value) is type(wanted) and value == wanted


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 120 else f"{text[:117]}…"


def _span(ranks: range) -> str:
    return f"{ranks[0]}-{ranks[-1]}" if len(ranks) > 1 else str(ranks[0]) if ranks else "none"
