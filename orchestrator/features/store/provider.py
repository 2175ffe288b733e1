"""Serve the commands that read whole stores: `orch history --from STORE` and `orch verify STORE`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.features.store.resolve import is_store as is_store

if TYPE_CHECKING:
    from orchestrator.analysis.past_cells import History
    from orchestrator.errors import OrchError
    from orchestrator.features.store.archives import Store
    from orchestrator.features.store.entries import Entry
    from orchestrator.record.archive import Archive


def history_from(
    where: str, signers: Path | None, accept_new: bool
) -> tuple[History, list[OrchError]]:
    """Return the history of the benches and acceptances in a store, and the faults of archives.

    With ``signers`` only archives count that one of them has signed; any other is a fault. Of
    several archives of one bench or acceptance, the one with the most measured runs counts."""
    from dataclasses import replace

    from orchestrator.analysis.past_cells import history_of
    from orchestrator.errors import DataError
    from orchestrator.features.store.resolve import open_store
    from orchestrator.record.past_acceptance import oldest_first
    from orchestrator.record.signature import check_signers

    check_signers(signers)
    signed = []
    with open_store(where, accept_new) as store:
        listing = store.open().listing()
        faults = list(listing.damaged.values())
        for entry in listing.entries.values():
            try:
                store.signer(entry.seal, signers)
            except DataError as error:
                faults.append(error)
                continue
            signed.append(entry)
    by_bench: dict[str, Entry] = {}
    accepted = {}
    for entry in sorted(signed, key=lambda entry: (entry.measured, entry.runs, entry.seal)):
        by_bench |= dict.fromkeys(entry.benches, entry)
        if entry.acceptance:
            accepted[entry.id] = entry
    whole = history_of({name: entry.benches[name] for name, entry in sorted(by_bench.items())})
    seals = {name: entry.seal for name, entry in sorted((by_bench | accepted).items())}
    past = oldest_first(entry.acceptance for entry in accepted.values() if entry.acceptance)
    return replace(whole, seals=seals, acceptances=past), faults


def verify_store(
    where: str, quoted: str, signers: Path | None, *, accept_new: bool, as_json: bool
) -> None:
    """Verify every archive of a store, or the one with the quoted seal.

    Raises Faults of DataError."""
    from orchestrator.cli.options import print_json
    from orchestrator.errors import DataError, Faults
    from orchestrator.features.store.report import say
    from orchestrator.features.store.resolve import find_entry, open_store
    from orchestrator.record.signature import check_signers

    check_signers(signers)
    rows = []
    faults = []
    with open_store(where, accept_new) as store:
        listing = store.open().listing()
        entries = listing.entries
        if quoted:
            entry = find_entry(listing, quoted, store.title)
            entries = {entry.seal: entry}
        else:
            faults = list(listing.damaged.values())
        for seal, entry in entries.items():
            try:
                archive, outcome, signed_by = _verify(store, entry, signers)
            except DataError as error:
                faults.append(error)
                continue
            row = {"id": archive.bench_id, "seal": seal, "orch": archive.orch}
            rows.append(row | ({"signed_by": signed_by} if signed_by else {}))
            if not as_json:
                say(archive, outcome, entry.measured, signed_by)
    if as_json:
        damaged = [fault.as_dict() for fault in faults]
        print_json({"store": where, "archives": rows, "damaged": damaged})
    if faults:
        raise Faults(faults)


def _verify(store: Store, entry: Entry, signers: Path | None) -> tuple[Archive, str, str]:
    """Return a verified archive, the outcome in words, and who signed it."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="orch-") as folder:
        unpacked = store.unpack(entry.seal, entry.size_bytes, Path(folder), entry.id)
    archive = unpacked.archive
    outcome = f"{archive.files} files and tables are as sealed by orch {archive.orch}"
    if unpacked.difference:
        outcome = (
            f"{archive.files} files are as sealed by orch {archive.orch}, "
            "which computed other tables"
        )
    return archive, outcome, store.signer(entry.seal, signers)
