"""`orch archive` and `orch verify`: seal a bench into one file, and verify that nothing in it has changed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.connecting import Debug
from orchestrator.cli.options import AcceptNew, Bench, Json, Sign, find_bench, print_json

if TYPE_CHECKING:
    from orchestrator.record import BenchDir
    from orchestrator.record.acceptance import AcceptanceDir
    from orchestrator.record.archive import Archive


def add_to(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command("archive")(archive)
    app.command("verify")(verify)


def archive(
    bench: Bench = "",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Default: <bench>.tar in this directory.")
    ] = None,
    sign: Sign = None,
    as_json: Json = False,
) -> None:
    """Seal a bench or an acceptance into one file: all its evidence, its tables, and a digest of each."""
    from orchestrator.cli.acceptances import named
    from orchestrator.record.archive import seal

    directory = named(bench) or find_bench(bench)
    target = output or Path(f"{directory.path.resolve().name}.tar")
    sealed = seal(directory, target, contents)
    if sign:
        signed(sealed, target, sign)
    _print(sealed, target, f"sealed {sealed.files} files", as_json)


def verify(
    path: Annotated[
        str, typer.Argument(metavar="FILE|DIRECTORY|STORE", help="An archive, packed or unpacked, or all archives of a store.")
    ],
    quoted: Annotated[str, typer.Option("--seal", metavar="SHA256", help="The expected seal.")] = "",
    signers: Annotated[
        Path | None,
        typer.Option("--signers", metavar="FILE", help="Allowed signers, as for ssh-keygen; one signed it."),
    ] = None,
    signature: Annotated[
        Path | None, typer.Option("--signature", metavar="FILE", help="The signature. Default: <archive>.sig.")
    ] = None,
    accept_new: AcceptNew = False,
    debug: Debug = False,
    as_json: Json = False,
) -> None:
    """Verify every byte of an archive, and recompute its tables from the logs. Exits with 4 if anything differs."""
    import re

    from orchestrator.cli.store import is_store, verify_store
    from orchestrator.errors import ConfigError
    from orchestrator.record.archive import verify as verified

    if quoted and not re.fullmatch(r"[0-9a-f]{64}", quoted):
        raise ConfigError(f"expected 64 digits of 0-9 and a-f, got {quoted!r}", where="--seal")
    if signature and not signers:
        raise ConfigError("expected --signers together with --signature", where="--signature")
    if is_store(path):
        if signature:
            raise ConfigError("expected one archive, got a store, which has its signatures", where="--signature")
        verify_store(path, quoted, signers, accept_new=accept_new, as_json=as_json)
        return
    archived = verified(Path(path), contents, quoted)
    by = ""
    if signers:
        from orchestrator.record.signature import signer

        by = signer(archived.seal, signature or Path(f"{Path(path)}.sig"), signers)
    what = "the certificate is" if "verdict" in archived.tables else "the tables are"
    _print(archived, Path(path), f"{archived.files} files and {what} as sealed by orch {archived.orch}", as_json, by)
    if not (quoted or signers):
        typer.echo("the archive is consistent; --seal SHA256 also verifies that it is the archive with a quoted seal", err=True)


def contents(folder: BenchDir | AcceptanceDir) -> dict[str, Any]:
    """Return what an archive holds besides files: ``tables``, what ``orch summarize --json`` prints of a bench or the
    certificate of an acceptance, and ``history``, what ``orch history`` and a list of archives show of it.

    Nothing is cached, because the evidence may be in a read-only directory."""
    import json

    from orchestrator.analysis.accept import certificate_of
    from orchestrator.analysis.history import listed
    from orchestrator.record import BenchDir
    from orchestrator.report.formats.json import render
    from orchestrator.results.bench import notes_of
    from orchestrator.results.planned import planned_runs
    from orchestrator.results.read import read_run
    from orchestrator.results.summary import of_bench

    if isinstance(folder, BenchDir):
        runs = [read_run(run) for run in folder.runs()]
        record = folder.record()
        tables: dict[str, Any] = json.loads(render(of_bench(planned_runs(folder, runs), notes_of(folder))))
        counts = {"runs": tables["runs"]["planned"], "measured": tables["runs"]["measured"]}
        about = {"id": record.bench_id, "created": record.created, "label": record.label, **counts}
        return {
            "tables": tables,
            "history": {"schema": 1, **about, "benches": {record.bench_id: listed(folder, record.bench_id, runs)}},
        }
    acceptance = folder.record()
    tables = json.loads(json.dumps(certificate_of(folder).as_dict()))
    benches = [folder.bench(attempt.bench_id) for attempt in acceptance.attempts]
    stages = [stage for stage in tables["stages"] if stage["bench_id"]]
    counts = {
        "runs": sum(len(bench.record().runs) for bench in benches),
        "measured": sum(stage["measured"] for stage in stages),
    }
    about = {"id": acceptance.acceptance_id, "created": acceptance.created, "label": acceptance.suite, **counts}
    entries = {bench.path.name: listed(bench, bench.path.name, [read_run(run) for run in bench.runs()]) for bench in benches}
    return {"tables": tables, "history": {"schema": 1, **about, "benches": entries}}


def signed(archive: Archive, target: Path, key: Path) -> None:
    """Sign the seal of an archive with a key, and write the signature next to the archive."""
    from orchestrator.files import write_atomic
    from orchestrator.record.signature import sign

    path = target.with_name(f"{target.name}.sig")
    write_atomic(path, sign(archive.seal, key), 0o644, is_input=True)
    typer.echo(f"signature: {path}", err=True)


def _print(archived: Archive, path: Path, what: str, as_json: bool, signed_by: str = "") -> None:
    measured = archived.history["measured"]
    by = {"signed_by": signed_by} if signed_by else {}
    if as_json:
        values = {name: value for name, value in asdict(archived).items() if name != "history"}
        print_json({"path": str(path), **values, "measured": measured, **by})
        return
    typer.echo(f"{path}: {what}; {measured} of {archived.runs} runs have a number")
    if "verdict" in archived.tables:
        from orchestrator.report.text import one_line

        tables = archived.tables
        nodes = [one_line(f"{node['host']} {node['verdict']}") for node in tables["nodes"]]
        typer.echo(one_line(f"{tables['suite']} of {tables['created']}: {tables['verdict']}; {', '.join(nodes)}"))
    typer.echo(f"seal {archived.seal}")
    if signed_by:
        from orchestrator.report.text import one_line

        typer.echo(one_line(f"signed by {signed_by}"))
