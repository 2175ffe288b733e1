"""Differences of two measured cells: those a run can have either way, and the rest, likeliest cause
first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orchestrator.analysis.compare import find_differences
from orchestrator.analysis.compare.causes import by_weight
from orchestrator.analysis.compare.cells import FASTER, SLOWER, compare_cells
from orchestrator.errors import ConfigError
from orchestrator.features.search.record import (
    BisectRecord,
    Candidate,
    Difference,
    Fixed,
    Setting,
    SideRecord,
)
from orchestrator.inventory import Host, Inventory
from orchestrator.inventory.secrets import SHOWN
from orchestrator.plan import Framework, RunSpec
from orchestrator.plan.option_values import as_written
from orchestrator.plan.placement import place
from orchestrator.plan.spec import CELL_CHOICES, EXTRA_CHOICES, resolve
from orchestrator.plan.variables import check_variable
from orchestrator.record import BenchDir
from orchestrator.record.manifest import read_manifest
from orchestrator.results import Cell

_FIELDS = ("dtype", "batch_size", "loader", "steps", "warmup_steps")
_KEPT = ("nodes", "gpus", *_FIELDS, "timeout_s")
_CODE = "its content is not recorded, only its digest; both sides run today's version"
_WHY = {
    "container": "all runs of a bench use one container; both sides run in A's",
    "device": "the hosts have one device",
    "follows": "one bench cannot measure both strong and weak scaling",
    "load": "what other processes did on the nodes cannot be repeated",
    "payload": _CODE,
    "template": _CODE,
}
_OTHERWISE = "no option sets it"
_NO_PART = ("node_runner", "orch", "inventory", "command", "timeout_s", "metric", "step")
"""Fields that take no part in a step, or follow from listed ones."""
_LISTED = (*_NO_PART, *_FIELDS, *CELL_CHOICES, "options", "env", "hosts")


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
    spec: RunSpec
    hosts: list[str]


def sides(
    benches: tuple[BenchDir, BenchDir],
    pair: tuple[Cell, Cell],
    framework: Framework,
    inventory: Inventory,
    hosts: Sequence[Host],
) -> Sides:
    """Return both sides of a bisect of two cells with numbers, with today's framework and hosts.

    Raise ConfigError if A or B cannot be run on them.
    """
    first, second = (_side(bench, cell) for bench, cell in zip(benches, pair, strict=True))
    changed: list[Difference] = []
    fixed: list[Fixed] = []
    used = _hosts(first, second, hosts, changed, fixed)
    _spec(first.spec, second.spec, framework, changed, fixed)
    _variables(first, second, inventory, used, changed, fixed)
    reported = {f"program.{difference.name}" for difference in changed}
    for known in find_differences(benches, [pair]):
        kind = known.name.partition(".")[0]
        is_of_hosts = kind == "node" and first.hosts != second.hosts
        if not is_of_hosts and kind not in _LISTED and known.name not in reported:
            why = _WHY.get(kind, _OTHERWISE)
            fixed.append(Fixed(known.name, known.before, known.after, why))
    record = _record(benches, pair, by_weight(changed), by_weight(fixed))
    timeout_s = max(first.spec.timeout_s, second.spec.timeout_s)
    base = replace(first.spec, hosts=(), timeout_s=timeout_s)
    count = len(changed)
    a, b = (apply_candidate(base, framework, record, (taken,) * count) for taken in (0, 1))
    for spec in (a, b):
        place(spec, used, 0)
    return Sides(record, a, b, used)


def apply_candidate(
    spec: RunSpec, framework: Framework, record: BisectRecord, candidate: Candidate
) -> RunSpec:
    """Return the spec of A with the differences of a candidate as B has them. Options that the
    framework does not have are left out. Raises ConfigError if that is impossible.
    """
    choices: dict[str, Any] = {name: getattr(spec, name) for name in _KEPT}
    choices |= {name: spec.chosen(name) for name in EXTRA_CHOICES}
    choices |= {f"options.{name}": value for name, value in spec.options.items()}
    choices |= {f"env.{name}": value for name, value in spec.env.items()}
    origins, hosts = {}, spec.hosts
    for difference, taken in zip(record.differences, candidate, strict=True):
        value = difference.after if taken else difference.before
        side = f"B, {record.after.bench}" if taken else f"A, {record.before.bench}"
        origins[difference.name] = side
        if difference.name == "hosts":
            hosts = tuple(str(value).split(","))
        else:
            choices[difference.name] = value
    for name, value in list(choices.items()):
        kind, _, option = name.partition(".")
        if kind == "options" and option not in framework.options:
            del choices[name]
        elif kind == "options" and value is not None:
            choices[name] = as_written(value)
    if spec.follows:
        choices |= {"global_batch": spec.global_batch, spec.follows: None}
    made = resolve(framework, spec.model, device=spec.device, choices=choices)
    return replace(made, hosts=hosts, origins={**made.origins, **origins})


def settings(differences: Sequence[Difference], candidate: Candidate) -> list[str]:
    """Return the settings that a candidate takes from B, as texts: ``NCCL_ALGO=Ring``, ``without
    NCCL_ALGO``.
    """
    texts = []
    for difference, taken in zip(differences, candidate, strict=True):
        name = difference.name.rpartition(".")[2]
        value = difference.after
        if taken:
            texts.append(f"without {name}" if value is None else f"{name}={as_written(value)}")
    return texts


def _side(bench: BenchDir, cell: Cell) -> _Side:
    run = bench.run(cell.with_number[0].run_id)
    return _Side(bench, cell.spec, read_manifest(run).hosts)


def _record(
    benches: tuple[BenchDir, BenchDir],
    pair: tuple[Cell, Cell],
    differences: Sequence[Difference],
    fixed: Sequence[Fixed],
) -> BisectRecord:
    (compared,) = compare_cells([pair])
    before, after = (
        SideRecord(bench.record().bench_id, compared.case, half.typical or 0.0, half.n)
        for bench, half in zip(benches, (compared.before, compared.after), strict=True)
    )
    metric, key = pair[0].metric, tuple(pair[0].metric_key)
    verdict = compared.verdict if compared.verdict in (FASTER, SLOWER) else ""
    of_metric = (metric.name, key, metric.unit, metric.better, verdict)
    return BisectRecord(before, after, *of_metric, tuple(differences), tuple(fixed))


def _hosts(
    first: _Side,
    second: _Side,
    today: Sequence[Host],
    changed: list[Difference],
    fixed: list[Fixed],
) -> tuple[Host, ...]:
    """Return the hosts that the runs need, A's first, and note a difference of hosts."""
    there = {host.name: host for host in today}
    names = [side.hosts for side in (first, second) if set(side.hosts) <= there.keys()]
    if first.hosts != second.hosts:
        texts = ",".join(first.hosts), ",".join(second.hosts)
        if len(names) == 2:
            changed.append(Difference("hosts", *texts))
        else:
            fixed.append(Fixed("hosts", *texts, "not all of them are in the inventory"))
    used = dict.fromkeys(name for side in names for name in side)
    return tuple(there[name] for name in used or there)


