"""The words of a verdict: what was judged by a bar, and each node, device or link that did not
pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

PASS, UNDECIDED, FAIL = "pass", "undecided", "fail"
_ORDER = (PASS, UNDECIDED, FAIL)


@dataclass(frozen=True, slots=True)
class Finding:
    """A node, device, link or cluster that failed a bar or whose verdict is open. ``kind`` is node,
    link or cluster; ``hosts`` are those concerned; ``decides`` says what would decide an open
    verdict; ``evidence`` names runs. ``is_suspect``: it is open, and a second stage that says the
    same decides it."""

    kind: str
    subject: str
    hosts: tuple[str, ...]
    verdict: str
    text: str
    decides: str = ""
    evidence: tuple[str, ...] = ()
    is_suspect: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """One bar of a stage. ``kind`` is checks, runs, lost links, values, peers, reference, earlier,
    expected or links; ``bar`` says in words what had to hold, ``got`` what was found over all
    subjects, ``source`` where the bar comes from. Each of ``hosts`` without a finding passed.
    ``least``: by what share a node would have had to be slower to be found in nine of ten cases;
    None if none would, or that is not known. The last two are not in ``certificate.json``:
    ``group`` names what was compared, ``power`` says in words what would have been found."""

    stage: str
    kind: str
    bar: str
    got: str
    source: str
    hosts: tuple[str, ...]
    findings: tuple[Finding, ...] = ()
    least: float | None = None
    group: str = ""
    power: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return it as ``certificate.json`` has it."""
        content = {**asdict(self), "verdict": self.verdict}
        del content["group"], content["power"]
        return content

    @property
    def verdict(self) -> str:
        """The worst verdict of its findings."""
        return worst(finding.verdict for finding in self.findings)


def worst(verdicts: Iterable[str]) -> str:
    """Return the worst verdict, pass without any.

    >>> worst([PASS, FAIL, UNDECIDED]), worst([])
    ('fail', 'pass')
    """
    return max(verdicts, key=_ORDER.index, default=PASS)
