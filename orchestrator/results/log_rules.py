"""Other rules than orch's own for reading speeds from logs, which features provide."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from orchestrator.errors import ConfigError
from orchestrator.feature import providers
from orchestrator.plan import Framework
from orchestrator.record import BenchDir
from orchestrator.results import RunResult
from orchestrator.results.summary import Summary


class LogRules(Protocol):
    """The rules of framework folders.

    ``name`` names a folder or a rule; empty: the rule that each folder names.
    """

    def rule_names(self, bases: Sequence[Path] = ()) -> dict[str, list[str]]:
        """Return the names of the rules of each framework folder that has any."""

    def rule_of(self, framework: Framework, name: str = "") -> object:
        """Return the rule of a framework by a name. Raise ConfigError if it has none."""

    def summary_of_tree(
        self, root: Path, framework: Framework, images: int | None = None, name: str = ""
    ) -> Summary:
        """Return the scaling table of a tree of logs that orch did not write."""

    def by_rule(
        self,
        bench: BenchDir,
        results: Sequence[RunResult],
        bases: Sequence[Path] = (),
        name: str = "",
    ) -> Summary:
        """Return the scaling table of a bench by rules."""


def log_rules(where: str) -> LogRules:
    """Return the reader of logs by rules.

    Raise ConfigError, for the option ``where``, if no feature provides one.
    """
    for module in providers("log_rules"):
        rules: LogRules = module
        return rules
    raise ConfigError(
        "expected no such option: this installation of orch has no rules to read logs by",
        where=where,
    )
