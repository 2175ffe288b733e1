"""A description of what the runs of a cell ran on: devices, versions, networks, drivers.

The program's own last line takes precedence; facts of preflight fill in what it does not report.
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
"""Preflight checks of conditions that may change a number; the other checks refuse a run or concern versions."""
_SLOWDOWNS = {
    "sw_power_cap": "the power limit",
    "sync_boost": "the slowest GPU of a group",
    "sw_thermal_slowdown": "temperature",
    "hw_thermal_slowdown": "temperature, by half or more",
    "hw_power_brake_slowdown": "the power supply, by half or more",
}
"""Descriptions of the reasons, by their names in nvidia-smi's ``clocks_event_reasons_counters``."""
_TITLES = {"cuda": "CUDA", "cudnn": "cuDNN", "nccl": "NCCL", "python": "Python"}


def of_gpus(facts: Any, key: str) -> list[str]:
    """Return the distinct values of a key of one node's GPUs, as captured by preflight."""
    gpus = facts.get("gpus") if isinstance(facts, Mapping) else None
    entries = gpus if isinstance(gpus, (list, tuple)) else ()
    return sorted({str(entry[key]) for entry in entries if isinstance(entry, Mapping) and entry.get(key)})


def infiniband_gbit(facts: Mapping[str, Any]) -> dict[str, float | None]:
    """Return by host the total rate in Gbit/s of the active InfiniBand ports in its facts; None for a host without any."""
    rates = {host: node.get("infiniband_gbit") if isinstance(node, Mapping) else None for host, node in facts.items()}
    return {host: float(rate) if isinstance(rate, (int, float)) and rate > 0 else None for host, rate in rates.items()}


def infiniband_bytes_per_s(runs: Iterable[RunResult]) -> float | None:
    """Return the bytes per second that the slowest node can send over InfiniBand, in the best run; None if NCCL used any other
    network, or if the port rates of a node are unknown."""
    slowest = []
    for run in runs:
        networks = run.observed.get("networks") or ()
        rates = infiniband_gbit(run.facts)
        port_rates = [rate for rate in rates.values() if rate]
        only_infiniband = bool(networks) and all(str(network).startswith("NET/IB") for network in networks)
        if not only_infiniband or not port_rates or len(port_rates) < len(rates):
            return None
        slowest.append(min(port_rates))
    return max(slowest) * 1e9 / 8 if slowest else None


def slowed(records: Mapping[str, ExitRecord]) -> dict[str, dict[str, float]]:
    """Return by reason and host the share of a run during which clocks were lowered, if at least 5 %, from the nodes' exit
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
    """Return a text for each reason that lowered clocks in any of the runs; each run counts with its most affected node."""
    texts = []
    for name, words in _SLOWDOWNS.items():
        if by_run := [run.slowed[name] for run in runs if name in run.slowed]:
            shares = sorted(max(share.values()) for share in by_run)
            reach = " to ".join(dict.fromkeys(f"{share:.0%}" for share in (shares[0], shares[-1])))
            hosts = fold(sorted(set().union(*by_run)))
            counted = f", in {len(by_run)} of {len(runs)} runs" if len(runs) > 1 else ""
            texts.append(f"clocks lowered by {words}: for {reach} of the run on {hosts}{counted}")
    return texts


def conditions_of(runs: Iterable[RunResult]) -> list[str]:
    """Return a text for each GPU problem that preflight found and that the runs were measured with nevertheless."""
    hosts_by_text: dict[str, set[str]] = {}
    for run in runs:
        for host, facts in run.facts.items():
            for check in _conditions(host, facts):
                if check.verdict != "ok" and check.name in _QUALIFYING:
                    hosts_by_text.setdefault(check.found, set()).add(host)
    return [f"before it ran on {fold(sorted(hosts))}: {text}" for text, hosts in hosts_by_text.items()]


def _conditions(host: str, facts: Any) -> list[Check]:
    try:
        return conditions(host, facts)
    except (TypeError, ValueError, AttributeError, LookupError):  # a manifest edited by hand
        return []


def hardware(runs: Iterable[RunResult], spec: RunSpec) -> str:
    """Return devices and versions of a cell in one line, each once: as reported by the program, else from preflight."""
    parts: dict[str, None] = {}
    for run in runs:
        seen = run.observed
        parts |= dict.fromkeys(_device_names(seen.get("devices")) or _preflight_devices(run, spec.device))
        if seen.get("framework_version"):
            parts[f"{seen.get('framework', spec.framework)} {seen['framework_version']}"] = None
            versions = {name: seen.get(name) for name in _TITLES}
        else:
            versions = _preflight_versions(run)
        parts |= {f"{_TITLES.get(name, name)} {version}": None for name, version in versions.items() if version is not None}
        parts |= dict.fromkeys(_transport_words(seen))
        drivers = {driver for facts in run.facts.values() for driver in of_gpus(facts, "driver")}
        parts |= dict.fromkeys(f"driver {driver}" for driver in sorted(drivers))
    return " · ".join(parts)


def _transport_words(seen: Mapping[str, Any]) -> list[str]:
    transport = seen.get("transport")
    return [str(word) for word in transport.get("words", ())] if isinstance(transport, Mapping) else []


def _preflight_devices(run: RunResult, device: str) -> list[str]:
    """Return the devices of a run's nodes, as captured by preflight."""
    if device == "cuda":
        return [name for facts in run.facts.values() for name in of_gpus(facts, "name")]
    return [f"cpu {facts['cpu']}" for facts in run.facts.values() if isinstance(facts, Mapping) and facts.get("cpu")]


def _preflight_versions(run: RunResult) -> dict[str, Any]:
    """Return the versions of a run's framework, as captured by preflight; differing nodes are a qualification."""
    merged: dict[str, Any] = {}
    for facts in run.facts.values():
        versions = facts.get("framework") if isinstance(facts, Mapping) else None
        merged |= versions if isinstance(versions, Mapping) else {}
    return merged


def _device_names(devices: Any) -> list[str]:
    """Return the names in ``{"H200": 8}``, ``[["H200", 8]]``, ``[{"name": "H200", "count": 8}]`` or ``["H200"]``."""
    names = []
    for item in devices if isinstance(devices, (list, tuple, Mapping)) else ():
        first = item.get("name", "") if isinstance(item, Mapping) else item[0] if isinstance(item, list) and item else item
        names.append(str(first))
    return names


def differing_facts(runs: Sequence[RunResult], baseline: Sequence[RunResult] = ()) -> list[str]:
    """Return a text for each fact that differs between nodes or repeats, hosts folded by value, or from the baseline's."""
    run_facts, base_facts = _facts_by_value(runs), _facts_by_value(baseline)
    texts = []
    for name, values in sorted(run_facts.items()):
        if len(values) > 1:
            by_value = ", ".join(f"{value} on {fold(sorted(hosts))}" for value, hosts in sorted(values.items()))
            texts.append(f"{name} differs: {by_value}")
        elif name in base_facts and not set(base_facts[name]) >= set(values):
            texts.append(f"{name} is {', '.join(values)}, the baseline's was {', '.join(sorted(base_facts[name]))}")
    return texts


def _facts_by_value(runs: Sequence[RunResult]) -> dict[str, dict[str, set[str]]]:
    """Return which hosts had which value of each compared fact, over all repeats."""
    hosts: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        for host, facts in run.facts.items():
            for name, value in characteristics(facts).items() if isinstance(facts, Mapping) else ():
                hosts.setdefault(name, {}).setdefault(value, set()).add(host)
    return hosts
