"""Print ``orch bench --dry-run``: the plan, the origin of every value, and every file of
every node. Contacts no host.
"""

from __future__ import annotations

from collections.abc import Sequence

import typer

from orchestrator.api.prepare import plan_documents, recall_interfaces, render_plans
from orchestrator.api.selection import Selection
from orchestrator.cli.options import print_json
from orchestrator.controller.earlier_benches import earlier_times
from orchestrator.controller.stop_rule import plan_words
from orchestrator.inventory import Host, fold
from orchestrator.plan.bench import PORTS, Bench
from orchestrator.plan.placement import used_hosts
from orchestrator.plan.render import fold_files
from orchestrator.plural import plural
from orchestrator.report.text import one_line, visible


def _describe_interfaces(plan: Bench, selection: Selection, used: Sequence[Host]) -> list[str]:
    """Return lines on the interface that carries training traffic, and why, for hosts without one
    in the inventory.
    """
    hosts = [host for host in used if not host.vars.get("interface")]
    if not hosts or not any(spec.nodes > 1 for spec in plan.cells):
        return []
    facts = recall_interfaces(plan, selection)
    by_text: dict[str, list[str]] = {}
    for host in hosts:
        interface = facts.get(host.name, {}).get("interface") or {}
        text = "preflight chooses it by route and speed; after orch deploy a dry run shows it"
        if "why" in interface:
            text = f"{interface['name']}: {interface['why']} (seen by the last deploy; preflight looks again)"
        by_text.setdefault(text, []).append(host.name)
    return [f"interface of {fold(names)}: {text}" for text, names in by_text.items()]


def _describe_logins(hosts: Sequence[Host]) -> list[str]:
    """Return a line on the login for hosts with equal ones, as far as their inventory states it."""
    by_text: dict[str, list[str]] = {}
    for host in hosts:
        ssh = host.ssh
        stated = {"user": ssh.user, "port": ssh.port, "jump": ssh.jump, "key": ssh.key}
        words = [f"{key} {value}" for key, value in stated.items() if value is not None]
        if words and host.transport in ("ssh", "openssh"):
            by_text.setdefault(", ".join(words), []).append(host.name)
    return [f"login on {fold(names)}: {text}" for text, names in by_text.items()]


def show_plan(plan: Bench, selection: Selection, as_json: bool) -> None:
    """Print a bench that is planned, as text or as JSON: a manifest and the files of every node for
    each run.
    """
    if as_json:
        print_json(plan_documents(plan, selection))
        return
    of_runs = render_plans(plan, selection)
    words = plan_words(plan, earlier_times(selection.project.runs, plan))
    if words:
        typer.echo(f"plan: {words}")
    if plan.extra:
        count = len(plan.extra_runs())
        typer.echo(f"then extra runs with traces, which no table includes ({plan.extra}): {count}")
    hosts = used_hosts(plan.cells, selection.hosts)
    for line in (*_describe_logins(hosts), *_describe_interfaces(plan, selection, hosts)):
        typer.echo(one_line(line))
    typer.echo(
        f"{plural(len(of_runs), 'run')}; port {PORTS.start} stands for the rendezvous port that is chosen when a run starts"
    )
    for run, _ in of_runs:
        typer.echo(f"  {run.run_id}")
    if plan.skipped:
        count = len(plan.skipped)
        typer.echo(
            f"{count} configuration{'s are' if count > 1 else ' is'} skipped, because impossible:"
        )
    for skipped in plan.skipped:
        typer.echo(one_line(f"  {skipped}: {skipped.reason}"))
    shown = set()
    for run, decided in of_runs:
        if repr(run.spec.as_dict()) in shown:
            continue
        shown.add(repr(run.spec.as_dict()))
        typer.echo(
            f"\n== {run.spec.framework} {run.spec.model} {run.spec.shape}, world size {run.spec.world_size}"
        )
        for key, value in run.spec.as_dict().items():
            for name, setting in value.items() if key in ("options", "env") else ((None, value),):
                label = f"{key}.{name}" if name else key
                typer.echo(
                    one_line(f"   {label} = {setting}  ({run.spec.origins.get(label, 'computed')})")
                )
        for slot in decided.placement.slots:
            ranks = f"ranks {slot.ranks.start}-{slot.ranks.stop - 1}"
            typer.echo(
                f"   node_rank {slot.node_rank}: {slot.host} ({slot.address}), {ranks}, devices {slot.devices}"
            )
        for names, file in fold_files(decided.nodes):
            typer.echo(f"-- {fold(names)}: {file.path} ({file.mode:04o})")
            typer.echo(visible(file.content), nl=not file.content.endswith("\n"))
