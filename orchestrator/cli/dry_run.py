"""What ``orch bench --dry-run`` prints: the plan, the origin of every value, and every file of every node. Contacts no host."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import typer

from orchestrator.checks.interfaces import with_interface, with_interfaces
from orchestrator.cli.options import Selection, print_json
from orchestrator.controller.earlier import earlier_times
from orchestrator.controller.stopping import plan_words
from orchestrator.inventory import Host, fold
from orchestrator.nodes.deploy import remembered_facts
from orchestrator.plan.bench import PORTS, Bench, PlannedRun, plan_run
from orchestrator.plan.placement import taken
from orchestrator.plan.render import Plan, folded, without_secrets
from orchestrator.record.manifest import manifest_of
from orchestrator.report.text import one_line, visible


def documents(plan: Bench, selection: Selection) -> list[dict[str, Any]]:
    """Return for each planned run its manifest and the files of every node, without secret values."""
    return [
        {**manifest_of(decided, run.folder, run.bench_id, {}), "nodes": [asdict(node) for node in decided.nodes]}
        for run, decided in _plans(plan, selection)
    ]


def _plans(plan: Bench, selection: Selection) -> list[tuple[PlannedRun, Plan]]:
    redaction, placed = selection.inventory.redaction(), {True: _with_interfaces(selection), False: selection.hosts}
    plans = [
        (
            run,
            plan_run(run.folder, run.spec, placed[run.spec.nodes > 1], run_id=run.run_id, repeat=run.repeat, port=PORTS.start),
        )
        for run in plan.planned()
    ]
    return [(run, without_secrets(decided, redaction)) for run, decided in plans]


def _with_interfaces(selection: Selection) -> list[Host]:
    """Return the hosts with the interfaces that the last deploy found where the inventory names none, as preflight will."""
    facts = with_interfaces(selection.hosts, remembered_facts(selection.project.deployed, selection.hosts))
    return [with_interface(host, facts.get(host.name, {})) for host in selection.hosts]


def _interfaces_said(plan: Bench, selection: Selection) -> list[str]:
    """Return which interface carries training traffic, and why, for hosts of which the inventory does not say it."""
    hosts = [host for host in taken(plan.cells, selection.hosts) if not host.vars.get("interface")]
    if not hosts or not any(spec.nodes > 1 for spec in plan.cells):
        return []
    facts = with_interfaces(selection.hosts, remembered_facts(selection.project.deployed, selection.hosts))
    by_text: dict[str, list[str]] = {}
    for host in hosts:
        interface = facts.get(host.name, {}).get("interface") or {}
        text = "is found by preflight, by route and speed; orch deploy remembers it for a dry run"
        if "why" in interface:
            text = f"{interface['name']}: {interface['why']} (seen by the last deploy; preflight looks again)"
        by_text.setdefault(text, []).append(host.name)
    return [f"interface of {fold(names)}: {text}" for text, names in by_text.items()]


def show_plan(plan: Bench, selection: Selection, as_json: bool) -> None:
    """Print a bench that is planned, as text or as JSON: a manifest and the files of every node for each run."""
    if as_json:
        print_json(documents(plan, selection))
        return
    plans = _plans(plan, selection)
    if words := plan_words(plan, earlier_times(selection.project.runs, plan)):
        typer.echo(f"plan: {words}")
    if plan.profile:
        typer.echo(f"then {len(plan.profiled())} runs that no table counts, with traces ({plan.profile})")
    for line in _interfaces_said(plan, selection):
        typer.echo(one_line(line))
    typer.echo(f"{len(plans)} runs; port {PORTS.start} stands for the port that is chosen when a run starts")
    for run, _ in plans:
        typer.echo(f"  {run.run_id}")
    if plan.skipped:
        typer.echo(f"{len(plan.skipped)} configurations are skipped, because they are impossible")
    for skipped in plan.skipped:
        typer.echo(one_line(f"  {skipped}: {skipped.reason}"))
    shown = set()
    for run, decided in plans:
        if repr(run.spec.as_dict()) in shown:
            continue
        shown.add(repr(run.spec.as_dict()))
        typer.echo(f"\n== {run.spec.framework} {run.spec.model} {run.spec.shape}, world size {run.spec.world_size}")
        for key, value in run.spec.as_dict().items():
            for name, setting in value.items() if key in ("options", "env") else ((None, value),):
                label = f"{key}.{name}" if name else key
                typer.echo(one_line(f"   {label} = {setting}  ({run.spec.origins.get(label, 'computed')})"))
        for slot in decided.placement.slots:
            ranks = f"ranks {slot.ranks.start}-{slot.ranks.stop - 1}"
            typer.echo(f"   node_rank {slot.node_rank}: {slot.host} ({slot.address}), {ranks}, devices {slot.devices}")
        for names, file in folded(decided.nodes):
            typer.echo(f"-- {fold(names)}: {file.path} ({file.mode:04o})")
            typer.echo(visible(file.content), nl=not file.content.endswith("\n"))
