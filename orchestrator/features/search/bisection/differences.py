"""How two measured cells differ: what a run can have either way, and what no run can, each
likeliest cause first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.analysis.compare import known_differences
from orchestrator.analysis.compare.benches import DIGITS
from orchestrator.analysis.compare.causes import Distinction, by_weight
from orchestrator.analysis.compare.cells import FASTER, SLOWER, CellPair, compare_cells
from orchestrator.errors import ConfigError
from orchestrator.features.search.bisection.state import applied
from orchestrator.features.search.record import BisectRecord, Difference, Fixed, SideRecord
from orchestrator.inventory import Host, Inventory
from orchestrator.inventory.secrets import SHOWN
from orchestrator.plan import RunSpec
from orchestrator.plan.folders import FrameworkFolder
from orchestrator.plan.placement import place
from orchestrator.plan.spec import as_written
from orchestrator.plan.variables import check_variable
from orchestrator.record import BenchDir
from orchestrator.record.manifest import Manifest, read_manifest
from orchestrator.results import Cell

__all__ = ["Sides", "Today", "sides"]

_FIELDS = ("dtype", "batch_size", "loader", "steps", "warmup_steps")
_NO_PART = (
    "node_runner",
    "orch",
    "inventory",
    "command",
    "timeout_s",
    "metric",
    "hosts",
    "follows",
    "step",
)
"""What is not listed as a difference: it takes no part in a step, or follows from what is listed.
"""
_WHY = {
    "container": "all runs of a bench use one container; both sides run in A's",
    "device": "the hosts have one device",
    "load": "what other processes did on the nodes cannot be repeated",
}
_OTHERWISE = "no option sets it"


@dataclass(frozen=True, slots=True)
class Today:
    """What the runs of a bisect are made with: a framework folder, and the hosts of an inventory."""

    folder: FrameworkFolder
    inventory: Inventory
    hosts: tuple[Host, ...]


@dataclass(frozen=True, slots=True)
class Sides:
    """A bisect before its first run: its record, the specs of A and B as they run today, and the
    hosts that they need.
    """

    record: BisectRecord
    a: RunSpec
    b: RunSpec
    hosts: tuple[Host, ...]


@dataclass(frozen=True, slots=True)
class _Side:
    bench: BenchDir
    cell: Cell
    manifest: Manifest

    @property
    def hosts(self) -> list[str]:
        return self.manifest.hosts


def sides(benches: tuple[BenchDir, BenchDir], pair: tuple[Cell, Cell], today: Today) -> Sides:
    """Return what a bisect of two cells with numbers has to know. Raise ConfigError if A or B
    cannot be run today.
    """
    (compared_pair,) = compare_cells([pair])
    first, second = (_side(bench, cell) for bench, cell in zip(benches, pair, strict=True))
    changed: list[Difference] = []
    fixed: list[Fixed] = []
    hosts = _hosts(first, second, today, changed, fixed)
    _spec(first.cell.spec, second.cell.spec, today, changed, fixed)
    _variables(first, second, today.inventory, hosts, changed, fixed)
    listed = {difference.name for difference in changed} | {difference.name for difference in fixed}
    for known in known_differences(benches, [pair]):
        kind = known.name.partition(".")[0]
        is_of_hosts = kind == "node" and "hosts" in listed
        if (
            known.name not in listed
            and not is_of_hosts
            and kind not in (*_NO_PART, "options", "env")
        ):
            why = (
                _of_code(known, today)
                if kind in ("template", "payload")
                else _WHY.get(kind, _OTHERWISE)
            )
            fixed.append(Fixed(known.name, known.before, known.after, why))
    differences = tuple(by_weight(changed))
    timeout_s = max(first.cell.spec.timeout_s, second.cell.spec.timeout_s)
    base = replace(_today(first.cell.spec, today), hosts=(), timeout_s=timeout_s)
    a, b = (
        applied(base, today.folder.framework, dict.fromkeys(differences, taken), _origins(benches))
        for taken in (0, 1)
    )
    for spec in (a, b):
        place(spec, hosts, 0)
    return Sides(
        _record(compared_pair, first, second, differences, tuple(by_weight(fixed))), a, b, hosts
    )


def _origins(benches: tuple[BenchDir, BenchDir]) -> tuple[str, str]:
    return f"A, {benches[0].record().bench_id}", f"B, {benches[1].record().bench_id}"


def _side(bench: BenchDir, cell: Cell) -> _Side:
    return _Side(bench, cell, read_manifest(bench.run(cell.with_number[0].run_id)))


def _record(
    pair: CellPair,
    first: _Side,
    second: _Side,
    differences: tuple[Difference, ...],
    fixed: tuple[Fixed, ...],
) -> BisectRecord:
    before, after = (
        SideRecord(side.bench.record().bench_id, pair.case, half.typical or 0.0, half.n)
        for side, half in ((first, pair.before), (second, pair.after))
    )
    metric = first.cell.metric
    verdict = pair.verdict if pair.verdict in (FASTER, SLOWER) else ""
    return BisectRecord(
        before,
        after,
        metric.name,
        tuple(first.cell.metric_key),
        metric.unit,
        metric.better,
        verdict,
        differences,
        fixed,
    )


def _hosts(
    first: _Side, second: _Side, today: Today, changed: list[Difference], fixed: list[Fixed]
) -> tuple[Host, ...]:
    """Return the hosts that the runs need, A's first, and note a difference of hosts."""
    there = {host.name: host for host in today.hosts}
    names = [side.hosts for side in (first, second) if set(side.hosts) <= there.keys()]
    if first.hosts != second.hosts:
        texts = ",".join(first.hosts), ",".join(second.hosts)
        if len(names) == 2:
            changed.append(Difference("hosts", *texts))
        else:
            fixed.append(Fixed("hosts", *texts, "not all of them are in the inventory"))
    if not names:
        return today.hosts
    used = dict.fromkeys(name for side in names for name in side)
    return tuple(there[name] for name in used)


