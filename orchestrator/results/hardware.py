"""A description of what the runs of a cell ran on: devices, versions, networks, drivers.

The program's own last line takes precedence; facts of preflight fill in what it does not report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from orchestrator.checks.cross_node import characteristics
from orchestrator.checks.facts import NodeFacts, node_facts
from orchestrator.checks.gpus import conditions
from orchestrator.checks.load import WORTH, Load, busy_with_others
from orchestrator.devices.gpu_states import is_partition
from orchestrator.inventory import fold
from orchestrator.notes import Note
from orchestrator.results.notes import (
    BASELINE_FACT,
    CLOCKS_LOWERED,
    FACT_DIFFERS,
    GPU_CONDITION,
    LOAD_BY_OTHERS,
    SENT_LITTLE,
)
from orchestrator.results.numbers.notes import (
    MORE_WARM_UP,
    NO_STEADY_STATE,
    NOT_STEADY,
    STARTS_TOO_EARLY,
)
from orchestrator.results.numbers.peaks import MODELS
from orchestrator.results.run import Lowered, RunResult
from orchestrator.results.telemetry.doubts import busiest

if TYPE_CHECKING:
    from orchestrator.plan import RunSpec
    from orchestrator.record.node_record import ExitRecord

_WORTH = 0.05
_LEAST_SENT = 0.01
"""Share of the gradients in 16 bits that any way to train together sends; some send them rarely or
compressed.
"""
_LEAST_BYTES = 100
"""The same for models whose gradients are not known, in bytes per step."""
_QUALIFYING = {"idle", "ecc", "xid", "clocks", "modes", "pcie", "links"}
"""Preflight checks of conditions that may change a number; the other checks refuse a run or concern
versions.
"""
_SLOWDOWNS = {
    "sw_power_cap": "the power limit",
    "sync_boost": "the slowest GPU of a group",
    "sw_thermal_slowdown": "temperature",
    "hw_thermal_slowdown": "temperature, by half or more",
    "hw_power_brake_slowdown": "the power supply, by half or more",
}
"""Descriptions of the reasons, by their names in nvidia-smi's ``clocks_event_reasons_counters``."""
_TITLES = {
    "deepspeed": "DeepSpeed", "transformers": "Transformers", "accelerate": "Accelerate",
    "cuda": "CUDA", "cudnn": "cuDNN", "nccl": "NCCL", "python": "Python",
}  # fmt: skip


def devices_of_node(facts: Any) -> list[str]:
    """Return the distinct names of what a rank may have on one node: its GPUs, instances of those
    in MIG mode, and partitions of AMD's (``AMD Instinct MI300X CPX``)."""
    gpus = node_facts(facts).gpus or ()
    is_divided = any(gpu.mig == "Enabled" for gpu in gpus)
    names = {
        f"{gpu.name} {gpu.partition}" if is_partition(gpu.partition) else gpu.name
        for gpu in gpus
        if gpu.name
    }
    return [f"{name} MIG" if is_divided else name for name in sorted(names)]


def infiniband_gbit(nodes: Mapping[str, NodeFacts]) -> dict[str, float | None]:
    """Return by host the total rate in Gbit/s of its active InfiniBand ports; None for a host
    without any.
    """
    return {host: node.infiniband_gbit or None for host, node in nodes.items()}


def infiniband_bytes_per_s(runs: Iterable[RunResult]) -> float | None:
    """Return the bytes per second that the slowest node can send over InfiniBand, in the best run;
    None if NCCL used any other network, or if the port rates of a node are unknown."""
    slowest = []
    for run in runs:
        networks = run.observed.get("networks") or ()
        rates = infiniband_gbit(run.nodes)
        port_rates = [rate for rate in rates.values() if rate]
        only_infiniband = bool(networks) and all(
            str(network).startswith("NET/IB") for network in networks
        )
        if not only_infiniband or not port_rates or len(port_rates) < len(rates):
            return None
        slowest.append(min(port_rates))
    return max(slowest) * 1e9 / 8 if slowest else None


