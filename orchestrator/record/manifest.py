"""What the manifest of a run says was planned, checked before anybody relies on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from orchestrator import __version__
from orchestrator.errors import DataError
from orchestrator.logs.grammar import LogGrammar
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.measures import MEASURES, TRAINING, Measure
from orchestrator.plan.render import Plan
from orchestrator.plan.spec import RunSpec
from orchestrator.record.rundir import check_name

__all__ = ["Planned", "PlannedNode", "manifest_of", "planned_of"]

_MOST_RANKS = 1 << 20
"""A forged manifest must not make its reader count for ever."""


@dataclass(frozen=True, slots=True)
class PlannedNode:
    """One planned slot: which ranks belong on which host."""

    host: str
    node_rank: int
    ranks: range


@dataclass(frozen=True, slots=True)
class Planned:
    """A run as it was planned; ``facts`` and ``outcome`` are what its controller found out since."""

    spec: RunSpec
    repeat: int
    simulated: bool
    caveat: str
    nodes: tuple[PlannedNode, ...]
    grammar: LogGrammar
    facts: Mapping[str, Mapping[str, Any]]
    outcome: Mapping[str, Any]
    measure: Measure = MEASURES[TRAINING]


def planned_of(manifest: Mapping[str, Any], where: str, run_id: str) -> Planned:
    """Return what a manifest says. Raises DataError (state_damaged) where anything that is relied on is not as it has to be."""
    try:
        spec = _spec(manifest)
        slots = manifest["placement"]["slots"]
        nodes = tuple(
            PlannedNode(
                check_name(slot["host"], where),
                slot["node_rank"],
                range(slot["first_rank"], slot["first_rank"] + slot["nproc"]),
            )
            for slot in slots
        )
        if not nodes or max(spec.world_size, *(slot["nproc"] for slot in slots)) > _MOST_RANKS:
            raise ValueError("placement")
        if [rank for node in nodes for rank in node.ranks] != list(range(spec.world_size)):
            raise ValueError("placement")
        repeat, facts, outcome = manifest.get("repeat", 1), manifest.get("facts") or {}, manifest.get("outcome") or {}
        if type(repeat) is not int or not isinstance(facts, dict) or not isinstance(outcome, dict):
            raise TypeError("repeat, facts or outcome")
        program = manifest["framework"]
        simulated, caveat = program.get("simulated") is True, str((program.get("caveats") or {}).get(spec.device, ""))
        measure = MEASURES[program.get("measures", TRAINING)]
        return Planned(spec, repeat, simulated, caveat, nodes, _grammar(program["log"], spec), facts, outcome, measure)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        message = f"expected a run's manifest, {error} is missing or of the wrong type"
        raise DataError(message, kind="state_damaged", where=where, run_id=run_id) from error


def _spec(manifest: Mapping[str, Any]) -> RunSpec:
    names = {field.name for field in fields(RunSpec)} - {"origins", "env"}
    values, env = {name: manifest["spec"][name] for name in names}, manifest["spec"].get("env", {})
    spec = RunSpec(**values, env=env, origins=manifest.get("origins") or {})
    numbers = (spec.nodes, spec.gpus, spec.batch_size, spec.steps, spec.warmup_steps)
    words = (spec.framework, spec.model, spec.device, spec.dtype, spec.loader, *spec.origins.values(), *spec.env.values())
    if not all(type(number) is int for number in numbers) or type(spec.timeout_s) not in (int, float):
        raise TypeError("spec")
    if not all(isinstance(word, str) for word in words) or not isinstance(spec.options, dict):
        raise TypeError("spec")
    return spec


def _grammar(log: Mapping[str, Any], spec: RunSpec) -> LogGrammar:
    known: dict[str, Any] = {field.name: log[field.name] for field in fields(LogGrammar) if field.name in log}
    known = {name: tuple(value) if isinstance(value, list) else value for name, value in known.items()}
    grammar = LogGrammar(**known).with_options(spec.options)
    texts = (grammar.nodes, grammar.scope, grammar.rank, grammar.closing, grammar.readings, *grammar.files, *grammar.patterns)
    if not all(isinstance(text, str) for text in (*texts, *grammar.rank_files, *grammar.nccl_files)):
        raise TypeError("framework.log")
    return grammar


def manifest_of(plan: Plan, folder: FrameworkFolder, bench_id: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the record of what a run is: everything that analysis may ask later, nothing left to a name."""
    framework = folder.framework
    return {
        "schema": 1,
        "orch": __version__,
        "run_id": plan.run_id,
        "bench_id": bench_id,
        "repeat": plan.repeat,
        "spec": plan.spec.as_dict(),
        "origins": dict(plan.spec.origins),
        "framework": {
            "name": framework.name,
            "title": framework.title,
            "digest": framework.digest,
            "simulated": framework.simulated,
            "measures": framework.measures,
            "caveats": dict(framework.caveats),
            "log": asdict(framework.log),
        },
        "payload": dict(plan.payload),
        "placement": asdict(plan.placement),
        "facts": dict(facts),
        "start": None,
        "outcome": None,
    }
