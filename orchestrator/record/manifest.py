"""The manifest of a run, ``manifest.json``: the plan of the run, and what its controller recorded
since.

`Manifest` is its only reader; `manifest_of`, `write_end`, `write_outcome` and `write_reread` write
it. Values that results depend on are checked; values that only annotate a number, such as how nodes
answered, are left out if they are invalid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from orchestrator.documents import Invalid, document_field, read, read_leniently
from orchestrator.errors import DataError, OrchError, restore_error
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

_MOST_RANKS = 1 << 20
"""A bound, so that a forged manifest cannot make its reader count forever."""


@dataclass(frozen=True, slots=True)
class NodeStart:
    """The start of a node, in seconds of its monotonic clock, and that clock's offset ahead of the
    controller's, accurate to ± ``bound_s`` seconds.
    """

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

    def __post_init__(self) -> None:
        for host in self.hosts:
            check_name(host, "start")

    @classmethod
    def of(cls, value: Any) -> StartRecord | None:
        """Return the recorded start; None if it is missing or incomplete."""
        try:
            return read(cls, value)
        except Invalid:
            return None


@dataclass(frozen=True, slots=True)
class Clean:
    """The check of a node after a run: whether it was made, and the remaining processes.

    Processes (process id, name) that could not be attributed are listed separately.
    """

    checked: bool
    left: tuple[Any, ...] = ()
    unverified: tuple[Any, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the check for JSON; without ``unverified`` if there is nothing of the kind."""
        content = {"checked": self.checked, "left": list(self.left)}
        if self.unverified:
            return content | {"unverified": list(self.unverified)}
        return content


@dataclass(frozen=True, slots=True)
class Answer:
    """A node's response times during a run, in seconds; ``silent``: it no longer answered at the
    end.
    """

    longest_silence_s: float = 0.0
    round_trip_s: float = 0.0
    silent: bool = False


_BY_ITSELF = ("rank_failed", "run_timeout", "output_limit")
"""The kinds of errors with which a measured program ends by itself."""
_OUTCOME_KEYS = {"state", "error", "clean", "answers", "released"}


@dataclass(frozen=True, slots=True)
class RecordedOutcome:
    """The recorded outcome of a run.

    ``state`` is finished, failed, lost or interrupted, ``error`` its first cause. If it was not
    ``released`` by the start signal, nothing ran on any node. ``evidence`` holds by key what
    monitors of the run left, unchanged.
    """

    state: str
    error: OrchError | None = None
    clean: Mapping[str, Clean] = field(
        default_factory=dict,
        metadata=document_field(by=partial(read_leniently, dict[str, Clean]), annotates=True),
    )
    answers: Mapping[str, Answer] = field(
        default_factory=dict,
        metadata=document_field(by=partial(read_leniently, dict[str, Answer]), annotates=True),
    )
    released: bool = field(default=True, metadata=document_field(annotates=True))
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, value: Any, run_id: str) -> RecordedOutcome | None:
        """Return the recorded outcome, None if there is none. Raises Invalid if it is not an
        object.
        """
        content = read(dict[str, Any], {} if value is None else value)
        if not content:
            return None
        error = content.get("error")
        known = {
            "state": str(content.get("state") or ""),
            "error": restore_error(error, run_id) if error else None,
            "evidence": {key: kept for key, kept in content.items() if key not in _OUTCOME_KEYS},
        }
        return read(cls, content | known)

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
        if self.released:
            return content
        return content | {"released": False}

    @property
    def measured(self) -> bool:
        """Return whether the run finished, or its state was not recorded."""
        return self.state in ("", "finished")

    @property
    def counts(self) -> bool:
        """Return whether the outcome is due to the measured program, not to a lost controller or
        node.
        """
        return self.state == "finished" or (
            self.error is not None and self.error.kind in _BY_ITSELF
        )


