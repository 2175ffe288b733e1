"""`orch accept`: measure nodes and links against the bars of a suite, and write a certificate."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.api.connection_cache import ConnectionCache
from orchestrator.api.find import new_bench_id
from orchestrator.cli.node_states import without_suspects
from orchestrator.cli.option_rows import Given, takes
from orchestrator.cli.options import (
    forget_path,
    print_json,
    print_line,
    select,
    tell_path,
    template_bases,
)
from orchestrator.cli.unreachable import select_reachable
from orchestrator.features.accept import sentinel
from orchestrator.features.accept.completion import suites
from orchestrator.features.accept.node_verdicts import remember
from orchestrator.features.accept.suite_plan import SuitePlan, plan_suite, show
from orchestrator.options import FIRST, OUTPUT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.api.selection import Selection
    from orchestrator.features.accept.certificate import Certificate
    from orchestrator.features.accept.controller import Acceptance
    from orchestrator.features.accept.record import AcceptanceDir
    from orchestrator.plan import Limits


@takes("accept")
def accept(
    ctx: typer.Context,
    suite: Annotated[
        str,
        typer.Argument(
            metavar="SUITE",
            autocompletion=suites,
            help="quick, accept, soak, a suite in suites/ of the project, or a file; or sentinel.",
        ),
    ] = "accept",
    *,
    given: Given,
    sign: Annotated[
        Path | None,
        typer.Option(
            "--sign",
            metavar="KEY",
            help="Sign the seal with this SSH key.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the stages and what is left out; contact no host."),
    ] = False,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="TIME",
            help="Leave out hosts that this suite has passed within that time, such as 30d.",
            rich_help_panel=FIRST,
        ),
    ] = None,
) -> None:
    """Run a suite on all hosts, stage by stage, and judge every node and link against its bars.

    Writes a certificate: a page, JSON and a sealed archive. Exits with 0 if all pass, 5 if a node,
    a link or the cluster fails, 6 if that is undecided.

    sentinel writes orch-node-test instead, a program that tests a node between acceptances, by itself.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.plan import Limits
    from orchestrator.plan.option_values import seconds

    budget, as_json = given["budget"], given["json"]
    bases = template_bases(given["templates"])
    if suite == sentinel.NAME:
        sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
        sentinel.refuse_options(
            name for name, source in sources.items() if source and source.name == "COMMANDLINE"
        )
        sentinel.write_node_test(given["output"] or Path(sentinel.FILE), bases)
        return
    if not dry_run:
        forget_path(given["output"])
    selection = select(given["hosts"], given["exclude"])
    selection = without_suspects(selection, given["with_suspects"])
    if older_than:
        due = _due(selection, suite, seconds(older_than, "--older-than"))
        if not due.hosts:
            typer.echo(
                f"accept: {Path(suite).stem} has passed all hosts within {older_than}", err=True
            )
            return
        selection = due
    budget_s = seconds(budget, "--budget") if budget else None
    plan = plan_suite(suite, selection, bases, budget_s)
    if sign:
        from orchestrator.record.signature import sign as signature_of

        signature_of("a trial", sign)  # and not after hours
    if dry_run or not plan.stages:
        show(plan, len(selection.hosts), as_json)
        if not plan.stages:
            raise ConfigError(
                "expected at least one stage that can run and fits the budget, found none",
                where="--budget" if budget else suite,
            )
        return
    accept_new = given["accept_new"]
    if given["skip_unreachable"]:
        with ConnectionCache() as opened:
            selection = select_reachable(selection, accept_new, opened)
        plan = plan_suite(suite, selection, bases, budget_s)
    acceptance = begin_acceptance(
        plan,
        selection,
        bases,
        Limits.of_options(given),
        budget_s=budget_s,
        accept_new=accept_new,
        sign=sign,
    )
    tell_path(given["output"], acceptance.folder.path)
    finish(acceptance, sign, as_json)


def _due(selection: Selection, suite: str, older_than_s: float) -> Selection:
    """Return the selection with the hosts alone that are due for a suite, which are told."""
    from orchestrator.features.accept.past import hosts_to_accept, past_acceptances
    from orchestrator.grouping import group_pairs
    from orchestrator.inventory import fold

    project = selection.project
    made, _ = past_acceptances(project.runs, project.cache("acceptances"))
    names = [host.name for host in selection.hosts]
    due = hosts_to_accept(names, made, Path(suite).stem, older_than_s)
    for reason, hosts in group_pairs((why, host) for host, why in due.items()).items():
        typer.echo(f"accept: due: {fold(hosts)}: {reason}", err=True)
    return replace(selection, hosts=tuple(host for host in selection.hosts if host.name in due))


