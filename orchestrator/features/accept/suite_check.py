"""Check a suite for faults on any hosts, before one is contacted, and report file and line.

`suite_plan` leaves out stages that are impossible only on these hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator.api.prepare import check_variables
from orchestrator.checks.catalogue import all_entries
from orchestrator.checks.check import NAMES
from orchestrator.errors import ConfigError, Faults, nearest, raise_all
from orchestrator.features.accept.criteria import criteria_of
from orchestrator.features.accept.stage_bench import ranks_of, request_for
from orchestrator.features.accept.suite import Bar, Reference, Suite, SuiteStage, suite_of
from orchestrator.inventory import Host, Inventory
from orchestrator.plan.configurations import check_choices
from orchestrator.plan.folders import FrameworkFolder, framework_for
from orchestrator.plan.framework import Framework
from orchestrator.plan.request import Request
from orchestrator.results.expectations import check_names
from orchestrator.yamlfile import Document

_SEVERAL = 2
"""Nodes, and ranks on each, that a stage is tried on at least: it is no fault of a suite that these
hosts have one.
"""


def check_suite(
    document: Document,
    suite: Suite,
    hosts: Sequence[Host],
    inventory: Inventory,
    references: Sequence[Reference],
    bases: Sequence[Path],
    read: Callable[[str], FrameworkFolder],
) -> None:
    """Raise ConfigError, or Faults with several, for faults in the suite of a document.

    This includes stages for other devices than these hosts have. Faults are an unknown check,
    framework, model, option or metric, a value that no host makes possible, a secret variable, and
    a bar that nothing could be judged by. ``read`` opens a framework folder.
    """
    checker = _Checker(document, hosts, inventory, references, bases, read)
    device = hosts[0].device
    other = "cuda" if device == "cpu" else "cpu"
    for stages, kind in (
        (suite.stages, device),
        (suite_of(document, suite.name, other).stages, other),
    ):
        for stage in stages:
            checker.check(stage, kind)
    raise_all(list(checker.faults.values()))


def check_criteria(document: Document, suite: Suite) -> None:
    """Raise ConfigError for criteria that name a check or a stage that there is none of."""
    checks = [entry.name for entry in all_entries()]
    stages = [stage.name for stage in suite.stages]
    for row in criteria_of(document).criteria:
        for name, known in (*((check, checks) for check in row.checks), (row.stage, stages)):
            if name and name not in known:
                message = f"expected a check or a stage of the suite, got {name!r}"
                hint = f"of the criterion {row.id}{nearest(name, known)}"
                raise ConfigError(message, where=document.source, hint=hint)


@dataclass(slots=True)
class _Checker:
    """Checks the stages of one suite, and gathers the first fault of each place."""

    document: Document
    hosts: Sequence[Host]
    inventory: Inventory
    references: Sequence[Reference]
    bases: Sequence[Path]
    read: Callable[[str], FrameworkFolder]
    faults: dict[str, ConfigError] = field(default_factory=dict)

    @contextmanager
    def _gather(self, option: str = "", model: str = "") -> Iterator[None]:
        """Gather the faults that are raised. ``option`` and ``model`` are the places in the suite
        of what would be an option, and the model, of a command."""
        try:
            yield
        except (ConfigError, Faults) as error:
            for fault in error.errors:
                if fault.where == "model":
                    where = model
                elif fault.where.startswith("--"):
                    where = option
                else:
                    where = fault.where
                placed = ConfigError(fault.message, kind=fault.kind, where=where, hint=fault.hint)
                self.faults.setdefault(where or fault.message, placed)

    def check(self, stage: SuiteStage, device: str) -> None:
        """Check a stage for one type of device."""
        if stage.checks:
            self._check_checks(stage)
            return
        shape = (
            max(len(self.hosts), stage.least_nodes, _SEVERAL),
            max(ranks_of(self.hosts), stage.least_ranks, _SEVERAL),
        )
        bench = self._where(stage, "bench")
        with self._gather(self._where(stage, "choices") or bench, bench):
            request = request_for(stage, self.document, *shape)
            with self._gather():
                check_variables(request, self.inventory)
            if folders := self._folders(stage, request):
                self._check_bounds(stage, request, [folder.framework for folder in folders])
                check_choices(request, folders, device, shape)

    def _where(self, stage: SuiteStage, key: str, *keys: str | int) -> str:
        if key not in stage.paths:
            return ""
        return self.document.where((*stage.paths[key], *keys))

    def _folders(self, stage: SuiteStage, request: Request) -> list[FrameworkFolder]:
        """Return the framework folders of a stage; none if one of them cannot be opened."""
        folders = []
        names = request.framework_names(lambda: framework_for(stage.bench, self.bases, self.read))
        for name in names:
            place = self._where(stage, "framework") or request.run_file.places.get(
                ("framework", name), ""
            )
            with self._gather(place):
                folders.append(self.read(name))
        return folders if len(folders) == len(names) else []

    def _check_checks(self, stage: SuiteStage) -> None:
        with self._gather(self._where(stage, "framework")):
            self.read(stage.framework)
        known = ("all", "reach", stage.framework, *NAMES)
        for index, name in enumerate(stage.checks):
            if name not in known:
                hint = f"docs/preflight.md lists them{nearest(name, known)}"
                where = self._where(stage, "checks", index)
                with self._gather():
                    raise ConfigError(
                        f"expected names of checks, got {name!r}", where=where, hint=hint
                    )

    def _check_bounds(
        self, stage: SuiteStage, request: Request, frameworks: Sequence[Framework]
    ) -> None:
        for expected in request.expect:
            where = request.run_file.places["expect", str(expected)]
            with self._gather():
                check_names(
                    str(expected),
                    expected.metric,
                    expected.at,
                    frameworks,
                    request.variables,
                    where,
                )
        for index, bar in enumerate(stage.bars):
            where = self._where(stage, "bars", index)
            with self._gather():
                check_names(bar.words, bar.metric, bar.at, frameworks, request.variables, where)
                self._check_bar(bar, where, frameworks)

    def _check_bar(self, bar: Bar, where: str, frameworks: Sequence[Framework]) -> None:
        """Raise ConfigError for a bar that compares with nothing."""
        names = [framework.name for framework in frameworks]
        known = any(
            figure.metric == bar.metric and figure.framework in names for figure in self.references
        )
        if bar.peers is None and bar.earlier is None and not known:
            hint = "a bar without peers: and earlier: is judged by the reference figures in suites/references/"
            message = f"expected peers:, earlier: or a reference figure of {bar.metric}, found none"
            raise ConfigError(message, where=where, hint=hint)