@dataclass(frozen=True, slots=True)
class Manifest:
    """A run as it was planned; its controller added ``facts``, ``start`` and ``outcome``.

    ``digest`` is the digest of the framework's files, ``payload`` has the digests of the programs
    by name. ``grammar`` is the log grammar for the options of the run: the planned one, or one with
    which the logs were read again, which ``reread`` then names in words. ``planned_units`` are the
    units of the metrics in the planned one. ``facts`` are the results of preflight by host.
    ``transformer`` holds the sizes of a language model.
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
        """Return whether any process of the run may have run on a node."""
        return self.outcome is None or self.outcome.released

    @classmethod
    def of(cls, content: Mapping[str, Any], where: str, run_id: str) -> Manifest:
        """Return the content of a manifest. Raises DataError (state_damaged) if a value that
        results depend on is invalid.
        """
        try:
            return _manifest(read(_Document, content), run_id)
        except _FAULTS as error:
            message = f"expected a run's manifest, {error}"
            raise DataError(message, kind="state_damaged", where=where, run_id=run_id) from error


_FAULTS = (KeyError, TypeError, ValueError, AttributeError)


@dataclass(frozen=True, slots=True)
class _Program:
    """The framework of a run as its manifest describes it."""

    log: Mapping[str, Any]
    name: str = ""
    digest: str = ""
    simulated: bool = False
    measures: str = TRAINING
    caveats: Mapping[str, str] = field(default_factory=dict)
    transformer: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class _Reread:
    """The grammar that replaces the planned one for reading logs, and since when."""

    log: Mapping[str, Any]
    digest: str = ""
    at: str = ""


@dataclass(frozen=True, slots=True)
class _Placed:
    """A placement as a manifest has it; earlier versions left out addresses and devices."""

    slots: tuple[Mapping[str, Any], ...]
    master_addr: str = ""
    master_port: int = 0


@dataclass(frozen=True, slots=True)
class _Document:
    """The keys of ``manifest.json`` that are read."""

    spec: Mapping[str, Any]
    framework: _Program
    placement: _Placed
    bench_id: str = ""
    repeat: int = 1
    origins: Mapping[str, str] | None = None
    payload: Mapping[str, str] | None = None
    facts: Mapping[str, Any] | None = None
    start: StartRecord | None = field(default=None, metadata=document_field(annotates=True))
    outcome: Mapping[str, Any] | None = None
    reread: _Reread | None = None


def _manifest(document: _Document, run_id: str) -> Manifest:
    program, reread = document.framework, document.reread
    spec = spec_of(document.spec, document.origins or {})
    return Manifest(
        run_id=run_id,
        bench_id=document.bench_id,
        repeat=document.repeat,
        spec=spec,
        framework=program.name or spec.framework,
        digest=program.digest,
        simulated=program.simulated,
        caveat=program.caveats.get(spec.device, ""),
        measure=MEASURES[program.measures],
        grammar=grammar_of((reread or program).log, spec),
        payload=document.payload or {},
        placement=_placement(document.placement, spec),
        facts=document.facts or {},
        start=document.start,
        outcome=RecordedOutcome.of(document.outcome, run_id),
        reread=_reread_words(reread, program.digest) if reread else "",
        planned_units={metric["name"]: metric["unit"] for metric in program.log.get("metrics", ())},
        transformer=transformer_of(program.transformer) if program.transformer else None,
    )


def read_manifest(run: RunDir) -> Manifest:
    """Return the manifest of a run. Raises DataError (state_damaged) naming the file, and the
    offset or the fault.
    """
    return Manifest.of(run.manifest_content(), str(run.path / "manifest.json"), run.run_id)


def write_end(run: RunDir, start: StartRecord | None, outcome: RecordedOutcome) -> None:
    """Record how a run started, if it did, and how it ended."""
    run.update_manifest(start=asdict(start) if start else None, outcome=outcome.as_dict())


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


def _placement(written: _Placed, spec: RunSpec) -> Placement:
    slots = tuple(read(Slot, {"address": "", "devices": "", **slot}) for slot in written.slots)
    for slot in slots:
        check_name(slot.host, "placement")
    if max(spec.world_size, *(slot.nproc for slot in slots), 0) > _MOST_RANKS:
        raise Invalid(f"expected at most {_MOST_RANKS} ranks", "placement")
    if [rank for slot in slots for rank in slot.ranks] != list(range(spec.world_size)):
        raise Invalid(f"expected ranks 0 to {spec.world_size - 1} in order", "placement")
    return Placement(slots, written.master_addr, written.master_port, spec.world_size)


def _reread_words(reread: _Reread, planned: str) -> str:
    return (
        f"log read again on {reread.at[:10]} with framework folder {reread.digest[:12]}, "
        f"planned with {planned[:12]}"
    )
