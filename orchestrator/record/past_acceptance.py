"""What a list of acceptances shows of one, from its certificate as JSON has it: of a project, or
sealed in an archive.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["PastAcceptance", "oldest_first"]


@dataclass(frozen=True, slots=True)
class PastAcceptance:
    """An acceptance that was made: when, in UTC, its suite, the verdict of the cluster, and its
    hosts in order. ``failed`` has for each node, link or cluster that failed its name and the first
    reason; ``undecided`` are the hosts of open verdicts."""

    acceptance_id: str
    created: str
    suite: str
    verdict: str
    hosts: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]
    undecided: tuple[str, ...]

    @classmethod
    def of_certificate(cls, content: Mapping[str, Any]) -> PastAcceptance:
        """Return it from a certificate. Raises KeyError, TypeError or AttributeError for what is
        none.
        """
        nodes = content["nodes"]
        failed = [
            [node["host"], (*node["why"], "")[0]] for node in nodes if node["verdict"] == "fail"
        ]
        findings = [
            finding
            for finding in (*content["links"], *content["cluster"])
            if finding["verdict"] == "fail"
        ]
        return cls.of(
            {
                **content,
                "hosts": [node["host"] for node in nodes],
                "failed": failed + [[finding["subject"], finding["text"]] for finding in findings],
                "undecided": [node["host"] for node in nodes if node["verdict"] == "undecided"],
            }
        )

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> PastAcceptance:
        """Return it from its `asdict` as JSON has it. Raises KeyError, TypeError or ValueError for
        anything else.
        """
        return cls(
            _text(content["acceptance_id"]),
            _text(content["created"]),
            _text(content["suite"]),
            _text(content["verdict"]),
            tuple(map(_text, content["hosts"])),
            tuple((_text(subject), _text(why)) for subject, why in content["failed"]),
            tuple(map(_text, content["undecided"])),
        )


def oldest_first(made: Iterable[PastAcceptance]) -> tuple[PastAcceptance, ...]:
    """Return acceptances in the order in which they were made."""
    return tuple(sorted(made, key=lambda past: (past.created, past.acceptance_id)))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"got {value!r} in place of a text")
    return value
