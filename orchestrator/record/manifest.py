"""The manifest of a run, ``manifest.json``: the plan of the run, and what its controller recorded
since.

`Manifest` is its only reader; `manifest_of`, `write_end`, `write_outcome` and `write_reread` write it. Values that results
depend on are checked; values that only annotate a number, such as how nodes answered, are left out
if they are invalid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from orchestrator.errors import DataError, OrchError, recorded_error
from orchestrator.logs import LogGrammar
from orchestrator.plan import MEASURES, Framework, Measure, RunSpec
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.measures import TRAINING
from orchestrator.plan.placement import Placement, Slot
from orchestrator.plan.render import Plan
from orchestrator.plan.transformer import Transformer, transformer_of
from orchestrator.record.recorded_grammar import grammar_of
from orchestrator.record.recorded_spec import spec_of
from orchestrator.record.rundir import RunDir
from orchestrator.record.state_file import check_name
from orchestrator.version import __version__

__all__ = ["Answer", "Clean", "Manifest", "NodeStart", "RecordedOutcome", "StartRecord", "manifest_of", "read_manifest",
           "write_end", "write_outcome", "write_reread"]  # fmt: skip

_MOST_RANKS = 1 << 20
"""A bound, so that a forged manifest cannot make its reader count forever."""


@dataclass(frozen=True, slots=True)
class NodeStart:
    """When a node started, in seconds of its own monotonic clock, and that clock's offset ahead of
    the controller's, accurate to ± ``bound_s`` seconds."""

    started_mono_s: float
    offset_s: float
    bound_s: float


@dataclass(frozen=True, slots=True)
class StartRecord:
    """The start of a run: start skew between nodes, the bound of its error, and each node's start,
    in seconds.
    """

    skew_s: float
    bound_s: float
    hosts: Mapping[str, NodeStart]

    @classmethod
    def of(cls, value: Any) -> StartRecord | None:
        """Return the recorded start; None if it is missing or incomplete."""
        try:
            hosts = {
                check_name(host, "start"): NodeStart(
                    *(_number(node[name]) for name in ("started_mono_s", "offset_s", "bound_s"))
                )
                for host, node in value["hosts"].items()
            }
            return cls(_number(value["skew_s"]), _number(value["bound_s"]), hosts)
        except (KeyError, TypeError, AttributeError, OverflowError, DataError):
            return None

    def as_dict(self) -> dict[str, Any]:
        """Return the record for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Clean:
    """The check of a node after a run: whether it was made, the processes that were left, and those
    (process id, name) of which it could not be verified whether they belong to the run."""

    checked: bool
    left: tuple[Any, ...] = ()
    unverified: tuple[Any, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the check for JSON; without ``unverified`` if there is nothing of the kind."""
        content = {"checked": self.checked, "left": list(self.left)}
        return content | {"unverified": list(self.unverified)} if self.unverified else content


@dataclass(frozen=True, slots=True)
class Answer:
    """How a node answered during a run, in seconds; ``silent``: it no longer answered at the end."""

    longest_silence_s: float = 0.0
    round_trip_s: float = 0.0
    silent: bool = False


_BY_ITSELF = ("rank_failed", "run_timeout", "output_limit")
"""The kinds of errors with which a measured program ends by itself."""
_OUTCOME_KEYS = {"state", "error", "clean", "answers", "released"}


