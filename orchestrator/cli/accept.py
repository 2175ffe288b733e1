"""`orch accept`: measure nodes and links against the bars of a suite, and write a certificate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli import complete
from orchestrator.cli.connecting import Debug
from orchestrator.cli.node_states import WithSuspects, remember, without_suspects
from orchestrator.cli.options import (
    AcceptNew,
    Budget,
    Exclude,
    FirstLineTimeout,
    Hosts,
    Json,
    Lease,
    Sign,
    StallTimeout,
    StopGrace,
    Templates,
    Wait,
    WaitLimit,
    new_bench_id,
    print_json,
    select,
    template_bases,
    waiting_s,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from orchestrator.cli.acceptance import Acceptance
    from orchestrator.cli.options import Selection
    from orchestrator.plan import Limits
    from orchestrator.plan.bench import Bench
    from orchestrator.plan.suite import Suite, SuiteStage
    from orchestrator.record.acceptance import AcceptanceDir
    from orchestrator.yamlfile import Document


@dataclass(frozen=True, slots=True)
class SuitePlan:
    """A suite on these hosts: its stages that are made, each with its bench, and why the others are left out."""

    suite: Suite
    document: Document
    references: tuple[Document, ...]
    stages: tuple[tuple[SuiteStage, Bench | None], ...]
    left_out: Mapping[str, str]


def add_to(app: typer.Typer) -> None:
    """Add the command of this module."""
    app.command("accept")(accept)


def accept(
    suite: Annotated[
        str,
        typer.Argument(
            metavar="[SUITE]",
            autocompletion=complete.suites,
            help="quick, accept, soak, one of suites/ of the project, or a file.",
        ),
    ] = "accept",
    budget: Budget = "",
    sign: Sign = None,
    lease: Lease = 60.0,
    grace: StopGrace = 5.0,
    first_line: FirstLineTimeout = 600.0,
    stall: StallTimeout = 600.0,
    wait: Wait = False,
    wait_limit: WaitLimit = "",
    hosts: Hosts = "",
    exclude: Exclude = "",
    with_suspects: WithSuspects = False,
    accept_new: AcceptNew = False,
    debug: Debug = False,
    templates: Templates = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the stages and what is left out; contact no host.")] = False,
    as_json: Json = False,
) -> None:
    """Run a suite on all hosts, stage after stage, and judge every node and link by its bars.

    Writes a certificate: a page, JSON and a sealed archive. Exits with 0 if all pass, 5 if a node, a link or the cluster fails,
    6 if that is undecided.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.plan import Limits
    from orchestrator.plan.words import seconds

    bases = template_bases(templates)
    selection = without_suspects(select(hosts, exclude), with_suspects)
    budget_s = seconds(budget, "--budget") if budget else None
    plan = planned_suite(suite, selection, bases, budget_s)
    if dry_run or not plan.stages:
        _show(plan, len(selection.hosts), as_json)
        if not plan.stages:
            raise ConfigError("expected a stage that fits, there is none", where="--budget")
        return
    limits = Limits(lease_s=lease, grace_s=grace, first_line_s=first_line, stall_s=stall, wait_s=waiting_s(wait, wait_limit))
    finish(begun(plan, selection, bases, limits, budget_s=budget_s, accept_new=accept_new), sign, as_json)


def planned_suite(name: str, selection: Selection, bases: Sequence[Path], budget_s: float | None) -> SuitePlan:
    """Return what a suite, by name or file, measures on these hosts within a budget. Raises ConfigError."""
    from pathlib import Path

    from orchestrator.errors import ConfigError
    from orchestrator.plan.suite import suite_of
    from orchestrator.plan.suite_files import open_references, open_suite

    own = [folder for folder in (selection.project.root / "suites",) if folder.is_dir()]
    document = open_suite(name, own)
    devices = {host.device for host in selection.hosts}
    if len(devices) > 1:
        hint = "accept those with GPUs and those without apart: -x"
        raise ConfigError("expected hosts of one kind, got some with GPUs and some without", where="--hosts", hint=hint)
    suite = suite_of(document, Path(name).stem, devices.pop())
    stages, left_out = _planned(suite, document, selection, bases, budget_s)
    return SuitePlan(suite, document, tuple(open_references(own)), tuple(stages), left_out)