def _spec(
    before: RunSpec, after: RunSpec, today: Today, changed: list[Difference], fixed: list[Fixed]
) -> None:
    """Note the differences of two specs, without those of variables."""
    for name in ("framework", "model", "device"):
        if getattr(before, name) != getattr(after, name):
            message = f"expected cells of one {name}, got {getattr(before, name)} and {getattr(after, name)}"
            raise ConfigError(message, where="A, B", hint="orch compare shows how they differ")
    if before.follows != after.follows:
        fixed.append(
            Fixed(
                "follows",
                before.follows,
                after.follows,
                "one bench cannot measure both strong and weak scaling",
            )
        )
    fields = {name: (getattr(before, name), getattr(after, name)) for name in _FIELDS}
    names = dict.fromkeys([*before.options, *after.options])
    options = today.folder.framework.options
    for name in names:
        values = tuple(
            spec.options.get(name, options[name].default if name in options else None)
            for spec in (before, after)
        )
        if name in options:
            fields[f"options.{name}"] = (values[0], values[1])
        elif values[0] != values[1]:
            why = f"today's {today.folder.framework.name} has no such option"
            fixed.append(
                Fixed(f"options.{name}", as_written(values[0]), as_written(values[1]), why)
            )
    follower = before.follows
    changed.extend(
        Difference(name, *values)
        for name, values in fields.items()
        if values[0] != values[1] and name != follower
    )


def _variables(
    first: _Side,
    second: _Side,
    inventory: Inventory,
    hosts: Sequence[Host],
    changed: list[Difference],
    fixed: list[Fixed],
) -> None:
    """Note the variables of the two sides, of hosts and of specs, that differ; a spec's value wins
    over that of a host.
    """
    effective = [_effective(side) for side in (first, second)]
    for name in dict.fromkeys([*effective[0], *effective[1]]):
        of_sides = [of_side.get(name, {None}) for of_side in effective]
        if of_sides[0] == of_sides[1]:
            continue
        texts = [
            ", ".join(sorted("not set" if value is None else str(value) for value in own))
            for own in of_sides
        ]
        if why := _why_not(name, of_sides, inventory, hosts):
            shown = ["(secret)"] * 2 if "secret" in why else texts
            fixed.append(Fixed(f"env.{name}", shown[0], shown[1], why))
            continue
        before, after = (
            None if own == {None} else text for own, text in zip(of_sides, texts, strict=True)
        )
        changed.append(Difference(f"env.{name}", before, after))


def _why_not(
    name: str, of_sides: Sequence[set[Any]], inventory: Inventory, hosts: Sequence[Host]
) -> str:
    """Return why a run cannot have a variable either way; empty if it can. ``of_sides``: its values
    on the hosts of each.
    """
    if inventory.is_secret(name) or any(
        str(value).startswith(SHOWN) for own in of_sides for value in own
    ):
        return "its value is secret"
    if any(len(own) > 1 for own in of_sides):
        return "its value differs between the hosts of one side"
    if {None} in of_sides and (by := [host.name for host in hosts if name in host.env]):
        return f"the inventory sets it on {', '.join(by)} today, and a run cannot unset it"
    try:
        check_variable(name, "")
    except ConfigError as error:
        return error.message
    return ""


def _effective(side: _Side) -> dict[str, set[Any]]:
    """Return the values that the hosts of a side had of each variable, None on a host without it."""
    planned = side.bench.record().planned_with
    of_hosts: dict[str, Mapping[str, Any]] = {
        host: planned.hosts.get(host, {}).get("env", {}) if planned else {} for host in side.hosts
    }
    names = dict.fromkeys(
        [*(name for env in of_hosts.values() for name in env), *side.cell.spec.env]
    )
    own = side.cell.spec.env
    return {
        name: {own[name]} if name in own else {env.get(name) for env in of_hosts.values()}
        for name in names
    }


def _of_code(known: Distinction, today: Today) -> str:
    """Return why code cannot be run either way, and whose is run."""
    kind, _, name = known.name.partition(".")
    folder = today.folder
    now = (folder.framework.digest if kind == "template" else folder.payload_digests.get(name, ""))[
        :DIGITS
    ]
    whose = "A's" if now == known.before else "B's" if now == known.after else "neither's"
    return f"its content is not recorded, only its digest; both sides run today's version, which is {whose}"


def _today(spec: RunSpec, today: Today) -> RunSpec:
    """Return the spec of A with the options that today's folder has, those that it lacks at their
    defaults.
    """
    options = {
        name: spec.options.get(name, option.device_default.get(spec.device, option.default))
        for name, option in today.folder.framework.options.items()
    }
    return replace(spec, options=options)
