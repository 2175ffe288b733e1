"""Findings that need no measurement: checks of every node, links between nodes, and failed runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from orchestrator.errors import DataError
from orchestrator.features.accept.failure_rate import describe_failures
from orchestrator.features.accept.units import CLUSTER
from orchestrator.features.accept.verdicts import FAIL, UNDECIDED, Finding, Judged
from orchestrator.inventory import fold
from orchestrator.logs.failures import LAST_OUTPUT
from orchestrator.plural import plural, times
from orchestrator.record import BenchDir
from orchestrator.record.refusals import errors_before_runs, errors_between_runs
from orchestrator.results import RunResult
from orchestrator.results.links.pair_verdicts import Group, host_of, measured_groups
from orchestrator.results.lost_links import lost_link_notes, reaches_nodes

_ABOUT_THE_NODE = {
    "alike", "ecc", "xid", "modes", "pcie", "links", "infiniband", "gdr", "interface", "route", "hostname", "cuda", "shm",
    "limits",
}  # fmt: skip
"""Checks whose warnings are about the node itself. Warnings of others, such as its load, pass."""
_BY_OTHERS = ("interrupted", "node_busy", "not_verified")
"""Kinds of errors that say nothing of what a node is."""
_ASKED, _ASKED_ON_CPU = 2.0, 10.0
"""A measurement of links that could not have named a node or link this many times slower decides
nothing.
"""
_DECIDES = "more steps of pairs, on otherwise idle nodes"


def is_chosen(check: str, names: Sequence[str]) -> bool:
    """Return whether a stage that inspects nodes judges them by a check.

    It does if it names the check; whether a node answers is always judged.
    """
    return check == "reach" or "all" in names or check in names


def by_checks(
    stage: str, checks: Sequence[Mapping[str, str]], names: Sequence[str], hosts: Sequence[str]
) -> Judged:
    """Judge each node by its checks: those named, or ``all``. A failed check fails; a warning about
    the node leaves it open.
    """
    chosen = [check for check in checks if is_chosen(check["name"], names)]
    findings = []
    for check in chosen:
        is_open = check["verdict"] == "warning" and check["name"] in _ABOUT_THE_NODE
        if check["verdict"] == "failed" or is_open:
            text = f"{check['name']}: expected {check['expected']}, found {check['found']}"
            decides = ""
            if is_open:
                decides = (
                    f"{check['hint']}; or state the right value under expect: in the inventory"
                )
            findings.append(
                Finding(
                    "node",
                    check["host"],
                    (check["host"],),
                    UNDECIDED if is_open else FAIL,
                    text,
                    decides,
                )
            )
    rest = sorted(
        {check["name"] for check in chosen if check["verdict"] == "warning"} - _ABOUT_THE_NODE
    )
    got = f"{plural(len(chosen), 'check')} on {plural(len(hosts), 'node')}" + (
        f"; warnings of {', '.join(rest)} are not judged" if rest else ""
    )
    return Judged(stage, "checks", "no check fails, and no node differs from most", got, "docs/preflight.md", tuple(hosts),
                  tuple(findings))  # fmt: skip


def by_links(stage: str, results: Sequence[RunResult], on_cpu: bool) -> Iterator[Judged]:
    """Judge nodes and links, or devices and links of each node, by the times of all pairs; nothing
    where two ends are the only pair.
    """
    for group in measured_groups(results):
        if len(group.names) > 2:
            yield _by_links_of(stage, results, on_cpu, group)


def _by_links_of(
    stage: str,
    results: Sequence[RunResult],
    on_cpu: bool,
    group: Group,
) -> Judged:
    """Judge the ends of a group of pairs, and their links."""
    result, names = group.culprits(), group.names
    hosts = tuple(dict.fromkeys(map(host_of, names)))
    kind, network = ("node", "network") if len(hosts) > 1 else ("device", "copies between devices")
    runs = tuple(run.run_id for run in results if run.is_good)
    findings = []
    for score in result.nodes:
        if score.named:
            reach = f"95 %: {score.interval.low:.1f} to {score.interval.high:.1f}"
            text = f"{network}: {score.slower:.1f}x slower to {score.slow_to} of {score.partners} partners ({reach})"
            name = names[score.node]
            findings.append(Finding(kind, name, (host_of(name),), FAIL, text, "", runs))
    for link in result.links:
        if link.named:
            ends = tuple(names[node] for node in link.pair)
            reach = f"95 %: {link.interval.low:.1f} to {link.interval.high:.1f}"
            text = f"{link.slower:.1f}x slower than its {kind}s explain ({reach})"
            both = tuple(dict.fromkeys(map(host_of, ends)))
            findings.append(Finding("link", f"{ends[0]} to {ends[1]}", both, FAIL, text, "", runs))
    if result.boundary:
        sides = " and ".join(
            fold(names[node] for node in group) for group in result.boundary.groups
        )
        text = f"between {sides}: {result.boundary.slower:.1f}x slower than within them, as across two switches"
        findings.append(Finding("cluster", CLUSTER, hosts, FAIL, text, "", runs))
    asked = _ASKED_ON_CPU if on_cpu else _ASKED
    of_node, of_link = (
        f"{math.ceil(round(10 * times, 6)) / 10:.1f}x"
        for times in (result.seen_node, result.seen_link)
    )
    power = f"a {kind} {of_node} slower, or a link {of_link}, would have been found"
    worst = max((score.slower for score in result.nodes), default=1.0)
    of_worst = max((link.slower for link in result.links), default=1.0)
    got = f"{power}; measured: {kind}s at most {worst:.2f}x, {len(result.links)} links at most {of_worst:.2f}x slower"
    has_failed = bool(findings)
    for score in result.nodes:
        if not score.named and score.slower > asked:
            text = f"{network}: {score.slower:.1f}x slower, which noise alone may do here"
            name = names[score.node]
            findings.append(Finding(kind, name, (host_of(name),), UNDECIDED, text, _DECIDES, runs))
    if max(result.seen_node, result.seen_link) > asked and not has_failed:
        text = f"{network}: one {asked:g}x slower may be missed: {power}, by the noise of {result.sweeps} sweeps"
        findings.append(Finding("cluster", CLUSTER, hosts, UNDECIDED, text, _DECIDES, runs))
    bar = f"no {kind}'s {network} and no link is certainly slower than the others, where one {asked:g}x slower is found"
    return Judged(stage, "links", bar, got, "docs/pairs.md", hosts, tuple(findings), power=power)


def by_lost_links(stage: str, results: Sequence[RunResult], hosts: Sequence[str]) -> Judged:
    """Judge each node by whether an interface lost its link while runs were made, failed ones too.
    Where a third of the nodes or more did, and two at least, what they are connected to is the
    cause and not each of them. An interface that leads to no other node of the acceptance leaves
    the verdict open."""
    counts: dict[str, dict[str, int]] = {}
    for run in results:
        for host, by_interface in run.lost_links.items():
            for interface, count in by_interface.items():
                of_host = counts.setdefault(host, {})
                of_host[interface] = of_host.get(interface, 0) + count
    facts = {host: values for run in results for host, values in run.facts.items()}
    runs = tuple(run.run_id for run in results if run.lost_links)
    used = {}
    for host, names in counts.items():
        used[host] = [name for name in names if reaches_nodes(name, facts.get(host, {}))]
    affected = [host for host, names in used.items() if names]
    findings = []
    if len(affected) >= max(2, len(hosts) / 3):
        text = "; ".join(
            lost_link_notes(
                {host: {name: counts[host][name] for name in used[host]} for host in affected}
            )
        )
        findings.append(
            Finding(
                "cluster",
                CLUSTER,
                tuple(affected),
                FAIL,
                f"{text}: check what they are connected to, such as a common switch",
                "",
                runs,
            )
        )
        affected = []
    for host, names in counts.items():
        for name, count in names.items():
            text = f"{name} lost its link {times(count)} during its runs"
            if name not in used[host]:
                decides = "check its cable if jobs use it: no route from it leads to these nodes"
                findings.append(Finding("node", host, (host,), UNDECIDED, text, decides, runs))
            elif host in affected:
                findings.append(Finding("node", host, (host,), FAIL, text, "", runs))
    lost = sum(count for names in counts.values() for count in names.values())
    got = "no link was lost"
    if lost:
        got = f"links were lost {times(lost)}, on {len(counts)} of {len(hosts)} nodes"
    return Judged(stage, "lost links", "no network interface loses its link during a run", got, "docs/accept.md",
                  tuple(hosts), tuple(findings))  # fmt: skip


def by_runs(
    stage: str,
    bench: BenchDir,
    results: Sequence[RunResult],
    hosts: Sequence[str],
    blames: Callable[[str, RunResult | None], bool],
) -> Judged:
    """Judge a bench by whether its runs came to their end.

    A node that a refusal names is to blame. A node that a failed run names, or that kept a further
    run from beginning (None), is to blame if such runs succeeded without it (``blames``): a program
    that fails everywhere names any node.
    """
    findings = []
    for error in errors_before_runs(bench):
        if error.kind != "interrupted":
            refused = _failure(error.host, f"refused before its first run: {error.message}", ())
            is_open = error.kind == "node_busy"  # whoever holds it, it is not the node's fault
            findings.append(
                replace(refused, verdict=UNDECIDED, decides="wait until it is free")
                if is_open
                else refused
            )
    for error in errors_between_runs(bench):
        if error.kind not in _BY_OTHERS and not isinstance(error, DataError):
            text = f"refused before a further run: {error.message}"
            is_to_blame = blames(error.host, None)
            findings.append(
                _failure(
                    error.host if is_to_blame else "",
                    text if is_to_blame else f"{error.host}: {text}",
                    (),
                )
            )
    failed: dict[tuple[str, str], list[str]] = {}
    said: dict[tuple[str, str], str] = {}
    for run in results:
        if run.has_failed:
            failure = run.error
            words = f"run failed: {failure.message if failure else 'no number'}"
            cause = failure.cause if failure else ""
            is_own = cause.startswith(
                LAST_OUTPUT
            )  # it may differ between programs that fail alike; the first one's is shown
            words += f": {cause}" if cause and not is_own else ""
            host = failure.host if failure else ""
            is_to_blame = not isinstance(failure, DataError) and blames(host, run)
            named = (host, words) if is_to_blame or not host else ("", f"{host}: {words}")
            failed.setdefault(named, []).append(run.run_id)
            said.setdefault(named, f": {cause}" if is_own else "")
    for named, runs in failed.items():
        host, words = named
        words += f", in {len(runs)} runs" if len(runs) > 1 else ""
        findings.append(_failure(host, words + said[named], tuple(runs)))
    good = sum(run.is_good for run in results)
    planned = len(bench.record().runs)
    if good < planned and not findings:
        text = f"{planned - good} of {planned} runs have no number yet"
        findings.append(
            Finding(
                "cluster",
                CLUSTER,
                tuple(hosts),
                UNDECIDED,
                text,
                f"orch resume {bench.path.parent.name}",
            )
        )
    got = f"{good} of {planned} runs have a number"
    if often := describe_failures(bench, results):
        got += f"; {often}"
    return Judged(stage, "runs", "every run ends with a number", got,
                  "docs/reliability.md", tuple(hosts), tuple(findings))  # fmt: skip


def _failure(host: str, text: str, runs: tuple[str, ...]) -> Finding:
    kind = "node" if host else "cluster"
    return Finding(kind, host or CLUSTER, (host,) if host else (), FAIL, text, "", runs)
