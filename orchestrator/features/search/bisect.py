"""`orch bisect`: run two benches again with one difference at a time, until it is proven which of
them explains the change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.api.find import new_bench_id
from orchestrator.cli import complete
from orchestrator.cli.compare import By
from orchestrator.cli.option_rows import Given, takes
from orchestrator.cli.options import (
    FirstBench,
    find_bench,
    open_frameworks,
    print_json,
    select,
    template_bases,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.api.selection import Selection
    from orchestrator.features.search.record import BisectRecord
    from orchestrator.plan.bench import Bench
    from orchestrator.record import BenchDir
    from orchestrator.results import Cell


@takes("bisect", budget="20m")
def bisect(
    before: FirstBench,
    after: Annotated[
        str,
        typer.Argument(
            metavar="B",
            autocompletion=complete.benches,
            help="The bench that is slower or faster. Default with --by: A.",
        ),
    ] = "",
    *,
    given: Given,
    by: By = None,
    case: Annotated[
        str,
        typer.Option(
            "--case",
            metavar="CASE",
            help="A configuration, as orch compare names it. Default: the most changed.",
        ),
    ] = "",
    metric: Annotated[
        str,
        typer.Option(
            "--metric",
            metavar="NAME",
            help="The metric. Default: the primary one.",
        ),
    ] = "",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the differences and the first runs; contact no host.",
        ),
    ] = False,
) -> None:
    """Run A and B again, then A with one of B's differences at a time, until it is proven which of
    them explain the change.

    Nothing is claimed from the search itself: the set it ends with is run again, in the same blocks
    as A and B. The default inventory is that of B.
    """
    from dataclasses import replace

    from orchestrator.errors import ConfigError
    from orchestrator.features.search.bisection.answer import differences
    from orchestrator.features.search.bisection.differences import sides
    from orchestrator.features.search.bisection.steps import BLOCKS
    from orchestrator.inventory.devices import with_devices
    from orchestrator.plan.bench import Bench
    from orchestrator.plan.option_values import label, seconds
    from orchestrator.plan.schedule import Schedule
    from orchestrator.record.bench_record import find_inventory
    from orchestrator.report.text import one_line

    hosts, as_json = given["hosts"], given["json"]
    if not (after or by):
        raise ConfigError(
            "expected a second bench, got none", where="B", hint="--by takes both from one bench"
        )
    benches = find_bench(before), find_bench(after or before)
    pair, name = _pair(benches, by or [], case, metric)
    record = benches[1].record()
    reached = "" if hosts else f"bench {record.bench_id}"
    selection = select(hosts or find_inventory(record), given["exclude"], source_of=reached)
    bases = tuple(dict.fromkeys((*template_bases(given["templates"]), *record.templates)))
    (folder,) = open_frameworks([pair[0].spec.framework], bases)
    devices = record.devices
    machines = [
        with_devices(host, devices[host.name]) if host.name in devices else host
        for host in selection.hosts
    ]
    both = sides(benches, pair, folder.framework, selection.inventory, machines)
    count = len(both.record.differences)
    if as_json or not dry_run:
        text = f"bisect: {name}: {count} differences that a run can take from A or from B"
        typer.echo("\n  ".join([one_line(text), *differences(both.record)]), err=True)
    if not count:
        raise ConfigError(
            "expected a difference that a run can take from A or from B, found none",
            where=f"{both.record.before.bench}, {both.record.after.bench}",
            hint="orch compare shows everything that is known to differ, and how far the numbers do",
        )
    schedule = Schedule("balanced", 0, BLOCKS, budget_s=seconds(given["budget"], "--budget"))
    cells, folders = (both.a, both.b), {folder.framework.name: folder}
    text = label(given["label"], "--label")
    plan = Bench(new_bench_id(), cells, folders, schedule, label=text)
    selection = replace(selection, hosts=both.hosts)
    if dry_run:
        _show(plan, selection, both.record, name, as_json)
        return
    from orchestrator.cli.controller import conduct
    from orchestrator.plan import Limits

    limits = Limits.of_options(given)
    conduct(
        plan,
        [],
        selection,
        limits,
        bases,
        accept_new=given["accept_new"],
        as_json=as_json,
        detach=given["detach"],
        added={"bisect": both.record},
    )


def _pair(
    benches: tuple[BenchDir, BenchDir], by: Sequence[str], case: str, metric: str
) -> tuple[tuple[Cell, Cell], str]:
    """Return the cells that are bisected, and their name. Raise ConfigError if none correspond, or
    none has numbers.
    """
    from math import log

    from orchestrator.analysis.compare import counterparts
    from orchestrator.analysis.compare.cells import ALL, compare_cells, find_unmatched_cells
    from orchestrator.cli.compare import parse_by
    from orchestrator.errors import ConfigError

    if metric == ALL:
        raise ConfigError("expected the name of one metric, got all", where="--metric")
    matched = counterparts(*benches, parse_by(by), metric)
    pairs = compare_cells(matched.pairs)
    where = f"{benches[0].path.name}, {benches[1].path.name}"
    if not pairs:
        only = ["; ".join(find_unmatched_cells(cells, ())) or "none" for cells in matched.cells]
        hint = "--by FIELD=X,Y takes configurations with X from A and with Y from B; it can be repeated"
        raise ConfigError(
            f"expected configurations of A and B that correspond, A has {only[0]}, B has {only[1]}",
            where=where,
            hint=hint,
        )
    usable = {}
    for pair, cells in zip(pairs, matched.pairs, strict=True):
        name = f"{pair.case} {pair.metric}" if metric else pair.case
        if pair.ratio and all(cell.is_positive for cell in cells) and case in ("", name, pair.case):
            usable[name] = (abs(log(pair.ratio)), cells)
    if not usable:
        raise ConfigError(
            "expected a configuration with numbers in A and in B, found none",
            where=case or where,
            hint=f"they have {'; '.join(pair.case for pair in pairs)}",
        )
    chosen = max(usable, key=lambda name: usable[name][0])
    if len(usable) > 1:
        text = f"bisect: {chosen}, which changed most of {len(usable)} configurations"
        typer.echo(f"{text}; --case chooses another", err=True)
    return usable[chosen][1], chosen


def _show(
    plan: Bench, selection: Selection, record: BisectRecord, name: str, as_json: bool
) -> None:
    """Print the differences, then A and B as `orch bench --dry-run` prints them."""
    from dataclasses import asdict

    from orchestrator.api.prepare import plan_documents
    from orchestrator.cli.dry_run import show_plan
    from orchestrator.features.search.bisection.answer import differences
    from orchestrator.features.search.bisection.differences import settings
    from orchestrator.report.text import one_line

    if as_json:
        print_json({"case": name, **asdict(record), "runs": plan_documents(plan, selection)})
        return
    speeds = f"A {record.before.typical:.6g}, B {record.after.typical:.6g} {record.unit}"
    typer.echo("\n  ".join([f"bisect: {name}: {speeds}", *differences(record)]))
    if len(record.differences) > 1:
        alone = "; ".join(settings(record.differences, (1,) * len(record.differences)))
        text = "first A and B again, then, if they still differ, A with one at a time: "
        typer.echo(one_line(text + alone))
        typer.echo("the results decide which sets of differences follow")
    show_plan(plan, selection, as_json=False)
