"""The samples of a run's nodes, read from their logs and cut to the measured window by each node's
own clock.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator.errors import DataError
from orchestrator.notes import Note
from orchestrator.record import RunDir
from orchestrator.record.evidence import log_bytes
from orchestrator.record.manifest import Manifest
from orchestrator.record.node_record import ExitRecord
from orchestrator.record.telemetry import MOST_BYTES, TELEMETRY, Telemetry, telemetry_of, too_large
from orchestrator.results.numbers.throughput import Stretch, Throughput, mean
from orchestrator.results.telemetry.notes import TELEMETRY_UNREAD
from orchestrator.results.telemetry.over_window import energy_per_sample
from orchestrator.results.telemetry.utilization import NodeUse, RunUse, node_use


@dataclass(frozen=True, slots=True)
class WindowTimes:
    """Known times of a run's window, by the clock of the node ``host``.

    ``clock`` is the log's clock at the start of the window, None without one. ``arrivals`` are
    (seconds of the node's clock, last step in the log then).
    """

    host: str
    clock: float | None
    arrivals: Sequence[tuple[float, int]]


def run_use(
    run: RunDir,
    planned: Manifest,
    records: Mapping[str, ExitRecord],
    measured: Throughput,
    window: Sequence[Stretch],
    times: WindowTimes,
) -> tuple[RunUse | None, list[Note]]:
    """Return how the nodes were used over the window, None if they were not sampled or it is not
    known when the window was; and notes on samples that cannot be read."""
    samples, notes = _samples(run, records)
    record = records.get(times.host)
    begun = _begin(times, record, window) if record else None
    if not samples or begun is None:
        return None, notes
    nodes = []
    for slot in planned.slots:
        started = records[slot.host].started_mono_s
        if slot.host in samples and started is not None:
            begin = started + begun
            nodes.append(node_use(slot.host, samples[slot.host], begin, begin + measured.seconds))
    if not nodes:
        return None, notes
    devices = {slot.host: slot.nproc for slot in planned.slots}
    complete = len(nodes) == len(devices) and all(
        len(node.gpus) == devices[node.host] for node in nodes
    )
    return _of_run(measured, nodes, complete, planned.spec.items), notes


def _of_run(measured: Throughput, nodes: Sequence[NodeUse], complete: bool, items: int) -> RunUse:
    """Return the run's use with its energy, if the power of every GPU of the run is known."""
    gpus = [gpu for node in nodes for gpu in node.gpus]
    powers = [gpu.power_w for gpu in gpus if gpu.power_w is not None and not gpu.shared]
    packages = [node.packages_w for node in nodes if node.packages_w is not None]
    known = bool(powers) and complete and len(powers) == len(gpus)
    return RunUse(
        measured.seconds,
        tuple(nodes),
        gpu_power_w=mean(powers) if known else None,
        energy_per_sample=energy_per_sample(powers, measured.samples_per_s * items)
        if known
        else None,
        packages_w=mean(packages) if packages and len(packages) == len(nodes) else None,
    )


def _samples(
    run: RunDir, records: Mapping[str, ExitRecord]
) -> tuple[dict[str, Telemetry], list[Note]]:
    """Return the samples of each node that has any. Its log was compared with the node's digest, as
    all logs.
    """
    samples, notes = {}, []
    for host, record in records.items():
        if TELEMETRY in record.files:
            try:
                if record.files[TELEMETRY].bytes > MOST_BYTES:
                    raise too_large(record.files[TELEMETRY].bytes, host)
                of_node = telemetry_of(log_bytes(run, host, TELEMETRY), host)
                if of_node:
                    samples[host] = of_node
            except (DataError, OSError) as error:
                notes.append(TELEMETRY_UNREAD(host=host, fault=str(error)))
    return samples, notes


def _begin(times: WindowTimes, record: ExitRecord, window: Sequence[Stretch]) -> float | None:
    """Return the begin of the window in seconds from the start of the run; None if it is not known.

    All nodes start at one instant, so it is the same on each of them. A log's clock counts if it is
    its node's clock; otherwise the time when lines arrived counts, known to a second or so.
    """
    began, ended = record.started_mono_s, record.ended_mono_s
    if began is None or ended is None:
        return None
    if times.clock is not None and began <= times.clock <= ended:
        return times.clock - began
    for seconds, step in times.arrivals:
        if window and window[0].last <= step <= window[-1].last:
            at = seconds - math.fsum(line.seconds for line in window if line.last <= step)
            return max(0.0, at - began)
    return None
