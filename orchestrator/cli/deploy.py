"""`orch deploy` and `orch check`: stage the files of a run on the nodes, and check that the nodes
are fit for one.
"""

from __future__ import annotations

import os
import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.api.connection_cache import ConnectionCache
from orchestrator.cli import complete
from orchestrator.cli.options import (
    AcceptNew,
    Debug,
    Exclude,
    Hosts,
    Json,
    Templates,
    open_frameworks,
    print_json,
    select,
    template_bases,
)
from orchestrator.cli.unreachable import Devices, SkipUnreachable, select_reachable
from orchestrator.plan.option_values import words
from orchestrator.plural import plural

if TYPE_CHECKING:
    from collections.abc import Sequence

    from orchestrator.checks import Check
    from orchestrator.inventory import Host
    from orchestrator.nodes.cluster import Cluster
    from orchestrator.plan.folders import FrameworkFolder

Framework = Annotated[
    str,
    typer.Option(
        "--framework",
        "-f",
        metavar="NAMES",
        autocompletion=complete.frameworks,
        help="Frameworks to stage or check.",
    ),
]


def deploy(
    hosts: Hosts = "",
    exclude: Exclude = "",
    framework: Framework = "pytorch",
    skip_unreachable: SkipUnreachable = False,
    accept_new: AcceptNew = False,
    debug: Debug = False,
    templates: Templates = None,
    as_json: Json = False,
) -> None:
    """Stage the node runner and payloads on every node, capture facts, and remember the inventory
    for this project.

    Safe to repeat: files are named by their content and sent only if missing. Facts are captured
    again only on nodes that have changed since the last deploy.
    """
    from orchestrator.inventory import fold
    from orchestrator.nodes.deploy import deploy as deploy_to
    from orchestrator.record.deploys import Memory

    folders = open_frameworks(words(framework, "--framework"), template_bases(templates))
    selection = select(hosts, exclude)
    selection.project.prepare()
    memory = Memory(selection.project.deployed, folders)
    with ConnectionCache() as opened:
        if skip_unreachable:
            selection = select_reachable(selection, accept_new, opened)
        sent, facts, unchanged = deploy_to(opened.of(selection, accept_new).open(), folders, memory)
    checks = _judge(selection.hosts, folders, facts)
    if not os.environ.get(
        "ORCH_LAB"
    ):  # a lab's inventory ends with the lab, and must not take the place of the project's own
        selection.project.remember(selection.remembered)
    last = facts[folders[-1].framework.name]
    if as_json:
        print_json(
            {"sent_bytes": sent, "facts": last, "checks": [_plain(check) for check in checks]}
        )
        return
    for name, by_host in sent.items():
        fresh = [host for host, count in by_host.items() if count]
        unsent = [host for host, count in by_host.items() if not count]
        if fresh:
            typer.echo(f"{name}: {max(by_host.values())} bytes to {fold(fresh)}")
        if unsent:
            typer.echo(f"{name}: already on {fold(unsent)}")
    if unchanged:
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(min(unchanged.values())))
        typer.echo(
            f"{fold(unchanged)}: same boot, driver, interpreter and packages as at {since}; orch check captures all facts again"
        )
    _print(checks, last)
    failed = [check for check in checks if check.verdict == "failed"]
    if failed:
        typer.echo(
            f"orch: everything is deployed, but {plural(len(failed), 'check')} failed: orch check"
            " ends with exit status 3, and a bench on these hosts would be refused",
            err=True,
        )


