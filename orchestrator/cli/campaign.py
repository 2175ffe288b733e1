"""How a bench looks from the terminal: its signals, its progress, its end."""

from __future__ import annotations

import os
import random
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.campaign import Campaign, PlannedRun, borrow, ports
from orchestrator.cli.options import Selection
from orchestrator.cli.progress import progress
from orchestrator.cluster import Cluster
from orchestrator.errors import Faults
from orchestrator.launch import Interrupt, Limits
from orchestrator.rundir import BenchDir

if TYPE_CHECKING:
    from orchestrator.rundir import RunDir

__all__ = ["conduct"]


def conduct(
    planned: Sequence[PlannedRun],
    borrowed: Sequence[RunDir],
    selection: Selection,
    *,
    lease_s: float,
    grace_s: float,
    accept_new: bool,
    as_json: bool,
) -> None:
    """Run a planned bench and print its table. Raises what the first failed run failed of."""
    record = {
        "bench_id": planned[0].bench_id,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "argv": sys.argv,
        "inventory": str(Path(selection.source).absolute()) if Path(selection.source).exists() else selection.source,
        "runs": [run.run_id for run in borrowed] + [run.run_id for run in planned],
        "borrowed": [run.run_id for run in borrowed],
    }
    bench = BenchDir.create(selection.project.runs, record)
    for run in borrowed:
        borrow(bench, run)
    names = {slot for run in planned for slot in range(run.spec.nodes)}
    hosts = selection.hosts[: max(names) + 1]
    interrupt = Interrupt()
    typer.echo(f"bench: {bench.path}", err=True)
    with Cluster(hosts, selection.trust(accept_new)) as cluster, _signals(interrupt, bench), progress(planned) as observe:
        campaign = Campaign(
            bench,
            hosts,
            cluster,
            Limits(lease_s=lease_s, grace_s=grace_s),
            interrupt,
            observe,
            ports(random.SystemRandom().choice),
            selection.inventory.secrets,
        )
        errors = campaign.execute(planned)
    with suppress(OSError):  # nobody reads any more, which changes nothing about how the bench ended
        _table(bench, as_json)
    if errors:
        raise Faults(errors) if len(errors) > 1 else errors[0]


@contextmanager
def _signals(interrupt: Interrupt, bench: BenchDir) -> Iterator[None]:
    """Once: stop everywhere, collect, mark. Twice: leave at once and print what finishes the job."""

    def act(number: int, _: object) -> None:
        if interrupt.signal:
            path = shlex.quote(str(bench.path))
            finish = f"orch cancel {path} && orch collect {path}"
            show = "\x1b[?25h" if os.isatty(2) else ""  # the live block had hidden the cursor
            _say(f"{show}\norch: left at once; the nodes end the run by themselves. To finish: {finish}\n")
            os._exit(128 + number)
        interrupt.signal = number
        _say("\norch: stopping on every node, then collecting; once more to leave at once\n")

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, act) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _say(text: str) -> None:
    """Write to standard error from a signal handler; the terminal may be what has just gone."""
    with suppress(OSError):
        os.write(2, text.encode())


def _table(bench: BenchDir, as_json: bool) -> None:
    from rich.console import Console

    from orchestrator.report import jsonout, terminal
    from orchestrator.results import read_bench
    from orchestrator.summary import summarize

    summary = summarize(read_bench(bench))
    if as_json:
        typer.echo(jsonout.render(summary), nl=False)
    else:
        terminal.render(summary, Console())
