"""Completion of the names of suites."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from orchestrator.cli.complete import here, quiet


@quiet
def suites(ctx: typer.Context, last: str) -> Iterable[str]:
    """Return the names of the suites."""
    from orchestrator.features.accept.suite_files import suites as suite_files

    return suite_files([here().root / "suites"])