def find_slowdowns(
    records: Mapping[str, ExitRecord],
    window_s: float | None = None,
    sampled: Mapping[str, Mapping[str, float]] = MappingProxyType({}),
) -> dict[str, dict[str, Lowered]]:
    """Return by reason and host the share of the window during which clocks were lowered, if it may
    be 5 % or more.

    The driver's counters are read at the start and the end of a rank, so it is unknown how much of
    the lowered time was in the window. The share is a range: the least is the time that does not
    fit outside the window, the most is all of it. On a node that was ``sampled``, the share of the
    samples in the window is taken instead. Without a window the shares cover the rank's life, and
    are equal. Reasons have the names of nvidia-smi's counters.
    """
    shares: dict[str, dict[str, Lowered]] = {}
    for host, by_reason in sampled.items():
        for name, share in by_reason.items():
            if share >= _WORTH:
                shares.setdefault(name, {})[host] = Lowered(share, share, None)
    for host, record in records.items():
        for rank in record.ranks:
            began, ended = rank.started_mono_s, rank.ended_mono_s
            if began is None or ended is None or ended <= began:
                continue
            measured_s = min(window_s or ended - began, ended - began)
            for name in _SLOWDOWNS.keys() & rank.slowed_us.keys():
                lowered_s = rank.slowed_us[name] * 1e-6
                most = min(1.0, lowered_s / measured_s)
                of_run = min(1.0, lowered_s / (ended - began))
                if host in sampled:
                    if known := shares.get(name, {}).get(host):
                        shares[name][host] = known._replace(of_run=of_run)
                elif most >= _WORTH:
                    least = max(0.0, lowered_s - (ended - began - measured_s)) / measured_s
                    shares.setdefault(name, {})[host] = Lowered(min(1.0, least), most, of_run)
    return shares


def slowdown_notes(runs: Sequence[RunResult]) -> list[Note]:
    """Return a text for each reason that lowered clocks in any of the runs; each run counts with
    its most affected node.
    """
    texts = []
    for name, words in _SLOWDOWNS.items():
        affected = [run for run in runs if name in run.slowed]
        if affected:
            worst = [
                max(run.slowed[name].values(), key=lambda share: share.most) for run in affected
            ]
            reach = _reach(min(share.least for share in worst), max(share.most for share in worst))
            lives = [share.of_run for share in worst if share.of_run is not None]
            of_life = [f"{_reach(min(lives), max(lives))} of the run"] if lives else []
            of_window = []
            if any(run.throughput for run in affected):
                of_window = [f"{reach} of the measured window"]
            hosts = fold(sorted(set().union(*(run.slowed[name] for run in affected))))
            counted = f", in {len(affected)} of {len(runs)} runs" if len(runs) > 1 else ""
            shares = ", ".join(of_life + of_window)
            texts.append(CLOCKS_LOWERED(reason=words, shares=shares, hosts=hosts, runs=counted))
    return texts


def _reach(least: float, most: float) -> str:
    if f"{least:.0%}" == "0%":
        return f"at most {most:.0%}"
    return " to ".join(dict.fromkeys(f"{share:.0%}" for share in (least, most)))


def find_load(records: Mapping[str, ExitRecord]) -> dict[str, float]:
    """Return by host the share of its processors that other processes used during a run, if it
    matters.
    """
    loads = {}
    for host, record in records.items():
        use, took_s = record.meter.processors, record.took_s
        if use and took_s is not None and use.count > 0:
            loads[host] = Load(use.count, took_s, use.busy_s, use.own_s, use.switches)
    return {
        host: used / count
        for host, (used, count) in busy_with_others(loads).items()
        if used >= WORTH * count
    }


def load_notes(runs: Sequence[RunResult]) -> list[Note]:
    """Return a text if other processes used the processors during any of the runs; each run counts
    with its busiest node.
    """
    by_run = [run.loaded for run in runs if run.loaded and not run.simulated]
    if not by_run:
        return []
    shares = sorted(max(share.values()) for share in by_run)
    reach = " to ".join(dict.fromkeys(f"{share:.0%}" for share in (shares[0], shares[-1])))
    counted = f", in {len(by_run)} of {len(runs)} runs" if len(runs) > 1 else ""
    hosts = sorted(set().union(*by_run))
    by = busiest([run.use for run in runs], hosts)
    return [LOAD_BY_OTHERS(share=reach, hosts=fold(hosts), by=by, runs=counted)]


