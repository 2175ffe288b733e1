"""Versions on a host against the advisories of ``advisories.yaml``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from orchestrator import yamlfile
from orchestrator.checks.check import Check, ok, warning
from orchestrator.documents import strict_reader
from orchestrator.features.audit.report import HostReport

_VERSION = re.compile(r"\d+(?:\.\d+)+")


@dataclass(frozen=True, slots=True)
class Advisory:
    """An advisory: the first good version of each branch, which is the first ``branch`` numbers of
    a version. ``older``: whether branches that it does not list are affected.
    """

    id: str
    component: str
    title: str
    date: str
    fixed: tuple[str, ...]
    source: str
    branch: int = 0
    older: str = ""

    def fix_for(self, version: str) -> str:
        """Return the next good version after an affected one, empty for one that is not affected.

        >>> runc = Advisory("CVE", "runc", "", "", ("1.2.8", "1.3.3"), "", branch=2)
        >>> runc.fix_for("1.3.1"), runc.fix_for("1.3.3"), runc.fix_for("1.4"), runc.fix_for("1.1.9")
        ('1.3.3', '', '', '')
        """
        own = _numbers(version)
        for fixed in self.fixed:
            if _numbers(fixed)[: self.branch] == own[: self.branch]:
                return fixed if own < _numbers(fixed) else ""
        newer = (fixed for fixed in self.fixed if _numbers(fixed) > own)
        return next(newer, "") if self.older else ""


@cache
def advisories() -> tuple[Advisory, ...]:
    """Return the advisories in the order of their file."""
    name = "advisories.yaml"
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    read = strict_reader(Advisory)
    return tuple(read(row) for row in yamlfile.loads(text, name).value["advisories"])


def check_advisories(host: str, report: HostReport) -> Iterator[Check]:
    """Yield a warning for each component that an advisory names, and one check of the others."""
    found = versions(report)
    clean = dict(found)
    for component, version in found.items():
        fixes = [
            (advisory, fix)
            for advisory in advisories()
            if advisory.component == component.partition(" ")[0]
            and (fix := advisory.fix_for(version))
        ]
        if fixes:
            del clean[component]
            named = ", ".join(f"{advisory.id} ({advisory.title})" for advisory, _ in fixes)
            last, fix = max(fixes, key=lambda pair: _numbers(pair[1]))
            hint = f"see {last.source}; a distribution may have mended it under the old number"
            yield warning(
                host, "advisories", f"{component} {version}: {named}", f"{fix} or later", hint
            )
    if clean:
        yield ok(host, "advisories", ", ".join(map(" ".join, clean.items())))


def versions(report: HostReport) -> dict[str, str]:
    """Return the version of each component that the advisories know, by its name."""
    told = dict(report.programs)
    if report.nvidia_driver:
        told["nvidia-driver"] = report.nvidia_driver
    for device, firmware in report.firmware.items():
        # The first number of ConnectX firmware is the card's family, the second its branch.
        if device.startswith("mlx5") and firmware.count(".") == 2:
            told[f"connectx-firmware of {device}"] = firmware.partition(".")[2]
    matches = {name: _VERSION.search(text) for name, text in told.items()}
    return {name: match[0] for name, match in matches.items() if match}


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
