"""The files of an acceptance: ``acceptance.json``, the facts that it found, and a bench directory
for each stage.

    <acceptance id>/acceptance.json       what was planned, with the whole suite and its reference data, and how far it is
    <acceptance id>/checks.json           facts and checks of every node, for each stage that inspects
    <acceptance id>/<bench id>/           the bench of a stage, like any other
    <acceptance id>/certificate.json .html .tar .tar.sig   derived from all of these

`AcceptanceDir` is the only reader and writer of the first two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.documents import Invalid, document_field, read
from orchestrator.files import PROJECT_HINT, failures, is_file, make_folder, sync_directory
from orchestrator.record.rundir import BenchDir
from orchestrator.record.state_file import (
    check_name,
    part_error,
    read_state,
    state_error,
    write_state,
)

_RECORD, _CHECKS = "acceptance.json", "checks.json"
CERTIFICATE = "certificate"
"""The name of the files that are derived from an acceptance, without their extensions."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A bench of a stage, and the hosts that it was planned for."""

    stage: str
    bench_id: str
    hosts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Check:
    """A check in ``checks.json``."""

    host: str
    name: str
    verdict: str
    found: str
    expected: str
    hint: str


@dataclass(frozen=True, slots=True)
class AcceptanceRecord:
    """The record of an acceptance.

    ``document`` is the text of its suite, ``references`` the texts of the reference data,
    ``device`` is ``cuda`` or ``cpu``. ``stages`` are those that are planned, in order, ``left_out``
    the others with the reasons. ``attempts`` are the benches in the order in which they began;
    ``over`` are the stages that are done, with the reason if there was nothing to measure.
    ``earlier`` has the id and the measured values of the last accepted run of these hosts, as its
    certificate has them. ``sign`` is the file of the key that is to sign the certificate, and
    ``criteria`` the text of the criteria that it answers; empty for none."""

    acceptance_id: str
    created: str
    orch: str
    argv: tuple[str, ...]
    suite: str
    document: str
    references: tuple[str, ...]
    device: str
    inventory: str
    hosts: Mapping[str, str]
    stages: tuple[str, ...]
    left_out: Mapping[str, str]
    budget_s: float | None = None
    templates: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    over: Mapping[str, str] = field(default_factory=dict)
    earlier: Mapping[str, Any] = field(
        default_factory=dict, metadata=document_field(by=lambda value: earlier_values(value))
    )
    out: Mapping[str, str] = field(default_factory=dict)
    sign: str = ""
    criteria: str = ""

    @property
    def is_over(self) -> bool:
        """Return whether every stage is over."""
        return set(self.stages) <= set(self.over)

    @classmethod
    def of(cls, content: Mapping[str, Any], where: str) -> AcceptanceRecord:
        """Return the record in an ``acceptance.json``. Raises DataError (state_damaged) naming the
        invalid field.
        """
        try:
            return read(cls, content)
        except Invalid as error:
            raise part_error(where, error) from error

    def of_stage(self, name: str) -> list[Attempt]:
        """Return the benches of a stage; the last one counts."""
        return [attempt for attempt in self.attempts if attempt.stage == name]


