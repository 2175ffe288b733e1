"""Entries in the list of a store: `Entry`, from the head of an archive that its seal proves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.analysis.past_cells import PastBench, PastCell, headline
from orchestrator.documents import Invalid, check_schema, read
from orchestrator.record.archive_record import Head
from orchestrator.record.past_acceptance import PastAcceptance
from orchestrator.record.state_file import state_error
from orchestrator.report.cells import result
from orchestrator.results import Interval

_OF_HISTORY = 1


@dataclass(frozen=True, slots=True)
class Entry:
    """An archive of a store: seal, size, the version of orch that sealed it, and what
    `orch history` shows of it, by bench, and of the acceptance if it is one.
    """

    seal: str
    size_bytes: int
    orch: str
    id: str
    created: str
    label: str
    runs: int
    measured: int
    benches: Mapping[str, PastBench]
    acceptance: PastAcceptance | None = None

    def __post_init__(self) -> None:
        for name, bench in self.benches.items():
            others = [cell.bench_id for cell in bench.cells if cell.bench_id != name]
            if others:
                raise Invalid(
                    f"expected cells of it alone, got one of {others[0]!r}", "benches", name
                )

    @property
    def measures(self) -> list[str]:
        """The models, and what benches without metrics measured."""
        nouns = {bench.measures for bench in self.benches.values()}
        models = {cell.model for bench in self.benches.values() for cell in bench.cells}
        return sorted(models | nouns - {""})

    @property
    def headline(self) -> PastCell | None:
        """The cell that stands for it in a list, if it is a bench and has one."""
        bench = self.benches.get(self.id)
        return headline(bench.cells) if bench else None

    @property
    def result(self) -> str:
        """The value of that cell, or the verdict of an acceptance, in words; empty for neither."""
        if self.acceptance:
            return self.acceptance.verdict
        return result(self.headline)

    @property
    def interval(self) -> Interval | None:
        """The interval around that value, 95 %."""
        return self.headline.interval if self.headline else None


def entry_of(seal: str, size_bytes: int, head: Head, where: str) -> Entry:
    """Return the entry of an archive from its head. Raises DataError for what this version cannot
    show.
    """
    hint = "verify only what orch archive has written"
    known: dict[str, Any] = {
        "seal": seal,
        "size_bytes": size_bytes,
        "orch": head.orch,
        "acceptance": None,
    }
    try:
        check_schema(head.history, _OF_HISTORY)
    except Invalid as error:
        raise state_error(where, f"history: {error}", "a newer orch may have sealed it") from error
    try:
        # Half of a surrogate pair, which JSON may have, can be printed nowhere.
        json.dumps([head.history, head.orch, head.tables], ensure_ascii=False).encode()
        if "acceptance_id" in head.tables:
            known["acceptance"] = PastAcceptance.of_certificate(head.tables)
        return read(Entry, {**head.history, **known})
    except ValueError as error:
        raise state_error(where, f"history: {error}", hint) from error