def begun(
    plan: SuitePlan,
    selection: Selection,
    bases: Sequence[Path],
    limits: Limits,
    *,
    budget_s: float | None,
    accept_new: bool,
) -> Acceptance:
    """Return the acceptance that carries a plan out; its folder exists."""
    import sys
    import time
    from pathlib import Path

    from orchestrator import __version__
    from orchestrator.cli.acceptance import Acceptance, earlier_of
    from orchestrator.record.acceptance import AcceptanceDir, AcceptanceRecord
    from orchestrator.yamlfile import read_text

    selection.project.prepare()
    suite = plan.suite
    record = AcceptanceRecord(
        acceptance_id=f"{new_bench_id()}-{suite.name}",
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        orch=__version__,
        argv=tuple(sys.argv),
        suite=suite.name,
        document=read_text(Path(plan.document.source)),
        references=tuple(read_text(Path(figures.source)) for figures in plan.references),
        device=selection.hosts[0].device,
        inventory=str(Path(selection.source).absolute()) if Path(selection.source).exists() else selection.source,
        hosts={host.name: host.address for host in selection.hosts},
        stages=tuple(stage.name for stage, _ in plan.stages),
        left_out=plan.left_out,
        budget_s=budget_s,
        templates=tuple(str(base.absolute()) for base in bases),
        notes=selection.notes,
        earlier=earlier_of(selection.project.runs, suite.name, selection.hosts),
    )
    folder = AcceptanceDir.create(selection.project.runs, record)
    typer.echo(f"acceptance: {folder.path}", err=True)
    for name, reason in plan.left_out.items():
        typer.echo(f"accept: {name} is left out: {reason}", err=True)
    return Acceptance(folder, selection, plan.document, suite, bases, limits, accept_new)


def gated(selection: Selection, suite: str, bases: Sequence[Path], limits: Limits, accept_new: bool) -> Selection:
    """Run a short suite on the hosts of a bench, and return the selection without those that fail.

    Raises Regression if what fails is not a node, or no host is left. An open verdict is named, and the bench goes on.
    """
    from orchestrator.cli.acceptance import certify
    from orchestrator.errors import Regression
    from orchestrator.report.accept import lines

    plan = planned_suite(suite, selection, bases, None)
    acceptance = begun(plan, selection, bases, limits, budget_s=None, accept_new=accept_new)
    acceptance.carry_out()
    certificate = certify(acceptance.folder)
    sealed(acceptance.folder, None)
    remember(selection.project, certificate)
    for line in lines(certificate):
        typer.echo(line, err=True)
    failed = [finding for finding in (*certificate.links, *certificate.cluster) if finding.verdict == "fail"]
    if failed:
        where = f"--gate {suite}"
        raise Regression(f"{failed[0].subject}: {failed[0].text}", kind="expectation_not_met", where=where)
    return without_suspects(selection)


def finish(acceptance: Acceptance, sign: Path | None, as_json: bool) -> None:
    """Carry an acceptance out, write its certificate, print it, and exit with its verdict."""
    from contextlib import suppress

    from orchestrator.cli.acceptance import certify
    from orchestrator.errors import OrchError
    from orchestrator.report.accept import lines, status

    folder = acceptance.folder
    try:
        acceptance.carry_out()
    except OrchError:
        with suppress(OrchError):  # the first error counts
            certify(folder)
        raise
    certificate = certify(folder)
    remember(acceptance.selection.project, certificate)
    archived = sealed(folder, sign)
    if as_json:
        print_json({**certificate.as_dict(), "path": str(folder.path), "archive": str(archived), "measured": {}})
    else:
        for line in lines(certificate):
            typer.echo(line)
        typer.echo(f"certificate: {folder.path / 'certificate.html'}, sealed in {archived}")
    if code := status(certificate):
        raise typer.Exit(code)


