"""`orch archive` and `orch verify`: seal a bench into one file, and verify that nothing in it has changed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.options import Bench, Json, Sign, find_bench, print_json

if TYPE_CHECKING:
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
    from orchestrator.api.bench import contents
    from orchestrator.cli.acceptances import named
    from orchestrator.record.archive import seal

    directory = named(bench) or find_bench(bench)
    target = output or Path(f"{directory.path.resolve().name}.tar")
    sealed = seal(directory, target, contents)
    if sign:
        signed(sealed, target, sign)
    _print(sealed, target, f"sealed {sealed.files} files", as_json)


def verify(
    path: Annotated[Path, typer.Argument(metavar="FILE|DIRECTORY", help="An archive, packed or unpacked.")],
    quoted: Annotated[str, typer.Option("--seal", metavar="SHA256", help="The expected seal.")] = "",
    signers: Annotated[
        Path | None,
        typer.Option("--signers", metavar="FILE", help="Allowed signers, as for ssh-keygen; one signed it."),
    ] = None,
    signature: Annotated[
        Path | None, typer.Option("--signature", metavar="FILE", help="The signature. Default: <archive>.sig.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Verify every byte of an archive, and recompute its tables from the logs. Exits with 4 if anything differs."""
    import re

    from orchestrator.api.bench import contents
    from orchestrator.errors import ConfigError
    from orchestrator.record.archive import verify as verified

    if quoted and not re.fullmatch(r"[0-9a-f]{64}", quoted):
        raise ConfigError(f"expected 64 digits of 0-9 and a-f, got {quoted!r}", where="--seal")
    if signature and not signers:
        raise ConfigError("expected --signers together with --signature", where="--signature")
    archived = verified(path, contents, quoted)
    by = ""
    if signers:
        from orchestrator.record.signature import signer

        by = signer(archived.seal, signature or path.with_name(f"{path.name}.sig"), signers)
    what = "the certificate is" if "verdict" in archived.tables else "the tables are"
    _print(archived, path, f"{archived.files} files and {what} as sealed by orch {archived.orch}", as_json, by)
    if not (quoted or signers):
        typer.echo("the archive is consistent; --seal SHA256 also verifies that it is the archive with a quoted seal", err=True)


def signed(archive: Archive, target: Path, key: Path) -> None:
    """Sign the seal of an archive with a key, and write the signature next to the archive."""
    from orchestrator.files import write_atomic
    from orchestrator.record.signature import sign

    path = target.with_name(f"{target.name}.sig")
    write_atomic(path, sign(archive.seal, key), 0o644, is_input=True)
    typer.echo(f"signature: {path}", err=True)


def _print(archived: Archive, path: Path, what: str, as_json: bool, signed_by: str = "") -> None:
    if "verdict" in archived.tables:
        measured, verdict = sum(stage["measured"] for stage in archived.tables["stages"] if stage["bench_id"]), True
    else:
        measured, verdict = sum(row["n"] for row in (*archived.tables["rows"], *archived.tables.get("sheets", ()))), False
    by = {"signed_by": signed_by} if signed_by else {}
    if as_json:
        print_json({"path": str(path), **asdict(archived), "measured": measured, **by})
        return
    typer.echo(f"{path}: {what}; {measured} of {archived.runs} runs have a number")
    if verdict:
        from orchestrator.report.text import one_line

        tables = archived.tables
        nodes = [one_line(f"{node['host']} {node['verdict']}") for node in tables["nodes"]]
        typer.echo(one_line(f"{tables['suite']} of {tables['created']}: {tables['verdict']}; {', '.join(nodes)}"))
    typer.echo(f"seal {archived.seal}")
    if signed_by:
        from orchestrator.report.text import one_line

        typer.echo(one_line(f"signed by {signed_by}"))