def _spec(
    before: RunSpec,
    after: RunSpec,
    framework: Framework,
    changed: list[Difference],
    fixed: list[Fixed],
) -> None:
    """Note the differences of two specs, except their variables."""
    for name in ("framework", "model", "device"):
        own, other = getattr(before, name), getattr(after, name)
        if own != other:
            message = f"expected cells of one {name}, got {own} and {other}"
            raise ConfigError(message, where="A, B", hint="orch compare shows how they differ")
    values = {name: (getattr(before, name), getattr(after, name)) for name in _FIELDS}
    values |= {name: (before.chosen(name), after.chosen(name)) for name in CELL_CHOICES}
    for name in dict.fromkeys([*before.options, *after.options]):
        option = framework.options.get(name)
        default = option.default if option else None
        pair = before.options.get(name, default), after.options.get(name, default)
        if option:
            values[f"options.{name}"] = pair
        elif pair[0] != pair[1]:
            why = f"today's {framework.name} has no such option"
            texts = as_written(pair[0]), as_written(pair[1])
            fixed.append(Fixed(f"options.{name}", *texts, why))
    for name, (own, other) in values.items():
        if own != other and name != before.follows:
            changed.append(Difference(name, own, other))


def _variables(
    first: _Side,
    second: _Side,
    inventory: Inventory,
    hosts: Sequence[Host],
    changed: list[Difference],
    fixed: list[Fixed],
) -> None:
    """Note the variables that differ between the sides; a spec's value wins over a host's."""
    before, after = _effective(first), _effective(second)
    for name in dict.fromkeys([*before, *after]):
        own, other = before.get(name, {None}), after.get(name, {None})
        if own == other:
            continue
        texts = _in_words(own), _in_words(other)
        why = _why_not(name, own, other, inventory, hosts)
        if why == _SECRET:
            texts = "(secret)", "(secret)"
        if why:
            fixed.append(Fixed(f"env.{name}", *texts, why))
        else:
            changed.append(Difference(f"env.{name}", *own, *other))


_SECRET = "its value is secret"


def _in_words(values: set[Setting]) -> str:
    return ", ".join(sorted("not set" if value is None else str(value) for value in values))


def _why_not(
    name: str,
    own: set[Setting],
    other: set[Setting],
    inventory: Inventory,
    hosts: Sequence[Host],
) -> str:
    """Return why a run cannot have a variable with either value; empty if it can. ``own`` and
    ``other`` are its values on the hosts of A and of B.
    """
    if inventory.is_secret(name) or any(str(value).startswith(SHOWN) for value in own | other):
        return _SECRET
    if len(own) > 1 or len(other) > 1:
        return "its value differs between the hosts of one side"
    setting = ", ".join(host.name for host in hosts if name in host.env)
    if None in own | other and setting:
        return f"the inventory sets it on {setting} today, and a run cannot unset it"
    try:
        check_variable(name, "")
    except ConfigError as error:
        return error.message
    return ""


def _effective(side: _Side) -> dict[str, set[Setting]]:
    """Return the values that the hosts of a side had of each variable, None on a host without it."""
    planned, own = side.bench.record().planned_with, side.spec.env
    recorded: Mapping[str, Mapping[str, Any]] = planned.hosts if planned else {}
    of_hosts = [recorded.get(host, {}).get("env", {}) for host in side.hosts]
    values: dict[str, set[Setting]] = {name: {value} for name, value in own.items()}
    for env in of_hosts:
        for name in env:
            values.setdefault(name, {other.get(name) for other in of_hosts})
    return values
