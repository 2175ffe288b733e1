"""Notes on what the samples of nodes and GPUs show. ``on`` has the hosts, and in how many of
several runs.
"""

from __future__ import annotations

from orchestrator.notes import DOUBT, REFUSAL, Kind

TELEMETRY_UNREAD = Kind(
    "telemetry_unread", REFUSAL, "the telemetry of {host} cannot be read: {fault}"
)
NO_ENERGY = Kind(
    "no_energy",
    REFUSAL,
    "no energy of the GPUs: on {hosts} their power was read further apart than a quarter of the "
    "window of {window_s:.0f} s{runs}",
    "; a longer window has it",
)
CPU_LIMIT = Kind(
    "cpu_limit",
    DOUBT,
    "a CPU limit (cpu.max) throttled its processes in {share:.0%} of all periods{on}",
)
STOLEN_PROCESSORS = Kind(
    "stolen_processors",
    DOUBT,
    "a hypervisor gave {share:.0%} of the processors to other machines{on}",
)
GPU_USED_BY_OTHERS = Kind(
    "gpu_used_by_others", DOUBT, "another process used a GPU of the run: {name}{on}"
)
GPU_MEMORY = Kind(
    "gpu_memory",
    DOUBT,
    "GPU {place} has more memory in use than the others, {own:.2f} GiB beside {others:.2f} GiB: "
    "another program, or a rank that keeps more,{on}",
)
LINK_ERRORS = Kind("link_errors", DOUBT, "errors of a link, {link}{on}")
GPU_ERRORS = Kind("gpu_errors", DOUBT, "errors of a GPU's {part}{on}")
XID = Kind("xid", DOUBT, "the driver reported Xid {code}{meaning}{on}")
LESS_POWER = Kind(
    "less_power",
    DOUBT,
    "{who} {less:.0%} less than the others: {watts:.0f} W against {usual:.0f} W{on}",
)