def go_on(folder: AcceptanceDir, *, accept_new: bool, retry_failed: bool, as_json: bool) -> None:
    """Finish an acceptance whose process is gone."""
    from contextlib import suppress
    from dataclasses import replace
    from pathlib import Path

    from orchestrator import yamlfile
    from orchestrator.cli.acceptance import Acceptance
    from orchestrator.errors import ConfigError, DataError
    from orchestrator.plan import Limits
    from orchestrator.plan.suite import suite_of

    record = folder.record()
    selection = select(record.inventory)
    known = {host.name: host for host in selection.hosts}
    if gone := [name for name in record.hosts if name not in known]:
        raise ConfigError(f"expected the hosts of the acceptance, {', '.join(gone)} are gone", where=record.inventory)
    selection = replace(selection, hosts=tuple(known[name] for name in record.hosts))
    document = yamlfile.loads(record.document, f"{folder.path.name}: suite")
    suite = suite_of(document, record.suite, record.device)
    bases = [Path(base) for base in record.templates]
    limits = Limits()
    for attempt in record.attempts:
        with suppress(DataError):
            limits = folder.bench(attempt.bench_id).record().limits or limits
    going_on = Acceptance(folder, selection, document, suite, bases, limits, accept_new, retry_failed)
    finish(going_on, None, as_json)


def sealed(folder: AcceptanceDir, sign: Path | None) -> Path:
    """Seal an acceptance into ``certificate.tar`` in its folder, replacing an earlier one, and sign it if a key is given."""
    from orchestrator.cli.sealing import contents, signed
    from orchestrator.record.acceptance import CERTIFICATE
    from orchestrator.record.archive import seal

    target = folder.path / f"{CERTIFICATE}.tar"
    for path in (target, target.with_name(f"{target.name}.sig")):
        path.unlink(missing_ok=True)
    archive = seal(folder, target, contents)
    typer.echo(f"seal {archive.seal}", err=True)
    if sign:
        signed(archive, target, sign)
    return target


def _planned(
    suite: Suite, document: Document, selection: Selection, bases: Sequence[Path], budget_s: float | None
) -> tuple[list[tuple[SuiteStage, Bench | None]], dict[str, str]]:
    """Return the stages that are possible and fit the budget, each with its bench, and why others are left out."""
    from orchestrator.cli.acceptance import bench_of
    from orchestrator.errors import ConfigError
    from orchestrator.plan.suite import fitted

    nodes = len(selection.hosts)
    benches: dict[str, Bench | None] = {}
    impossible: dict[str, str] = {}
    for stage in suite.stages:
        try:
            benches[stage.name] = None if stage.checks else bench_of(stage, document, selection.hosts, bases)
        except ConfigError as error:
            impossible[stage.name] = f"{error.where}: {error.message}" if error.where else error.message
    possible = [stage for stage in suite.stages if stage.name in benches]
    kept, left_out = fitted(
        [(stage, _estimate_s(stage, benches[stage.name], nodes)) for stage in possible], budget_s, impossible
    )
    return [(stage, benches[stage.name]) for stage in kept], left_out


def _estimate_s(stage: SuiteStage, bench: Bench | None, nodes: int) -> float:
    return stage.estimate_s(len(bench.planned()) if bench else 1, nodes)


def _show(plan: SuitePlan, nodes: int, as_json: bool) -> None:
    """Print what would be run, and what is left out."""
    from orchestrator.plan.words import shortest

    suite, plans, left_out = plan.suite, plan.stages, plan.left_out
    total_s = sum(_estimate_s(stage, bench, nodes) for stage, bench in plans)
    if as_json:
        stages = [
            {"name": stage.name, "title": stage.title, "estimate_s": _estimate_s(stage, bench, nodes),
             "runs": [run.run_id for run in bench.planned()] if bench else []}
            for stage, bench in plans
        ]  # fmt: skip
        print_json({"suite": suite.name, "nodes": nodes, "estimate_s": total_s, "stages": stages, "left_out": dict(left_out)})
        return
    typer.echo(f"{suite.name}: {suite.title}; {nodes} nodes, about {shortest(round(total_s))}")
    for stage, bench in plans:
        runs = (
            f"{len(bench.planned())} runs of {', '.join(dict.fromkeys(cell.shape for cell in bench.cells))}"
            if bench
            else "checks"
        )
        typer.echo(f"  {stage.name}: {stage.title}; {runs}, about {shortest(round(_estimate_s(stage, bench, nodes)))}")
        for bar in stage.bars:
            place = " ".join(f"{name}={value}" for name, value in bar.at.items())
            limits = [
                f"{share:.0%} slower than {than}" for share, than in ((bar.peers, "peers"), (bar.earlier, "before")) if share
            ]
            typer.echo(f"    bar: {' '.join(filter(None, (bar.metric, place)))}, at most {' and '.join(limits)}")
    for name, reason in left_out.items():
        typer.echo(f"  left out: {name}: {reason}")
