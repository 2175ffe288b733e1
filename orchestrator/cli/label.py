"""`orch label`: give a bench a name, which another bench then loses."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import complete
from orchestrator.cli.options import bench_path, name_bench

if TYPE_CHECKING:
    from orchestrator.record.bench_record import BenchRecord


def label(
    bench: Annotated[
        str,
        typer.Argument(
            metavar="BENCH",
            autocompletion=complete.benches,
            help="Name, label or directory of a bench.",
        ),
    ],
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The new label; '' removes the one it has.")
    ],
) -> None:
    """Give a bench a label, and take it from the bench that has it.

    A baseline is thus named once: orch label BENCH good moves the label, and
    orch gate --baseline good compares with the bench that has it.
    """
    from orchestrator.plan.option_values import label as label_of
    from orchestrator.record import BenchDir, Project, take
    from orchestrator.record.rundir import benches

    given = label_of(name, "NAME")
    runs = Project.here(os.environ).runs
    chosen = BenchDir.open(bench_path(bench), runs)
    others = [other for other in benches(runs) if given and other.record().label == given]
    changes = [(other, "") for other in others if other.path.resolve() != chosen.path.resolve()] + [
        (chosen, given)
    ]
    for directory, text in changes:
        before, ownership = name_bench(directory), take(directory)
        try:
            directory.change(partial(_relabel, text))
        finally:
            ownership.release()
        typer.echo(f"{before} is now {name_bench(directory)}")


def _relabel(text: str, record: BenchRecord) -> BenchRecord:
    return replace(record, label=text)
