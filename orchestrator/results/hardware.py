"""What the runs of a cell ran on, in words: devices, versions, networks, drivers.

The program's own last line is the better witness; what preflight found stands in for it where it said nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.checks.among import characteristics
from orchestrator.checks.gpus import conditions
from orchestrator.inventory import fold

if TYPE_CHECKING:
    from orchestrator.checks import Check
    from orchestrator.plan import RunSpec
    from orchestrator.record.node_record import ExitRecord
    from orchestrator.results.run import RunResult

__all__ = [
    "conditions_of", "differing_facts", "hardware", "infiniband_bytes_per_s", "infiniband_gbit", "of_gpus", "slowed",
    "slowed_in",
]  # fmt: skip

_WORTH = 0.05
_QUALIFYING = {"idle", "ecc", "xid", "clocks", "modes", "pcie", "links"}
"""Checks of preflight that speak of what may change a number; the others refuse a run, or speak of versions."""
_SLOWDOWNS = {
    "sw_power_cap": "the power limit",
    "sync_boost": "the slowest GPU of a group",
    "sw_thermal_slowdown": "temperature",
    "hw_thermal_slowdown": "temperature, by half or more",
    "hw_power_brake_slowdown": "the power supply, by half or more",
}
"""Reasons by the names of nvidia-smi's ``clocks_event_reasons_counters``, in words."""
_TITLES = {"cuda": "CUDA", "cudnn": "cuDNN", "nccl": "NCCL", "python": "Python"}


def of_gpus(facts: Any, key: str) -> list[str]:
    """Return the distinct values of a key of one node's GPUs, as preflight found them."""
    gpus = facts.get("gpus") if isinstance(facts, Mapping) else None
    entries = gpus if isinstance(gpus, (list, tuple)) else ()
    return sorted({str(entry[key]) for entry in entries if isinstance(entry, Mapping) and entry.get(key)})


def infiniband_gbit(facts: Mapping[str, Any]) -> dict[str, float | None]:
    """Return, by host, the rate of the active InfiniBand ports that preflight found, all together; None where it found none."""
    rates = {host: found.get("infiniband_gbit") if isinstance(found, Mapping) else None for host, found in facts.items()}
    return {host: float(rate) if isinstance(rate, (int, float)) and rate > 0 else None for host, rate in rates.items()}


def infiniband_bytes_per_s(runs: Iterable[RunResult]) -> float | None:
    """Return what the slowest node can send over InfiniBand, of the best run; None where NCCL spoke anything else, or where
    the rates of a node's ports are not known."""
    slowest = []
    for run in runs:
        networks = run.observed.get("networks") or ()
        rates = infiniband_gbit(run.facts)
        known = [rate for rate in rates.values() if rate]
        if not networks or not known or len(known) < len(rates) or not all(str(one).startswith("NET/IB") for one in networks):
            return None
        slowest.append(min(known))
    return max(slowest) * 1e9 / 8 if slowest else None


def slowed(records: Mapping[str, ExitRecord]) -> dict[str, dict[str, float]]:
    """Return, by reason and host, the share of a run for which clocks were lowered, from a twentieth on; from its nodes' exit
    records. Reasons have the names of nvidia-smi's counters."""
    shares: dict[str, dict[str, float]] = {}
    for host, record in records.items():
        for rank in record.ranks:
            began, ended = rank.started_mono_s, rank.ended_mono_s
            if began is None or ended is None or ended <= began:
                continue
            for name in _SLOWDOWNS.keys() & rank.slowed_us.keys():
                if (share := min(1.0, rank.slowed_us[name] * 1e-6 / (ended - began))) >= _WORTH:
                    shares.setdefault(name, {})[host] = share
    return shares


def slowed_in(runs: Sequence[RunResult]) -> list[str]:
    """Return a text for each reason that lowered clocks in any of some runs; of a run counts the node that lost most."""
    texts = []
    for name, words in _SLOWDOWNS.items():
        if found := [run.slowed[name] for run in runs if name in run.slowed]:
            shares = sorted(max(share.values()) for share in found)
            reach = " to ".join(dict.fromkeys(f"{share:.0%}" for share in (shares[0], shares[-1])))
            hosts = fold(sorted(set().union(*found)))
            counted = f", in {len(found)} of {len(runs)} runs" * (len(runs) > 1)
            texts.append(f"clocks lowered by {words}: for {reach} of the run on {hosts}{counted}")
    return texts


