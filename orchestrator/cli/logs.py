"""`orch logs`: print the log of one rank, or all ranks' logs with equal lines folded."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import complete
from orchestrator.cli.connection_log import trust_of
from orchestrator.cli.options import Debug, check_secrets, find_bench

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from orchestrator.inventory import Redaction
    from orchestrator.plan.placement import Slot
    from orchestrator.record import BenchDir, RunDir

    Log = tuple[str, str]
    """A log by its host and name."""


def logs(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN",
            autocompletion=complete.runs,
            help="Id of a run, or a bench, for its newest run. Default: the latest bench.",
        ),
    ] = "",
    rank: Annotated[int, typer.Option("--rank", "-r", help="Rank whose log to print.")] = 0,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Print the logs of all ranks, each line once with the ranks that have it."
        ),
    ] = False,
    err: Annotated[
        bool, typer.Option("--err", help="Print standard error instead of standard output.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Keep printing as the log grows.")
    ] = False,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="Print the bytes unchanged, with secrets and control characters."
        ),
    ] = False,
    debug: Debug = False,
) -> None:
    """Print one rank's log from its node, or the collected copy if there is one; -f follows it.

    Each line is prefixed with its host and log name, and has no secrets or control characters, also
    in a pipe. With --all, lines that several ranks have are printed once, so that the rank that has
    another one is seen.
    """
    import sys

    from orchestrator.errors import ConfigError
    from orchestrator.inventory import fold
    from orchestrator.record.manifest import read_manifest
    from orchestrator.report.text import lines_of, visible

    if everything and (follow or raw or rank):
        if follow:
            other = "--follow"
        elif raw:
            other = "--raw"
        else:
            other = "--rank"
        raise ConfigError(f"expected it without {other}, got both", where="--all")
    directory, chosen = _find_run(run)
    placement = read_manifest(chosen).placement
    wanted = range(placement.world_size) if everything else range(rank, rank + 1)
    ranks = {}
    for slot in placement.slots:
        of_slot = [one for one in slot.ranks if one in wanted]
        if of_slot:
            ranks[slot] = of_slot
    if not ranks:
        raise ConfigError(
            f"expected a rank from 0 to {placement.world_size - 1}, got {rank}", where="--rank"
        )
    ending = "err" if err else "out"
    with ExitStack() as stack:
        pieces, redaction = _pieces(stack, directory, chosen, ranks, ending, follow, raw)
        if raw:
            for data in (data for of_log in pieces.values() for data in of_log):
                sys.stdout.buffer.write(data)
                sys.stdout.buffer.flush()
            return
        lines = {log: lines_of(redaction.stream(of_log)) for log, of_log in pieces.items()}
        told = _fold_lines(lines) if everything else _label_lines(lines)
        count = 0
        for label, line in told:
            print(f"{label}: {visible(line)}", flush=follow)
            count += 1
        if not count:
            hosts, names = map(fold, zip(*pieces, strict=True))
            other = "" if err else "; --err prints standard error"
            typer.echo(f"{hosts} {names}: no line{other}", err=True)


def _find_run(name: str) -> tuple[BenchDir, RunDir]:
    """Return a run of the project by its id, or the newest one of a bench, with its bench. Raises
    ConfigError.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.record import BenchDir, Project

    manifests = Project.here(os.environ).runs.glob("*/*/manifest.json") if name else ()
    bench = next((path.parents[1] for path in manifests if path.parent.name == name), None)
    directory = BenchDir.open(bench) if bench else find_bench(name)
    known = directory.runs(superseded=bool(bench))
    runs = [run for run in known if not bench or run.run_id == name]
    if not runs:
        raise ConfigError("no run has started yet", where=str(directory.path))
    return directory, runs[-1]


def _pieces(
    stack: ExitStack,
    directory: BenchDir,
    run: RunDir,
    ranks: Mapping[Slot, Sequence[int]],
    ending: str,
    follow: bool,
    raw: bool,
) -> tuple[dict[Log, Iterable[bytes]], Redaction]:
    """Return the bytes of the logs of these ranks, collected or from their nodes, which stay
    connected until the stack ends; and what hides secrets in them.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.inventory import NO_SECRETS, open_inventory
    from orchestrator.nodes.cluster import Cluster
    from orchestrator.nodes.collect import is_complete
    from orchestrator.record import Project
    from orchestrator.record.bench_record import find_inventory

    pieces: dict[Log, Iterable[bytes]] = {}
    away = []
    for slot, of_slot in ranks.items():
        if is_complete(run, slot.host):
            pieces |= {
                log: _read_collected(run, log, raw) for log in _logs_of(run, slot, of_slot, ending)
            }
        else:
            away.append(slot)
            pieces |= {(slot.host, f"rank-{rank}.{ending}"): () for rank in of_slot}
    if not away:
        try:
            return pieces, open_inventory(directory.record().inventory).redaction()
        except (
            ConfigError
        ):  # it is gone; what was secret when the log was collected is recorded next to it
            return pieces, NO_SECRETS
    inventory = open_inventory(find_inventory(directory.record()))
    hosts = inventory.of([slot.host for slot in away])
    if not raw:
        check_secrets(directory.record(), hosts, "add --raw")
    trust = trust_of(Project.here(os.environ), inventory.redaction())
    cluster = stack.enter_context(Cluster(hosts, trust, inventory.redaction()).open())
    for slot in away:
        tail = cluster.nodes[slot.host].tail
        for rank in ranks[slot]:
            name = f"rank-{rank}.{ending}"
            pieces[slot.host, name] = tail(run.run_id, name, offset=0, follow=follow)
    return pieces, cluster.redaction


def _read_collected(run: RunDir, log: Log, raw: bool) -> Iterator[bytes]:
    from orchestrator.record.evidence import log_bytes

    yield run.log_path(*log).read_bytes() if raw else log_bytes(run, *log)


def _logs_of(run: RunDir, slot: Slot, ranks: Sequence[int], ending: str) -> list[Log]:
    """Return the collected logs of ranks of a node; where it has none of a rank, the log in which
    the output of that rank is, and say so of a single one.
    """
    from orchestrator.logs import SETUP_LOG
    from orchestrator.record.evidence import setup_failed

    present = [path.name for path in run.logs(slot.host)]
    names = []
    for name in (f"rank-{rank}.{ending}" for rank in ranks):
        if name not in present:
            # Third-party programs, and launchers that fail early, write to the node's own streams.
            setup = SETUP_LOG if setup_failed(run, slot.host) else ""
            missing, name = name, setup or f"node.{ending}"
            if len(ranks) == 1:  # of several, each line names its log
                others = ", ".join(present)
                typer.echo(
                    f"{slot.host} has no {missing}; this is {name}. available: {others}", err=True
                )
        names.append(name)
    return [(slot.host, name) for name in dict.fromkeys(names)]


def _label_lines(lines: Mapping[Log, Iterable[str]]) -> Iterator[tuple[str, str]]:
    """Yield each line with its host and log."""
    for (host, name), of_log in lines.items():
        yield from ((f"{host} {name}", line) for line in of_log)


def _fold_lines(lines: Mapping[Log, Iterable[str]]) -> Iterator[tuple[str, str]]:
    """Yield each line once, with the hosts and logs that have it."""
    from orchestrator.inventory import fold
    from orchestrator.report.text import merge_lines

    logs_of_all = list(lines)
    for line, places in merge_lines(list(lines.values())):
        hosts, names = zip(*(logs_of_all[place] for place in places), strict=True)
        yield f"{fold(hosts)} {fold(names)}", line
