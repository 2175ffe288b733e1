"""`orch push` and `orch pull`: archives into a store that a team shares, and out of it."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli import complete
from orchestrator.cli.options import AcceptNew, Debug, Json, Sign, Signers, print_json
from orchestrator.cli.sealing import sealable
from orchestrator.features.store.report import print_list, say
from orchestrator.features.store.resolve import find_entry, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.features.store.archives import Listing, Store
    from orchestrator.features.store.entries import Entry
    from orchestrator.record import BenchDir
    from orchestrator.record.archive import Archive
    from orchestrator.record.bench_groups import BenchGroup

_PART = ".pull-"
"""How the folders begin in which archives are unpacked."""
_ABANDONED_S = 86_400.0
"""The age of such a folder after which its pull is believed to be dead where folders have no
locks."""
Where = Annotated[
    str,
    typer.Argument(metavar="STORE", help="Directory, user@host:/path, ssh://…, s3://bucket/path."),
]


def push(
    where: Where,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BENCH",
            autocompletion=complete.benches,
            help="Benches and acceptances by name, label or directory, and archives. Default: the latest.",
        ),
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="Push every bench and acceptance of this project that has runs."
        ),
    ] = False,
    sign: Sign = None,
    again: Annotated[
        bool, typer.Option("--again", help="Also replace archives that the store has.")
    ] = False,
    accept_new: AcceptNew = False,
    debug: Debug = False,
    as_json: Json = False,
) -> None:
    """Seal benches, verify the archives, and put them into a store that a team shares. Safe to
    repeat.
    """
    from tempfile import TemporaryDirectory

    from orchestrator.errors import ConfigError, Faults, OrchError
    from orchestrator.record.signature import check_key

    if everything and names:
        raise ConfigError("expected names or --all, got both", where="--all")
    if sign:
        check_key(sign)
    _refuse_bench(where)
    sources = _all() if everything else [_source(name) for name in names or [""]]
    rows, faults = [], []
    with open_store(where, accept_new) as store:
        is_made = False
        for source in sources:
            try:
                with TemporaryDirectory(prefix="orch-") as folder:
                    path, archive, signature = _seal(source, Path(folder), sign)
                    if not is_made and store.make():
                        typer.echo(f"made a store: {store.title}", err=True)
                    is_made = True
                    sent = store.push(path, archive, signature, again=again)
            except OrchError as error:
                if len(sources) == 1:
                    raise
                faults.append(error)
                continue
            rows.append({"id": archive.bench_id, "seal": archive.seal, "sent": sent})
            if not as_json:
                outcome = "sent and verified" if sent else "the store has it already"
                say(archive, outcome, archive.history["measured"])
        if rows:
            store.publish_names()
    if as_json:
        print_json({"store": where, "archives": rows})
    if faults:
        raise Faults(faults)


def pull(
    where: Where,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="BENCH", help="Names, labels or seals, as listed. Default: show the list."
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Folder to write into. Default: runs/ of this project.",
        ),
    ] = None,
    signers: Signers = None,
    accept_new: AcceptNew = False,
    debug: Debug = False,
    as_json: Json = False,
) -> None:
    """List what a store has, or verify and unpack archives from it, so that every command reads
    them like other benches.
    """
    from orchestrator.errors import Faults
    from orchestrator.record import Project
    from orchestrator.record.signature import check_signers

    check_signers(signers)
    with open_store(where, accept_new) as store:
        listing = store.open().listing()
        if not names:
            _list(store, listing, signers, as_json)
            if listing.damaged:
                raise Faults(list(listing.damaged.values()))
            return
        chosen = list(dict.fromkeys(find_entry(listing, name, store.title).seal for name in names))
        into = output or Project.here(os.environ).runs
        rows = [_pull(store, listing.entries[seal], into, signers, as_json) for seal in chosen]
    if as_json:
        print_json({"store": where, "archives": rows})


def _refuse_bench(where: str) -> None:
    """Raise ConfigError if a store to be made would have the name of a bench of this project, which
    is then what was meant."""
    from orchestrator.errors import ConfigError
    from orchestrator.record import Project
    from orchestrator.record.bench_groups import find_group
    from orchestrator.record.rundir import benches

    runs = Project.here(os.environ).runs
    if os.path.lexists(where) or not (
        find_group(runs, where)
        or any(where in (bench.path.name, bench.record().label) for bench in benches(runs))
    ):
        return
    hint = f"usage: orch push STORE {where}; a store of this name: ./{where}"
    raise ConfigError("expected a store, got the name of a bench", where=where, hint=hint)


def _source(name: str) -> Path | BenchDir | BenchGroup:
    """Return the archive, acceptance or bench with this name."""
    from orchestrator.errors import ConfigError

    if name.endswith(".tar"):
        if not Path(name).is_file():
            raise ConfigError(
                "expected an archive, found no such file",
                where=name,
                hint="orch archive writes one",
            )
        return Path(name)
    return sealable(name)


def _all() -> list[Path | BenchDir | BenchGroup]:
    from orchestrator.errors import ConfigError
    from orchestrator.record import BenchDir, Project
    from orchestrator.record.bench_groups import groups
    from orchestrator.record.rundir import bench_folders

    runs = Project.here(os.environ).runs
    benches = [
        BenchDir(folder)
        for folder in reversed(bench_folders(runs))
        if any(folder.glob("*/manifest.json"))
    ]
    accepted = [folder for folder in groups(runs) if any(folder.path.glob("*/*/manifest.json"))]
    sources: list[Path | BenchDir | BenchGroup] = [*benches, *accepted]
    if not sources:
        raise ConfigError(
            "no bench yet", where=str(runs), hint="to create one: orch bench resnet50"
        )
    return sources


def _seal(
    source: Path | BenchDir | BenchGroup, folder: Path, sign: Path | None
) -> tuple[Path, Archive, Path | None]:
    """Return an archive's path, the verified archive, and its signature, if it has one."""
    from orchestrator.api.sealing import contents
    from orchestrator.record.archive import seal, verify
    from orchestrator.record.signature import sign as signature_of

    path = source if isinstance(source, Path) else folder / "archive.tar"
    if not isinstance(source, Path):
        seal(source, path, contents)
    archive = verify(path, contents)
    signature = path.with_name(f"{path.name}.sig")
    if sign:
        signature = folder / "archive.tar.sig"
        signature.write_bytes(signature_of(archive.seal, sign))
    return path, archive, signature if signature.is_file() else None