@dataclass(frozen=True, slots=True)
class RecordedOutcome:
    """How a run ended: ``state`` is finished, failed, lost or interrupted, ``error`` its first
    cause. If it was not
    ``released`` by the start signal, nothing ran on any node. ``evidence`` has by key what monitors of the
    run left, kept as it is."""

    state: str
    error: OrchError | None = None
    clean: Mapping[str, Clean] = field(default_factory=dict)
    answers: Mapping[str, Answer] = field(default_factory=dict)
    released: bool = True
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, run_id: str) -> RecordedOutcome | None:
        """Return the recorded outcome, None if there is none. Raises TypeError if it is not an
        object.
        """
        if value is not None and not isinstance(value, dict):
            raise TypeError("outcome")
        if not value:
            return None
        error = value.get("error")
        return cls(
            str(value.get("state") or ""),
            recorded_error(error, run_id) if error else None,
            {host: _clean(node) for host, node in _objects(value, "clean")},
            {host: _answer(node) for host, node in _objects(value, "answers")},
            value.get("released") is not False,
            {key: kept for key, kept in value.items() if key not in _OUTCOME_KEYS},
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome for JSON."""
        content: dict[str, Any] = {
            "state": self.state,
            "error": self.error.as_dict() if self.error else None,
        }
        content["clean"] = {host: node.as_dict() for host, node in self.clean.items()}
        if self.answers:
            content["answers"] = {host: asdict(answer) for host, answer in self.answers.items()}
        content |= self.evidence
        return content if self.released else content | {"released": False}

    @property
    def measured(self) -> bool:
        """Whether the run finished, or its state was not recorded."""
        return self.state in ("", "finished")

    @property
    def counts(self) -> bool:
        """Whether the outcome is a result of the measured program rather than of a lost controller
        or node.
        """
        return self.state == "finished" or (
            self.error is not None and self.error.kind in _BY_ITSELF
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """A run as it was planned; its controller added ``facts``, ``start`` and ``outcome``.

    ``digest`` is that of the framework's files, ``payload`` has the digests of the programs by name. ``grammar`` is the log
    grammar for the options of the run: the planned one, or that of a later reread, which ``reread``
    then names in words;
    ``planned_units`` are the units of the metrics in the planned one.
    ``facts`` are the results of preflight by host. ``transformer`` holds the sizes of a language model.
    """

    run_id: str
    bench_id: str
    repeat: int
    spec: RunSpec
    framework: str
    digest: str
    simulated: bool
    caveat: str
    measure: Measure
    grammar: LogGrammar
    payload: Mapping[str, str]
    placement: Placement
    facts: Mapping[str, Mapping[str, Any]]
    start: StartRecord | None
    outcome: RecordedOutcome | None
    reread: str = ""
    planned_units: Mapping[str, str] = field(default_factory=dict)
    transformer: Transformer | None = None

    @property
    def slots(self) -> tuple[Slot, ...]:
        """The nodes of the run in order of node_rank."""
        return self.placement.slots

    @property
    def hosts(self) -> list[str]:
        """The names of its nodes in order of node_rank."""
        return [slot.host for slot in self.placement.slots]

    @property
    def was_released(self) -> bool:
        """Whether any process of the run may have run on a node."""
        return self.outcome is None or self.outcome.released

    @classmethod
    def of(cls, content: Mapping[str, Any], where: str, run_id: str) -> Manifest:
        """Return the content of a manifest. Raises DataError (state_damaged) if a value that
        results depend on is invalid.
        """
        try:
            spec = spec_of(content["spec"], content.get("origins") or {})
            placement = _placement(content["placement"], spec, where)
            repeat, facts, payload = (
                content.get("repeat", 1),
                content.get("facts") or {},
                content.get("payload") or {},
            )
            if type(repeat) is not int or not isinstance(facts, dict):
                raise TypeError("repeat or facts")
            if not isinstance(payload, dict) or not all(
                isinstance(digest, str) for digest in payload.values()
            ):
                raise TypeError("payload")
            program = content["framework"]
            return cls(
                run_id=run_id,
                bench_id=_text(content, "bench_id"),
                repeat=repeat,
                spec=spec,
                framework=_text(program, "name") or spec.framework,
                digest=_text(program, "digest"),
                simulated=program.get("simulated") is True,
                caveat=str((program.get("caveats") or {}).get(spec.device, "")),
                measure=MEASURES[program.get("measures", TRAINING)],
                grammar=grammar_of((content.get("reread") or program)["log"], spec),
                payload=payload,
                placement=placement,
                facts=facts,
                start=StartRecord.of(content.get("start")),
                outcome=RecordedOutcome.of(content.get("outcome"), run_id),
                reread=_reread(content.get("reread"), _text(program, "digest")),
                planned_units={
                    metric["name"]: metric["unit"] for metric in program["log"].get("metrics", ())
                },
                transformer=transformer_of(program["transformer"])
                if program.get("transformer")
                else None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            message = f"expected a run's manifest, {error} is missing or of the wrong type"
            raise DataError(message, kind="state_damaged", where=where, run_id=run_id) from error


def read_manifest(run: RunDir) -> Manifest:
    """Return the manifest of a run. Raises DataError (state_damaged) naming the file, and the
    offset or the fault.
    """
    return Manifest.of(run.manifest_content(), str(run.path / "manifest.json"), run.run_id)


def write_end(run: RunDir, start: StartRecord | None, outcome: RecordedOutcome) -> None:
    """Record how a run started, if it did, and how it ended."""
    run.update_manifest(start=start.as_dict() if start else None, outcome=outcome.as_dict())


def write_outcome(run: RunDir, outcome: RecordedOutcome) -> None:
    """Record the outcome of a run whose controller died before it could."""
    run.update_manifest(outcome=outcome.as_dict())


def write_reread(run: RunDir, framework: Framework | None, at: str = "") -> None:
    """Record that the logs of a run are read with the grammar of a folder as it was at a time;
    None: with the planned one.
    """
    run.update_manifest(
        reread={"digest": framework.digest, "at": at, "log": asdict(framework.log)}
        if framework
        else None
    )


def manifest_of(
    plan: Plan, folder: FrameworkFolder, bench_id: str, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the manifest of a planned run, with everything that analysis needs, so that nothing
    depends on file names.
    """
    framework = folder.framework
    transformer = framework.transformer(plan.spec.model)
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
            **({"transformer": asdict(transformer)} if transformer else {}),
        },
        "payload": dict(plan.payload),
        "placement": asdict(plan.placement),
        "facts": dict(facts),
        "start": None,
        "outcome": None,
    }


