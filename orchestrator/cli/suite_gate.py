"""``--gate`` of `orch bench`: a suite that a feature runs on the hosts before the bench."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from orchestrator.api.selection import Selection
    from orchestrator.plan import Limits


def describe_gate(suite: str, selection: Selection, bases: Sequence[Path]) -> str:
    """Return the plan of a suite on these hosts, in words. Raises ConfigError for its faults."""
    words: str = _provider().describe_gate(suite, selection, bases)
    return words


def run_gate(
    selection: Selection,
    suite: str,
    bases: Sequence[Path],
    limits: Limits,
    *,
    accept_new: bool,
    with_suspects: bool,
) -> Selection:
    """Run a suite and return the selection without the hosts that fail it. Raises Regression if the
    bench must not begin.
    """
    left: Selection = _provider().run_gate(
        selection, suite, bases, limits, accept_new=accept_new, with_suspects=with_suspects
    )
    return left


def _provider() -> Any:
    from orchestrator.errors import ConfigError
    from orchestrator.feature import providers

    for module in providers("gate"):
        return module
    raise ConfigError(
        "expected no suite: this installation of orch has no acceptances", where="--gate"
    )