def on_host(host: str, runs: Sequence[RunResult]) -> list[RunResult]:
    """Return runs with the lowered clocks and the load of one node alone, for `slowdown_notes` and
    `load_notes`.
    """
    alone = []
    for run in runs:
        slowed = {}
        for reason, shares in run.slowed.items():
            if host in shares:
                slowed[reason] = {host: shares[host]}
        loaded = {name: share for name, share in run.loaded.items() if name == host}
        alone.append(replace(run, slowed=slowed, loaded=loaded))
    return alone


def quiet(
    records: Mapping[str, ExitRecord], spec: RunSpec, parameters: Any, master_addr: str
) -> list[Note]:
    """Return a qualification if nodes sent far less than gradients need: then each of them may have
    trained alone.

    Each node sends its gradients at least once per step, in 16 bits (`physics`). ``parameters`` is
    what the program reports; if neither that nor the model is known, some bytes per step are
    assumed. Links other than network cards and InfiniBand are not counted by the kernel, and nodes
    of one machine that meet at a loopback address use none.
    """
    model = MODELS.get(spec.model)
    if type(parameters) is int and parameters > 0:
        known = parameters
    elif model:
        known = model.parameters
    else:
        known = 0
    least = max(_LEAST_BYTES, 2 * known * _LEAST_SENT)
    sent = {
        host: record.meter.sent_bytes
        for host, record in records.items()
        if record.meter.sent_bytes is not None
    }
    silent = {
        host: count / spec.steps for host, count in sent.items() if count < spec.steps * least
    }
    if spec.nodes < 2 or not silent or master_addr.startswith("127."):
        return []
    gradients = f" for gradients of {2 * known / 1e6:.1f} MB in 16 bits" if known else ""
    return [SENT_LITTLE(hosts=fold(silent), most=max(silent.values()), gradients=gradients)]


def unsteady_in(runs: Sequence[RunResult]) -> list[Note]:
    """Return a text on the runs whose window was not steady, or began too early, with all that was
    found in the one of them that varied most."""
    affected = [run for run in runs if run.step_times and (run.unsteady or run.begins_too_early)]
    if not affected:
        return []
    worst = max(affected, key=lambda run: run.step_times.variation if run.step_times else 0.0)
    early = _too_early(worst)
    if worst.unsteady and (
        worst.steady is None or worst.steady.first_step is None or not _is_about_warm_up(worst)
    ):
        early = []  # a machine that slows down needs no more warm-up
    known = [note.plain if early else note for note in worst.unsteady]
    where = f" in {len(affected)} of {len(runs)} runs; in repeat {worst.repeat}"
    return [NOT_STEADY(where=where if len(runs) > 1 else "", found="; ".join([*known, *early]))]


def _is_about_warm_up(run: RunResult) -> bool:
    return any(note.code in MORE_WARM_UP for note in run.unsteady)


def _too_early(run: RunResult) -> list[Note]:
    """Note the begin of a run's steady state, if its window began before."""
    if not run.begins_too_early or not run.steady or not run.throughput or not run.spec:
        return []
    begin, first = run.steady.first_step, run.throughput.first_step
    if begin is None:
        return [NO_STEADY_STATE()]
    enough = run.spec.warmup_steps + begin - first
    return [STARTS_TOO_EARLY(steady=begin, first=first, enough=enough)]


def conditions_of(runs: Iterable[RunResult]) -> list[Note]:
    """Return a text for each GPU problem that preflight found and that the runs were measured with
    nevertheless.
    """
    hosts_by_text: dict[str, set[str]] = {}
    for run in runs:
        for host, facts in run.nodes.items():
            for check in conditions(host, facts):
                if check.verdict != "ok" and check.name in _QUALIFYING:
                    hosts_by_text.setdefault(check.found, set()).add(host)
    return [
        GPU_CONDITION(hosts=fold(sorted(hosts)), found=text)
        for text, hosts in hosts_by_text.items()
    ]