def _placement(written: Mapping[str, Any], spec: RunSpec, where: str) -> Placement:
    slots = tuple(
        Slot(
            check_name(slot["host"], where),
            _text(slot, "address"),
            slot["node_rank"],
            slot["first_rank"],
            slot["nproc"],
            _text(slot, "devices"),
        )
        for slot in written["slots"]
    )
    if not slots or max(spec.world_size, *(slot.nproc for slot in slots)) > _MOST_RANKS:
        raise ValueError("placement")
    if [rank for slot in slots for rank in slot.ranks] != list(range(spec.world_size)):
        raise ValueError("placement")
    port = written.get("master_port", 0)
    if type(port) is not int:
        raise TypeError("placement.master_port")
    return Placement(slots, _text(written, "master_addr"), port, spec.world_size)


def _reread(value: Mapping[str, Any] | None, planned: str) -> str:
    """Return in words that the logs are read with another grammar than the planned one; empty if
    they are not.
    """
    if value is None:
        return ""
    digest, at = _text(value, "digest"), _text(value, "at")
    return f"log read again on {at[:10]} with framework folder {digest[:12]}, planned with {planned[:12]}"


def _clean(node: Mapping[str, Any]) -> Clean:
    return Clean(
        node.get("checked") is True, _as_tuple(node.get("left")), _as_tuple(node.get("unverified"))
    )


def _answer(node: Mapping[str, Any]) -> Answer:
    def seconds(name: str) -> float:
        value = node.get(name)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0

    return Answer(seconds("longest_silence_s"), seconds("round_trip_s"), node.get("silent") is True)


def _objects(content: Mapping[str, Any], key: str) -> list[tuple[str, Mapping[str, Any]]]:
    value = content.get(key)
    return (
        [(name, entry) for name, entry in value.items() if isinstance(entry, dict)]
        if isinstance(value, dict)
        else []
    )


def _as_tuple(value: Any) -> tuple[Any, ...]:
    """Return a list as a tuple, an empty value as an empty tuple, and any other value as a tuple of
    one.
    """
    return tuple(value) if isinstance(value, list) else (value,) if value else ()


def _text(content: Mapping[str, Any], key: str) -> str:
    value = content.get(key, "")
    if not isinstance(value, str):
        raise TypeError(key)
    return value


def _number(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise TypeError("a number")
    return float(value)
