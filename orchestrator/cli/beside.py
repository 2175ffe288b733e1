"""What is shown of a bench beside its tables: why it scales as it does, traces of extra runs, runs that did not go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from orchestrator.analysis.explain import Explanation
    from orchestrator.analysis.hang import Hang
    from orchestrator.analysis.profile import Profiled
    from orchestrator.record import BenchDir
    from orchestrator.results import RunResult
    from orchestrator.results.summary import Summary

__all__ = ["Beside"]


@dataclass(frozen=True, slots=True)
class Beside:
    """``explained`` is None unless it is asked for; ``series`` are those with speeds, which it may leave out; ``profiles`` and
    ``hangs`` are empty for a bench without any."""

    explained: tuple[Explanation, ...] | None
    series: tuple[str, ...]
    profiles: tuple[Profiled, ...]
    hangs: tuple[Hang, ...]

    @classmethod
    def of(cls, bench: BenchDir, summary: Summary, results: Sequence[RunResult], *, explain: bool) -> Beside:
        """Compute it from the evidence of a bench."""
        from orchestrator.analysis.hang import hangs_of_bench
        from orchestrator.analysis.profile import profiled_bench

        explained = None
        if explain:
            from orchestrator.analysis.explain import explain_bench
            from orchestrator.results.account import account_of

            explained = explain_bench(bench, summary, results, account_of(bench, results))
        series = tuple(dict.fromkeys(row.series for row in summary.speeds()))
        return cls(explained, series, profiled_bench(bench, summary, results), hangs_of_bench(bench, results))

    def documents(self) -> dict[str, Any]:
        """Return the keys that it adds to the JSON of a summary."""
        keys: dict[str, Any] = {}
        if self.hangs:
            from orchestrator.report import hang

            keys["hangs"] = hang.documents(self.hangs)
        if self.explained is not None:
            from orchestrator.report import explain

            keys["explained"] = explain.documents(self.explained)
        if self.profiles:
            from orchestrator.report import profile

            keys["profiled"] = profile.documents(self.profiles, self.explained or ())
        return keys

    def show(self, console: Console) -> None:
        """Print it below the tables."""
        from orchestrator.report import explain, hang, profile

        hang.render(self.hangs, console)
        if self.explained is not None:
            explain.render(self.explained, console, self.series)
        profile.render(self.profiles, self.explained or (), console)