def check(
    hosts: Hosts = "",
    exclude: Exclude = "",
    framework: Framework = "pytorch",
    only: Annotated[
        str,
        typer.Option(
            "--only",
            metavar="NAMES",
            autocompletion=complete.checks,
            help="Run only these checks, such as ecc,route; reach: connect, log in, run `true`.",
        ),
    ] = "",
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            help="Audit the hosts too: PCIe, kernel, drivers, versions with advisories, NCCL_*.",
        ),
    ] = False,
    devices: Devices = None,
    listing: Annotated[
        bool,
        typer.Option(
            "--list",
            help="List all checks: id, what each reads and expects, its severity, the cure.",
        ),
    ] = False,
    skip_unreachable: SkipUnreachable = False,
    accept_new: AcceptNew = False,
    debug: Debug = False,
    templates: Templates = None,
    as_json: Json = False,
) -> None:
    """Check that every node is reachable and fit for a run. Exits with 3 if a check fails."""
    from orchestrator.feature import providers
    from orchestrator.nodes.fanout import each_or_raise

    named = _check_names(only)
    if listing:
        _list_checks(named, as_json)
        return
    folders = []
    if named != {"reach"}:
        folders = open_frameworks(words(framework, "--framework"), template_bases(templates))
    selection = select(hosts, exclude, devices=devices or [])
    with ConnectionCache() as opened:
        if skip_unreachable:
            selection = select_reachable(selection, accept_new, opened)
        cluster = opened.of(selection, accept_new).open()
        if "reach" in named:
            each_or_raise(cluster.nodes, partial(_reach, cluster))
        captured = _capture(cluster, folders) if folders else {}
        facts = captured[folders[-1].framework.name] if folders else {}
        audits = [
            auditor.audit(cluster, facts)
            for auditor in providers("host_audit")
            if audit or named & {entry.name for entry in auditor.CATALOGUE}
        ]
    kinds = {folder.framework.name: "framework" for folder in folders}
    judged = _judge(selection.hosts, folders, captured) if folders else []
    judged += [check for _, found in audits for check in found]
    checks = [check for check in judged if not named or kinds.get(check.name, check.name) in named]
    if as_json:
        told = {"audit": {host: said for told, _ in audits for host, said in told.items()}}
        shown = [_plain(check) for check in checks]
        print_json({"facts": facts, "checks": shown, **(told if audits else {})})
    else:
        if "reach" in named:
            count = len(selection.hosts)
            typer.echo(f"reached {'all ' if count > 1 else ''}{plural(count, 'host')}")
        if folders:
            _print(checks, {} if named else facts)
    if any(check.verdict == "failed" for check in checks):
        raise typer.Exit(3)


def _check_names(only: str) -> set[str]:
    """Return the names of the requested checks; an empty set stands for all."""
    from orchestrator.checks.catalogue import all_entries
    from orchestrator.errors import ConfigError, nearest

    chosen = words(only, "--only")
    names = tuple(entry.name for entry in all_entries()) if chosen else ()
    for name in chosen:
        if name not in names:
            hint = f"the checks are {', '.join(names)}{nearest(name, names)}"
            raise ConfigError(f"expected names of checks, got {name!r}", where="--only", hint=hint)
    return set(chosen)


def _list_checks(named: set[str], as_json: bool) -> None:
    """Print the entries of these checks, or of all."""
    from orchestrator.checks.catalogue import all_entries
    from orchestrator.report.checks import print_catalogue

    entries = [entry for entry in all_entries() if not named or entry.name in named]
    if as_json:
        print_json([entry.as_dict() for entry in entries])
    else:
        print_catalogue(entries)


def _reach(cluster: Cluster, name: str) -> None:
    from orchestrator.errors import RunError

    done = cluster.nodes[name].transport.run(["true"], timeout_s=30)
    if done.code:
        output = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-200:]
        hint = "does the login shell of this user run commands? getent passwd shows it"
        raise RunError(
            f"expected `true` to end with 0, got {done.code}: {output}",
            kind="node_unfit",
            host=name,
            hint=hint,
        )


def _capture(cluster: Cluster, folders: Sequence[FrameworkFolder]) -> dict[str, dict[str, Any]]:
    """Return the facts of every host by framework. Raise Faults if a host does not answer, or two
    hosts are one machine.
    """
    from orchestrator.checks import same_machine
    from orchestrator.errors import Faults
    from orchestrator.nodes.preflight import capture

    captured: dict[str, dict[str, Any]] = {}
    for folder in folders:
        facts, errors = capture(cluster, folder.framework)
        if faults := [*errors.values(), *same_machine(facts)]:
            raise Faults(faults)
        captured[folder.framework.name] = facts
    return captured


def _judge(
    hosts: Sequence[Host], folders: Sequence[FrameworkFolder], facts: dict[str, dict[str, Any]]
) -> list[Check]:
    """Return every check of each host and of the hosts together, without duplicates."""
    from orchestrator.checks.judge import among, judge

    checks: list[Check] = []
    for folder in folders:
        by_host = facts[folder.framework.name]
        checks += [
            check
            for host in hosts
            for check in judge(host, by_host[host.name], folder.framework, None)
        ]
        checks += among(by_host, hosts)
    return list(dict.fromkeys(checks))


def _plain(check: Check) -> dict[str, str]:
    from dataclasses import asdict

    return asdict(check)


def _print(checks: Sequence[Check], facts: dict[str, Any]) -> None:
    """Print the checks as a table, one row for hosts with equal results, followed by all facts that
    differ between hosts.
    """
    from orchestrator.checks.differences import fold_differences
    from orchestrator.report.checks import table
    from orchestrator.report.text import one_line

    table(checks)
    for line in fold_differences(facts):
        typer.echo(one_line(line))