class AcceptanceDir:
    """The folder of an acceptance."""

    noun = "acceptance"
    derived = frozenset(f"{CERTIFICATE}.{kind}" for kind in ("json", "html", "tar", "tar.sig"))

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, root: Path, record: AcceptanceRecord) -> AcceptanceDir:
        """Create the folder of a new acceptance under ``root``. Raises ConfigError or DataError if
        that is not possible.
        """
        path = root / check_name(record.acceptance_id, str(root))
        make_folder(root, PROJECT_HINT, is_input=True)
        with failures(path, hint=PROJECT_HINT, is_input=True):
            path.mkdir(mode=0o700)
            sync_directory(root)
        write_state(path / _RECORD, asdict(record))
        return cls(path)

    @property
    def is_one(self) -> bool:
        """Return whether the folder belongs to an acceptance."""
        return is_file(self.path / _RECORD)

    @property
    def group_id(self) -> str:
        """The id of the acceptance."""
        return self.record().acceptance_id

    @property
    def is_over(self) -> bool:
        """Return whether every stage is over."""
        return self.record().is_over

    @property
    def own_archive(self) -> Path:
        """The sealed archive of the acceptance."""
        return self.path / f"{CERTIFICATE}.tar"

    def record(self) -> AcceptanceRecord:
        """Return the record of planned and finished stages. Raises DataError (state_damaged)."""
        return AcceptanceRecord.of(read_state(self.path / _RECORD), str(self.path / _RECORD))

    def change(self, change: Callable[[AcceptanceRecord], AcceptanceRecord]) -> AcceptanceRecord:
        """Update the record with the one that ``change`` returns, and return it."""
        after = change(self.record())
        write_state(self.path / _RECORD, asdict(after))
        return after

    def bench(self, bench_id: str) -> BenchDir:
        """Return the bench of a stage."""
        return BenchDir(self.path / check_name(bench_id, str(self.path)))

    def stages(self) -> list[tuple[str, BenchDir]]:
        """Return the benches that were noted with the names of their stages, in the order in which
        they began.
        """
        return [(attempt.stage, self.bench(attempt.bench_id)) for attempt in self.record().attempts]

    def write_checks(
        self,
        stage: str,
        facts: Mapping[str, Any],
        checks: Sequence[Mapping[str, str]],
        audit: tuple[Mapping[str, Any], Sequence[Mapping[str, str]]] = ({}, ()),
    ) -> None:
        """Store the facts of every node that a stage captured, its checks, and its audit: what
        nodes told, and the checks of it. Other stages' stay.
        """
        told, audited = audit
        stages = self._stages_of_checks()
        stages[stage] = {
            "facts": dict(facts),
            "checks": list(map(dict, checks)),
            "audit": {"facts": dict(told), "checks": list(map(dict, audited))},
        }
        write_state(self.path / _CHECKS, {"stages": stages})

    def audits(self) -> dict[str, tuple[dict[str, Any], list[dict[str, str]]]]:
        """Return by stage what nodes told in an audit, by host, and the checks of it. Raises
        DataError (state_damaged).
        """
        return {
            stage: self._checks_of(f"{stage}.audit", written["audit"])
            for stage, written in self._stages_of_checks().items()
            if isinstance(written, dict) and "audit" in written
        }

    def checks(self) -> dict[str, tuple[dict[str, Any], list[dict[str, str]]]]:
        """Return by stage the facts by host and the checks; nothing of a stage that has captured
        none. Raises DataError (state_damaged)."""
        return {
            stage: self._checks_of(stage, written)
            for stage, written in self._stages_of_checks().items()
        }

    def _stages_of_checks(self) -> dict[str, Any]:
        path = self.path / _CHECKS
        if not path.exists():
            return {}
        stages = read_state(path).get("stages")
        if not isinstance(stages, dict):
            raise state_error(
                path, f"stages: expected facts and checks by stage, got {type(stages).__name__}"
            )
        return stages

    def _checks_of(self, stage: str, written: Any) -> tuple[dict[str, Any], list[dict[str, str]]]:
        path, where = self.path / _CHECKS, f"stages.{stage}"
        if not isinstance(written, dict):
            raise state_error(
                path, f"{where}: expected facts and checks, got {type(written).__name__}"
            )
        facts, checks = written.get("facts"), written.get("checks")
        if not isinstance(facts, dict) or not all(
            isinstance(of_host, dict) for of_host in facts.values()
        ):
            raise state_error(path, f"{where}.facts: expected facts of each host")
        if not isinstance(checks, list):
            raise state_error(
                path, f"{where}.checks: expected a list of checks, got {type(checks).__name__}"
            )
        try:
            return facts, [asdict(check) for check in read(tuple[_Check, ...], checks)]
        except Invalid as error:
            raise state_error(
                path, f"{where}.checks: expected texts of each check, {error}"
            ) from error


def acceptances(root: Path) -> Iterator[AcceptanceDir]:
    """Yield the acceptances in a folder of benches, the newest name first."""
    for path in sorted(root.glob(f"*/{_RECORD}"), reverse=True):
        yield AcceptanceDir(path.parent)


@dataclass(frozen=True, slots=True)
class _Measurement:
    spec: str
    units: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class _Earlier:
    id: str
    measured: Mapping[str, _Measurement]


def earlier_values(value: Any) -> Mapping[str, Any]:
    """Return the values of an earlier acceptance: nothing, or its id and by name of a measurement
    its spec and units. Raises Invalid.
    """
    values = read(dict[str, Any], value)
    if values:
        read(_Earlier, values)
    return values