def begin_acceptance(
    plan: SuitePlan,
    selection: Selection,
    bases: Sequence[Path],
    limits: Limits,
    *,
    budget_s: float | None,
    accept_new: bool,
    sign: Path | None = None,
) -> Acceptance:
    """Return the acceptance that carries a plan out; its folder exists."""
    import re
    import sys
    import time

    from orchestrator.features.accept.certificate_files import earlier_of
    from orchestrator.features.accept.controller import Acceptance
    from orchestrator.features.accept.record import AcceptanceDir, AcceptanceRecord
    from orchestrator.version import __version__
    from orchestrator.yamlfile import read_text

    selection.project.prepare()
    suite = plan.suite
    record = AcceptanceRecord(
        acceptance_id=f"{new_bench_id()}-{re.sub('[^A-Za-z0-9_.-]', '_', suite.name)[:60]}",
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        orch=__version__,
        argv=tuple(sys.argv),
        suite=suite.name,
        document=read_text(Path(plan.document.source)),
        references=tuple(read_text(Path(figures.source)) for figures in plan.references),
        device=selection.hosts[0].device,
        inventory=str(Path(selection.source).absolute())
        if Path(selection.source).exists()
        else selection.source,
        hosts={host.name: host.address for host in selection.hosts},
        stages=tuple(stage.name for stage, _ in plan.stages),
        left_out=plan.left_out,
        budget_s=budget_s,
        templates=tuple(str(base.absolute()) for base in bases),
        notes=selection.notes,
        earlier=earlier_of(selection.project.runs, suite.name, selection.hosts),
        sign=str(sign.absolute()) if sign else "",
        criteria=read_text(Path(plan.criteria.source)) if plan.criteria else "",
    )
    folder = AcceptanceDir.create(selection.project.runs, record)
    typer.echo(f"acceptance: {folder.path}", err=True)
    for name, reason in plan.left_out.items():
        typer.echo(f"accept: {name} is left out: {reason}", err=True)
    return Acceptance(folder, selection, plan.document, suite, bases, limits, accept_new)


def finish(acceptance: Acceptance, sign: Path | None, as_json: bool) -> None:
    """Carry an acceptance out, write its certificate, print it, and exit with its verdict."""
    from contextlib import suppress

    from orchestrator.errors import OrchError
    from orchestrator.features.accept.certificate_files import certify, seal_certificate

    folder = acceptance.folder
    with hold(folder):
        try:
            acceptance.carry_out()
        except OrchError:
            with suppress(OrchError):  # the first error counts
                certify(folder)
            raise
        certificate = certify(folder)
    remember(acceptance.selection.project, certificate)
    _tell(certificate, folder, seal_certificate(folder, sign), as_json)


@contextmanager
def hold(folder: AcceptanceDir) -> Iterator[None]:
    """Hold an acceptance for this process. A signal that no bench takes ends it with how to go on.
    Raises Interrupted.
    """
    import shlex

    from orchestrator.cli.signals import handle_signals
    from orchestrator.errors import Interrupted
    from orchestrator.files import remove_parts
    from orchestrator.record import hold

    def end(number: int, _: object) -> None:
        hint = f"to continue: orch resume {shlex.quote(folder.path.name)}"
        raise Interrupted(number, "interrupted by a signal to the controller", hint=hint)

    with hold(folder), handle_signals(end):
        remove_parts(folder.path)
        yield


def _tell(certificate: Certificate, folder: AcceptanceDir, archived: Path, as_json: bool) -> None:
    """Print a certificate, and exit with its verdict."""
    from orchestrator.features.accept.report import lines, status

    if as_json:
        print_json(
            {
                **certificate.as_dict(),
                "path": str(folder.path),
                "archive": str(archived),
                "measured": {},
            }
        )
    else:
        for line in lines(certificate):
            print_line(line)
        typer.echo(f"certificate: {folder.path / 'certificate.html'}, sealed in {archived}")
    if code := status(certificate):
        raise typer.Exit(code)


def go_on(folder: AcceptanceDir, *, accept_new: bool, retry_failed: bool, as_json: bool) -> None:
    """Finish an acceptance whose process is gone; print a finished one with its seal and signature."""
    from contextlib import suppress
    from dataclasses import replace

    from orchestrator import yamlfile
    from orchestrator.errors import ConfigError, DataError
    from orchestrator.features.accept.certificate import certificate_of
    from orchestrator.features.accept.certificate_files import seal_certificate
    from orchestrator.features.accept.controller import Acceptance
    from orchestrator.features.accept.suite import suite_of
    from orchestrator.plan import Limits
    from orchestrator.record import BenchDir
    from orchestrator.record.bench_record import find_inventory

    record, archived = folder.record(), folder.own_archive
    sign = Path(record.sign) if record.sign else None
    if record.is_over and archived.exists():
        if sign and not archived.with_name(f"{archived.name}.sig").exists():
            seal_certificate(folder, sign)
        _tell(certificate_of(folder), folder, archived, as_json)
        return
    for attempt in record.attempts:
        find_inventory(BenchDir.open(folder.path / attempt.bench_id).record())
    selection = select(record.inventory, source_of=f"acceptance {folder.path.name}")
    known = {host.name: host for host in selection.hosts}
    gone = [name for name in record.hosts if name not in known]
    if gone:
        raise ConfigError(
            f"expected all hosts of the acceptance, {', '.join(gone)} are no longer in the inventory",
            where=record.inventory,
        )
    moved = [name for name, address in record.hosts.items() if known[name].address != address]
    if moved:
        message = f"expected the machines of the acceptance, the address of {', '.join(moved)} has changed"
        raise ConfigError(
            message, where=record.inventory, hint="correct the address, or start a new orch accept"
        )
    selection = replace(selection, hosts=tuple(known[name] for name in record.hosts))
    document = yamlfile.loads(record.document, f"{folder.path.name}: suite")
    suite = suite_of(document, record.suite, record.device)
    bases = [Path(base) for base in record.templates]
    limits = Limits()
    for attempt in record.attempts:
        with suppress(DataError):
            limits = folder.bench(attempt.bench_id).record().limits or limits
    going_on = Acceptance(
        folder, selection, document, suite, bases, limits, accept_new, retry_failed
    )
    finish(going_on, sign, as_json)
