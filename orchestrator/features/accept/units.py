"""The values that a bar is about, by node or device: from the rows of a bench, where a metric keeps
nodes or ranks apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.features.accept.suite import Bar
from orchestrator.plan.option_values import as_written
from orchestrator.record import BenchDir
from orchestrator.record.manifest import Manifest, read_manifest
from orchestrator.results import RunResult
from orchestrator.results.entries import Row
from orchestrator.results.expectations import values_at
from orchestrator.results.hardware import device_names, devices_of_node
from orchestrator.results.summary import Summary

CLUSTER = "cluster"
"""The name of the only unit of a metric that is about all nodes together."""
UNNAMED = "devices of unknown name"
_APART = ("rank", "node")
_OF_SHAPE = ("nodes", "gpus", "world_size")


@dataclass(frozen=True, slots=True)
class Unit:
    """A node or device, or all nodes together (``kind`` is node or cluster), and its values over
    the repeats. ``device`` is the name of what computed, empty if a node has several kinds or they
    are not known."""

    kind: str
    name: str
    hosts: tuple[str, ...]
    values: tuple[float, ...]
    device: str


@dataclass(frozen=True, slots=True)
class Group:
    """The units of one metric at one place, such as the matrices of one size in one type.

    ``at`` has the values that name the place, ``key`` the metric's keys and the values in which
    configurations of the bench differ. ``spec`` identifies the spec, so that another acceptance can
    be compared. ``runs`` are the ids of the good runs, ``loaded`` the hosts whose processors others
    used during any of them.
    """

    framework: str
    model: str
    metric: str
    unit: str
    lower_is_better: bool
    at: Mapping[str, str]
    key: Mapping[str, str]
    shape: str
    spec: Mapping[str, Any]
    units: tuple[Unit, ...]
    runs: tuple[str, ...]
    loaded: frozenset[str] = frozenset()

    @property
    def title(self) -> str:
        """Framework, metric and place in words."""
        place = " ".join(f"{name}={value}" for name, value in self.key.items())
        return " ".join(
            filter(
                None,
                (
                    self.framework,
                    self.model if self.model != self.framework else "",
                    self.metric,
                    place,
                ),
            )
        )


def groups_of(
    bench: BenchDir, summary: Summary, results: Sequence[RunResult], bar: Bar
) -> list[Group]:
    """Return the groups of units that a bar is about; none if no run has a number of its metric."""
    by_id = {run.run_id: run for run in results}
    of_metric = [
        (row, values_at(row, by_id[row.run_ids[0]]))
        for row in summary.rows
        if row.metric == bar.metric and row.n and row.value is not None
    ]
    specs = []
    for row, values in of_metric:
        specs.append({name: text for name, text in values.items() if name not in row.key})
    differing = []
    for name in _names(specs):
        if name not in _OF_SHAPE and len({spec.get(name) for spec in specs}) > 1:
            differing.append(name)
    rows: dict[str, list[Row]] = {}
    for row, values in of_metric:
        if all(values.get(name) == value for name, value in bar.at.items()):
            place = {name: value for name, value in values.items() if name not in _APART}
            rows.setdefault(repr((row.simulated, sorted(place.items()))), []).append(row)
    return [_group(bench, of_place, by_id, differing) for of_place in rows.values()]


def _names(specs: Sequence[Mapping[str, str]]) -> dict[str, None]:
    return dict.fromkeys(name for spec in specs for name in spec)


def _group(
    bench: BenchDir, rows: Sequence[Row], by_id: Mapping[str, RunResult], differing: Sequence[str]
) -> Group:
    first = rows[0]
    run = by_id[first.repeats[0].run_id]
    manifest = read_manifest(bench.run(run.run_id))
    units = []
    for row in rows:
        kind, name, hosts = _name_unit(row.key, manifest)
        device = _device(run, hosts)
        units.append(Unit(kind, name, hosts, tuple(repeat.value for repeat in row.repeats), device))
    at = {name: value for name, value in values_at(first, run).items() if name not in _APART}
    key = {name: as_written(value) for name, value in first.key.items() if name not in _APART}
    return Group(
        first.framework,
        first.model,
        first.metric,
        first.unit,
        first.better == "lower",
        at,
        {**key, **{name: at[name] for name in differing if name in at}},
        first.shape,
        manifest.spec.as_dict(),
        tuple(units),
        tuple(repeat.run_id for repeat in first.repeats),
        frozenset(host for repeat in first.repeats for host in by_id[repeat.run_id].loaded),
    )


def _device(run: RunResult, hosts: Sequence[str]) -> str:
    """Return the name of the devices of these hosts: what all ranks said, or the facts of each host
    if they differ.
    """
    names = set(device_names(run.observed.get("devices")))
    if len(names) > 1:
        names = {name for host in hosts for name in devices_of_node(run.nodes.get(host))}
    return names.pop() if len(names) == 1 else ""


def _name_unit(key: Mapping[str, Any], manifest: Manifest) -> tuple[str, str, tuple[str, ...]]:
    """Return kind and name of the node or device that a row is about, and its hosts."""
    if "node" in key:
        return "node", str(key["node"]), (str(key["node"]),)
    if "rank" not in key:
        return CLUSTER, CLUSTER, tuple(manifest.hosts)
    for slot in manifest.slots:
        if key["rank"] in slot.ranks:
            local = f" device {int(key['rank']) - slot.ranks.start}" if len(slot.ranks) > 1 else ""
            return "node", f"{slot.host}{local}", (slot.host,)
    return "node", f"rank {key['rank']}", ()