def hardware(runs: Iterable[RunResult], spec: RunSpec) -> str:
    """Return devices and versions of a cell in one line, each once: as reported by the program,
    else from preflight.
    """
    parts: dict[str, None] = {}
    for run in runs:
        seen = run.observed
        parts |= dict.fromkeys(
            device_names(seen.get("devices")) or _preflight_devices(run, spec.device)
        )
        if seen.get("framework_version"):
            parts[f"{seen.get('framework', spec.framework)} {seen['framework_version']}"] = None
            versions = [(name, seen.get(name)) for name in _TITLES]
        else:
            versions = _preflight_versions(run)
        parts |= {
            f"{_TITLES.get(name, name)} {version}": None
            for name, version in versions
            if version is not None
        }
        parts |= dict.fromkeys(_transport_words(seen))
        parts |= dict.fromkeys(f"driver {driver}" for driver in sorted(_of_gpus(run, "driver")))
    return " · ".join(parts)


def _transport_words(seen: Mapping[str, Any]) -> list[str]:
    transport = seen.get("transport")
    if not isinstance(transport, Mapping):
        return []
    return [str(word) for word in transport.get("words", ())]


def _preflight_devices(run: RunResult, device: str) -> list[str]:
    """Return the devices of a run's nodes, as captured by preflight."""
    if device == "cuda":
        return _of_gpus(run, "name")
    return [f"cpu {facts.cpu}" for facts in run.nodes.values() if facts.cpu]


def _of_gpus(run: RunResult, name: str) -> list[str]:
    """Return the distinct values of a fact of the GPUs of each node."""
    found: list[str] = []
    for facts in run.nodes.values():
        of_node = {getattr(gpu, name) for gpu in facts.gpus or ()}
        found += sorted(of_node - {""})
    return found


def _preflight_versions(run: RunResult) -> list[tuple[str, Any]]:
    """Return the versions (name, version) of a run's framework, as captured by preflight; if nodes
    differ, which is a qualification, those of each.
    """
    return [version for facts in run.nodes.values() for version in facts.framework.items()]


def device_names(devices: Any) -> list[str]:
    """Return the names in ``{"H200": 8}``, ``[["H200", 8]]``, ``[{"name": "H200", "count": 8}]`` or
    ``["H200"]``.
    """
    names = []
    for item in devices if isinstance(devices, (list, tuple, Mapping)) else ():
        if isinstance(item, Mapping):
            first = item.get("name", "")
        elif isinstance(item, list) and item:
            first = item[0]
        else:
            first = item
        names.append(str(first))
    return names


def differing_facts(runs: Sequence[RunResult], baseline: Sequence[RunResult] = ()) -> list[Note]:
    """Return a text for each fact that differs between nodes or repeats, hosts folded by value, or
    from the baseline's.
    """
    run_facts, base_facts = _facts_by_value(runs), _facts_by_value(baseline)
    texts = []
    for name, values in sorted(run_facts.items()):
        if len(values) > 1:
            by_value = ", ".join(
                f"{value} on {fold(sorted(hosts))}" for value, hosts in sorted(values.items())
            )
            texts.append(FACT_DIFFERS(fact=name, values=by_value))
        elif name in base_facts and not set(base_facts[name]) >= set(values):
            before = ", ".join(sorted(base_facts[name]))
            texts.append(BASELINE_FACT(fact=name, values=", ".join(values), baseline=before))
    return texts


def _facts_by_value(runs: Sequence[RunResult]) -> dict[str, dict[str, set[str]]]:
    """Return the hosts of each value of each compared fact, over all repeats."""
    hosts: dict[str, dict[str, set[str]]] = {}
    for run in runs:
        for host, facts in run.nodes.items():
            for name, value in characteristics(facts).items():
                if name == "data set" and run.spec and run.spec.loader == "synthetic":
                    continue  # not read
                hosts.setdefault(name, {}).setdefault(value, set()).add(host)
    return hosts