def conditions_of(runs: Iterable[RunResult]) -> list[str]:
    """Return a text for everything that preflight found wrong with GPUs and that runs were measured with all the same."""
    found: dict[str, set[str]] = {}
    for run in runs:
        for host, facts in run.facts.items():
            for check in _conditions(host, facts):
                if check.verdict != "ok" and check.name in _QUALIFYING:
                    found.setdefault(check.found, set()).add(host)
    return [f"before it ran on {fold(sorted(hosts))}: {text}" for text, hosts in found.items()]


def _conditions(host: str, facts: Any) -> list[Check]:
    try:
        return conditions(host, facts)
    except (TypeError, ValueError, AttributeError, LookupError):  # a manifest that somebody has changed by hand
        return []


def hardware(runs: Iterable[RunResult], spec: RunSpec) -> str:
    """Return devices and versions of a cell in one line, each once: as the program saw them, else as preflight did."""
    parts: dict[str, None] = {}
    for run in runs:
        seen = run.observed
        parts |= dict.fromkeys(_device_names(seen.get("devices")) or _found_devices(run, spec.device))
        if seen.get("framework_version"):
            parts[f"{seen.get('framework', spec.framework)} {seen['framework_version']}"] = None
            versions = {name: seen.get(name) for name in _TITLES}
        else:
            versions = _found_versions(run)
        parts |= {f"{_TITLES.get(name, name)} {version}": None for name, version in versions.items() if version is not None}
        parts |= dict.fromkeys(_transport_words(seen))
        drivers = {driver for facts in run.facts.values() for driver in of_gpus(facts, "driver")}
        parts |= dict.fromkeys(f"driver {driver}" for driver in sorted(drivers))
    return " · ".join(parts)


def _transport_words(seen: Mapping[str, Any]) -> list[str]:
    found = seen.get("transport")
    return [str(word) for word in found.get("words", ())] if isinstance(found, Mapping) else []


def _found_devices(run: RunResult, device: str) -> list[str]:
    """Return the devices of a run's nodes, as preflight found them."""
    if device == "cuda":
        return [name for facts in run.facts.values() for name in of_gpus(facts, "name")]
    return [f"cpu {facts['cpu']}" for facts in run.facts.values() if isinstance(facts, Mapping) and facts.get("cpu")]


def _found_versions(run: RunResult) -> dict[str, Any]:
    """Return the versions of a run's framework, as preflight found them; nodes that differ are a qualification."""
    found: dict[str, Any] = {}
    for facts in run.facts.values():
        versions = facts.get("framework") if isinstance(facts, Mapping) else None
        found |= versions if isinstance(versions, Mapping) else {}
    return found


def _device_names(devices: Any) -> list[str]:
    """Return the names in ``{"H200": 8}``, ``[["H200", 8]]``, ``[{"name": "H200", "count": 8}]`` or ``["H200"]``."""
    names = []
    for item in devices if isinstance(devices, (list, tuple, Mapping)) else ():
        first = item.get("name", "") if isinstance(item, Mapping) else item[0] if isinstance(item, list) and item else item
        names.append(str(first))
    return names


def differing_facts(runs: Sequence[RunResult], baseline: Sequence[RunResult] = ()) -> list[str]:
    """Return one text for each fact on which nodes or repeats disagree, hosts folded by value, or runs and baseline do."""
    own, other = _facts_by_value(runs), _facts_by_value(baseline)
    found = []
    for name, values in sorted(own.items()):
        if len(values) > 1:
            told = ", ".join(f"{value} on {fold(sorted(hosts))}" for value, hosts in sorted(values.items()))
            found.append(f"{name} differs: {told}")
        elif name in other and not set(other[name]) >= set(values):
            found.append(f"{name} is {', '.join(values)}, the baseline's was {', '.join(sorted(other[name]))}")
    return found


def _facts_by_value(runs: Sequence[RunResult]) -> dict[str, dict[str, set[str]]]:
    """Return which hosts had which value of each compared fact, over all repeats."""
    found: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        for host, facts in run.facts.items():
            for name, value in characteristics(facts).items() if isinstance(facts, Mapping) else ():
                found.setdefault(name, {}).setdefault(value, set()).add(host)
    return found
