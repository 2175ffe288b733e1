"""The output of a finished search."""

from __future__ import annotations

import json
import math
import shlex
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.options import print_json
from orchestrator.features.search.reading import open_search
from orchestrator.files import write_atomic
from orchestrator.results.bench import read_bench

if TYPE_CHECKING:
    from orchestrator.record import BenchDir


def show(bench: BenchDir, as_json: bool) -> None:
    """Print the result of a search and write it into its bench as JSON, beside the files that apply
    it.
    """
    search = open_search(bench, read_bench(bench))
    outcome = search.outcome(bench.record())
    files, command = search.apply(bench)
    document = {
        "schema": 1,
        **_finite(asdict(outcome.result)),
        "answer": outcome.answer,
        "left_open": list(outcome.left_open),
        "files": [str(path) for path in files],
    }
    text = json.dumps(document, indent=2, allow_nan=False)
    write_atomic(bench.path / f"{search.noun}.json", text.encode() + b"\n")
    if as_json:
        print_json(document)
        return
    lines = [*chain(*outcome.tables), "", outcome.answer, *outcome.left_open]
    if files:
        lines += ["", f"to use it: {command}"]
    elif outcome.result.verdict == "unfinished" or search.state.failed:
        again = " --retry-failed" if search.state.failed else ""
        lines.append(f"to continue: orch resume {shlex.quote(bench.path.name)}{again}")
    typer.echo("\n".join(lines))


def _finite(value: Any) -> Any:
    """Return a value for JSON, with null for an infinite number."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
