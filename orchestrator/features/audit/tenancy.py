"""What separates the tenants of a host, a job of Slurm or a pod, as far as one of them can see it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from orchestrator.checks.check import Check, ok, warning
from orchestrator.features.audit.catalogue import CATALOGUE
from orchestrator.features.audit.report import HostReport, Tenant
from orchestrator.plural import plural

_CURES = {entry.name: entry.cure for entry in CATALOGUE}
_HIDDEN = ("jobs", "usage", "users")
_KERNEL = re.compile(r"([0-9.-]+)(.*)")


def check_tenancy(host: str, report: HostReport) -> Iterator[Check]:
    """Yield the checks of one host; none of what it does not have."""
    for name, judge in _CHECKS.items():
        answer = judge(report.tenant)
        if answer is None:
            continue
        found, expected = answer
        yield (
            warning(host, name, found, expected, _CURES[name])
            if expected
            else ok(host, name, found)
        )


Answer = tuple[str, str] | None
"""What was found, and what was expected; empty if it is that. None: there is nothing to judge."""


def _kernel(tenant: Tenant) -> Answer:
    running = _split(tenant.kernel)
    others = [name for name in tenant.kernels if _split(name)[1] == running[1]]
    if tenant.kernel not in others:  # another machine's: of a container, or of a loader elsewhere
        return None
    newest = max(others, key=_split)
    found = f"{tenant.kernel} runs"
    return (found, "") if newest == tenant.kernel else (found, f"{newest}, which is installed")


def _split(kernel: str) -> tuple[tuple[int, ...], str]:
    """Return the numbers of a kernel's release, and its flavour.

    >>> _split("6.1.0-57-cloud-amd64")
    ((6, 1, 0, 57), 'cloud-amd64')
    """
    match = _KERNEL.match(kernel)
    if not match:
        return (), kernel
    return tuple(map(int, re.findall(r"\d+", match[1]))), match[2]


def _flaws(tenant: Tenant) -> Answer:
    if not tenant.flaws_told:
        return None
    if not tenant.flaws:
        return f"{plural(len(tenant.flaws_told), 'flaw')}: not affected, or mitigated", ""
    return "vulnerable: " + ", ".join(tenant.flaws), "mitigations of all"


def _nested(tenant: Tenant) -> Answer:
    if not tenant.virtual:
        return None
    has_kvm = "kvm" in tenant.devices
    return (
        ("/dev/kvm can be opened", "no virtual machines in this one") if has_kvm else ("none", "")
    )


def _devices(tenant: Tenant) -> Answer:
    found = [f"/dev/{name}" for name in tenant.devices if name != "kvm"]
    return (", ".join(found), "none that this user may open") if found else ("none", "")


def _strangers(tenant: Tenant) -> Answer:
    if not tenant.strangers:
        return "none", ""
    return f"processes of {plural(tenant.strangers, 'other user')} are seen", "none"


def _private(tenant: Tenant) -> Answer:
    if "PrivateData" not in tenant.slurm:
        return None
    value = tenant.slurm["PrivateData"]
    shown = set(_HIDDEN) - set(value.split(","))
    found = f"PrivateData={value}"
    return found, ",".join(_HIDDEN) if shown else ""


def _confined(tenant: Tenant) -> Answer:
    if not tenant.slurm:
        return None
    wanted = {
        "ProctrackType": "proctrack/cgroup",
        "TaskPlugin": "task/cgroup",
        "ConstrainDevices": "yes",
        "ConstrainCores": "yes",
        "ConstrainRAMSpace": "yes",
    }
    lacking = {
        name: value
        for name, value in wanted.items()
        if value not in tenant.slurm.get(name, "").lower().split(",")
    }
    if not lacking:
        return ", ".join(f"{name}={value}" for name, value in wanted.items()), ""
    told = (f"{name}={tenant.slurm.get(name) or 'not set'}" for name in lacking)
    return ", ".join(told), ", ".join(f"{name}={value}" for name, value in lacking.items())


def _adopted(tenant: Tenant) -> Answer:
    if not tenant.slurm:
        return None
    if tenant.adopts:
        return "sshd asks Slurm", ""
    return "/etc/pam.d/sshd does not name pam_slurm_adopt", "logins only of users with a job here"


def _between(tenant: Tenant) -> Answer:
    if not tenant.slurm:
        return None
    named = ("HealthCheckProgram", "Prolog", "Epilog")
    told = [f"{name}={tenant.slurm[name]}" for name in named if tenant.slurm.get(name)]
    if told:
        return ", ".join(told), ""
    return "no health check, prolog or epilog", "one of them"


_CHECKS: dict[str, Callable[[Tenant], Answer]] = {
    "kernel": _kernel,
    "flaws": _flaws,
    "nested": _nested,
    "management": _devices,
    "strangers": _strangers,
    "slurm_private": _private,
    "slurm_confined": _confined,
    "slurm_logins": _adopted,
    "slurm_between": _between,
}
