"""What several commands do with a store: open it, name an archive of it, read its history, verify
all of it.
"""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from orchestrator.cli.options import print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.analysis.past_cells import History
    from orchestrator.errors import OrchError
    from orchestrator.features.store.archives import Listing, Store
    from orchestrator.features.store.index import Entry
    from orchestrator.record.archive import Archive

__all__ = [
    "history_from",
    "is_store",
    "named_in",
    "note",
    "opened",
    "say",
    "signer_of",
    "standing",
    "verify_store",
]

_LEAST_DIGITS = 4


@contextmanager
def opened(where: str, accept_new: bool) -> Iterator[Store]:
    """Open the place of a store, which need not be one yet, and close it in the end."""
    from orchestrator.api.sealing import contents
    from orchestrator.features.store.archives import Store
    from orchestrator.features.store.open_place import place_of

    with place_of(where, accept_new) as place:
        yield Store(place, contents)


def history_from(where: str, accept_new: bool) -> tuple[History, list[OrchError]]:
    """Return the history of the benches and acceptances in a store, and what is wrong with
    archives.

    Of several archives of one bench or acceptance, that with the most measured runs counts."""
    from dataclasses import replace

    from orchestrator.analysis.past_cells import history_of
    from orchestrator.record.past_acceptance import oldest_first

    with opened(where, accept_new) as store:
        listing = store.open().listing()
    note(listing)
    by_bench: dict[str, Entry] = {}
    accepted: dict[str, Entry] = {}
    for entry in sorted(
        listing.entries.values(), key=lambda entry: (entry.measured, entry.runs, entry.seal)
    ):
        by_bench |= dict.fromkeys(entry.benches, entry)
        accepted |= {entry.id: entry} if entry.acceptance else {}
    whole = history_of({name: entry.benches[name] for name, entry in sorted(by_bench.items())})
    seals = {name: entry.seal for name, entry in sorted((by_bench | accepted).items())}
    past = oldest_first(entry.acceptance for entry in accepted.values() if entry.acceptance)
    return replace(whole, seals=seals, acceptances=past), list(listing.damaged.values())


def is_store(where: str) -> bool:
    """Return True for a text that names a store, and no archive, packed or unpacked."""
    from orchestrator.features.store.archives import Store
    from orchestrator.features.store.destinations import destination
    from orchestrator.files import is_file

    if is_file(Path(where)):
        return False
    there = destination(where)
    return there.kind != "directory" or Store.marks(Path(there.path))


def verify_store(
    where: str, quoted: str, signers: Path | None, *, accept_new: bool, as_json: bool
) -> None:
    """Verify every archive of a store, or the one with the quoted seal, and that the index says
    what they say.

    Raises Faults of DataError."""
    from tempfile import TemporaryDirectory

    from orchestrator.errors import DataError, Faults

    rows = []
    with opened(where, accept_new) as store:
        listing = store.open().listing()
        note(listing)
        faults = (
            []
            if quoted
            else [*([listing.index] if listing.index else []), *listing.damaged.values()]
        )
        seals = [named_in(listing, quoted, store.title).seal] if quoted else list(listing.entries)
        for seal in seals:
            if f"{seal}.tar" in listing.damaged:
                continue
            try:
                entry = listing.entries[seal]
                with (
                    store.fetched(seal, entry.size_bytes) as path,
                    TemporaryDirectory(prefix="orch-") as folder,
                ):
                    unpacked = store.verified(path, entry, Path(folder))
                    by = signer_of(store, seal, signers)
            except DataError as error:
                faults.append(error)
                continue
            archive = unpacked.archive
            rows.append(
                {"id": archive.bench_id, "seal": seal, "orch": archive.orch}
                | ({"signed_by": by} if by else {})
            )
            if not as_json:
                same = (
                    f"{archive.files} files, tables and index are as sealed by orch {archive.orch}"
                )
                other = f"{archive.files} files and index are as sealed by orch {archive.orch}, which computed other tables"
                say(
                    archive,
                    other if unpacked.difference else same,
                    listing.entries[seal].measured,
                    by,
                )
    if as_json:
        print_json(
            {"store": where, "archives": rows, "damaged": [fault.as_dict() for fault in faults]}
        )
    if faults:
        raise Faults(faults)


def named_in(listing: Listing, name: str, where: str) -> Entry:
    """Return the archive that a name, a label or the first digits of a seal mean; the name of a
    stage means its acceptance.

    Raises ConfigError for none or several."""
    from orchestrator.errors import ConfigError

    entries = listing.entries.values()
    matches = [entry for entry in entries if name in (entry.id, entry.seal)]
    matches = matches or [entry for entry in entries if name in entry.benches]
    matches = matches or [entry for entry in entries if name and name == entry.label]
    if not matches and len(name) >= _LEAST_DIGITS:
        matches = [entry for entry in entries if entry.seal.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        seals = ", ".join(entry.seal[:12] for entry in matches)
        raise ConfigError(
            f"{len(matches)} archives are {name!r}",
            where=where,
            hint=f"name one by its seal: {seals}",
        )
    hint = f"orch pull {where} lists them; the first {_LEAST_DIGITS} digits of a seal are enough"
    raise ConfigError(f"no archive {name!r}", where=where, hint=hint)


def signer_of(store: Store, seal: str, signers: Path | None) -> str:
    """Return who of the allowed signers has signed an archive; nothing if nobody asks. Raises
    DataError if none has.
    """
    from tempfile import TemporaryDirectory

    from orchestrator.errors import DataError
    from orchestrator.record.signature import signer

    if not signers:
        return ""
    hint = "whoever vouches for the archive can add one: orch push --sign KEY"
    fault = DataError(
        "expected a signature, found none",
        kind="state_damaged",
        where=f"{store.where(seal)}.sig",
        hint=hint,
    )
    with TemporaryDirectory(prefix="orch-") as folder:
        signature = Path(folder, "archive.tar.sig")
        for content in store.signatures(seal):
            signature.write_bytes(content)
            try:
                return signer(seal, signature, signers)
            except DataError as error:
                error.where = f"{store.where(seal)}.sig"
                fault = error
    raise fault


def standing(store: Store, seal: str, signers: Path | None) -> str:
    """Return in words what the signatures of an archive are worth: ``verified`` and by whom,
    ``unverified``, or ``invalid``.
    """
    from orchestrator.errors import DataError
    from orchestrator.record.signature import is_signature

    if signers:
        try:
            return f"verified: {signer_of(store, seal, signers)}"
        except DataError:
            pass
    return (
        "unverified"
        if any(is_signature(seal, content) for content in store.signatures(seal))
        else "invalid"
    )


def note(listing: Listing) -> None:
    """Say on stderr that the index cannot be read, if so."""
    from orchestrator.report.text import one_line

    if listing.index:
        text = f"orch: {listing.index}: read from the archives instead; the next orch push writes it anew"
        typer.echo(one_line(text), err=True)


def say(archive: Archive, outcome: str, measured: int, signed_by: str = "") -> None:
    """Print what was done with an archive, how many of its runs have a number, and its seal."""
    from orchestrator.report.text import one_line

    typer.echo(
        one_line(f"{archive.bench_id}: {outcome}; {measured} of {archive.runs} runs have a number")
    )
    typer.echo(f"seal {archive.seal}")
    if signed_by:
        typer.echo(one_line(f"signed by {signed_by}"))