def _pull(
    store: Store, entry: Entry, into: Path, signers: Path | None, quiet: bool
) -> dict[str, Any]:
    from orchestrator.files import failures, make_folder
    from orchestrator.report.cells import reach

    make_folder(into, is_input=True)
    with failures(into, is_input=True), _part_of(into) as part:
        unpacked = store.unpack(entry.seal, entry.size_bytes, part, entry.id)
        by = store.signer(entry.seal, signers)
        archive, difference = unpacked.archive, unpacked.difference
        target = into / archive.bench_id  # which is verified
        is_new = _move(unpacked.folder, target, store.title)
    if not quiet:
        outcome = f"verified, in {target}" if is_new else f"verified; {target} has it already"
        reached = f", {reach(entry.interval)}" if entry.interval else ""
        say(archive, outcome, entry.measured, by, f"{entry.result}{reached}")
        if difference:
            typer.echo(
                f"orch: {archive.bench_id}: {difference.hint.partition(': verify')[0]}: its tables are computed again",
                err=True,
            )
    return {"id": archive.bench_id, "seal": archive.seal, "path": str(target)} | (
        {"signed_by": by} if by else {}
    )


@contextmanager
def _part_of(into: Path) -> Iterator[Path]:
    """Yield a hidden folder beside the place of an archive, which so appears complete, and remove
    what pulls that were killed have left: their folders are locked by nobody.
    """
    from tempfile import TemporaryDirectory

    with ExitStack() as stack:
        with _lock(into):  # no other pull looks at a folder that is not locked yet
            _remove_parts(into)
            part = Path(stack.enter_context(TemporaryDirectory(prefix=_PART, dir=into)))
            stack.enter_context(_lock(part))
        yield part


@contextmanager
def _lock(folder: Path, *, at_once: bool = False) -> Iterator[bool]:
    """Hold the lock of a folder; yield False where folders have none. With ``at_once`` raise
    BlockingIOError if somebody else has it.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        has_lock = True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (fcntl.LOCK_NB if at_once else 0))
        except BlockingIOError:
            raise
        except OSError:
            has_lock = False
        yield has_lock
    finally:
        os.close(handle)


def _remove_parts(into: Path) -> None:
    """Remove what pulls that were killed have left."""
    import shutil

    for folder in into.glob(f"{_PART}*"):
        with suppress(OSError), _lock(folder, at_once=True) as has_lock:
            if has_lock or time.time() - folder.stat().st_mtime > _ABANDONED_S:
                shutil.rmtree(folder)


def _move(folder: Path, target: Path, where: str) -> bool:
    """Move an unpacked archive to its place; return False if that has the same files. Raises
    ConfigError if it has others.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.record.archive import has_files_of

    if os.path.lexists(target):
        if has_files_of(target, folder):
            return False
        hint = f"orch compare needs both: orch pull {where} {target.name} --output DIR"
        raise ConfigError(
            "expected no bench of this id here, or the same one; found one with other files",
            where=str(target),
            hint=hint,
        )
    folder.chmod(0o700)
    folder.rename(target)
    return True


def _list(store: Store, listing: Listing, signers: Path | None, as_json: bool) -> None:
    rows = listing.rows({seal: store.standing(seal, signers) for seal in listing.signed})
    if as_json:
        print_json({"store": store.title, "archives": rows})
        return
    if rows:
        print_list(rows, f"orch pull {store.title} --json")
    else:
        typer.echo("no archives", err=True)
