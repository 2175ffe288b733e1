"""`orch archive` and `orch verify`: seal a bench into one file, and verify that nothing in it has
changed.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.api.sealing import contents
from orchestrator.cli.options import AcceptNew, Bench, Debug, Json, Sign, Signers, print_json
from orchestrator.cli.sealing import sealable, sign_archive
from orchestrator.cli.signals import interrupt_on_signal

if TYPE_CHECKING:
    from orchestrator.record.archive import Archive


def archive(
    bench: Bench = "",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="File to write. Default: <bench>.tar in this directory.",
        ),
    ] = None,
    sign: Sign = None,
    as_json: Json = False,
) -> None:
    """Seal a bench or an acceptance into one file: all its evidence, its tables, and a digest of
    each.
    """
    from orchestrator.record.archive import seal
    from orchestrator.record.signature import check_key

    if sign:
        check_key(sign)
    directory = sealable(bench)
    target = output or Path(f"{directory.path.resolve().name}.tar")
    sealed = seal(directory, target, contents)
    if sign:
        try:
            sign_archive(sealed, target, sign)
        except BaseException:  # also Ctrl-C at the question for a passphrase
            target.unlink()
            raise
    _print(
        sealed, target, f"sealed {sealed.files} files of {directory.path.resolve().name}", as_json
    )


def verify(
    path: Annotated[
        str,
        typer.Argument(
            metavar="FILE|DIRECTORY|STORE",
            help="An archive, packed or unpacked, or all archives of a store.",
        ),
    ],
    quoted: Annotated[
        str, typer.Option("--seal", metavar="SHA256", help="The expected seal.")
    ] = "",
    signers: Signers = None,
    signature: Annotated[
        Path | None,
        typer.Option("--signature", metavar="FILE", help="The signature. Default: <archive>.sig."),
    ] = None,
    accept_new: AcceptNew = False,
    debug: Debug = False,
    as_json: Json = False,
) -> None:
    """Verify every byte of an archive, and recompute its tables from the logs. Exits with 4 if
    anything differs.
    """
    import re

    from orchestrator.errors import ConfigError
    from orchestrator.feature import providers
    from orchestrator.record.archive import verify as verified

    if quoted and not re.fullmatch(r"[0-9a-f]{64}", quoted):
        raise ConfigError(f"expected 64 digits of 0-9 and a-f, got {quoted!r}", where="--seal")
    if signature and not signers:
        raise ConfigError("expected --signers together with --signature", where="--signature")
    for store in providers("store"):
        if not store.is_store(path):
            continue
        if signature:
            raise ConfigError(
                "expected one archive, got a store, which has its signatures", where="--signature"
            )
        store.verify_store(path, quoted, signers, accept_new=accept_new, as_json=as_json)
        return
    with interrupt_on_signal("the archive is as it was"):
        archived = verified(Path(path), contents, quoted)
    by = ""
    if signers:
        from orchestrator.record.signature import signer

        by = signer(archived.seal, signature or Path(f"{Path(path)}.sig"), signers)
    sealed = "the certificate is" if "verdict" in archived.tables else "the tables are"
    _print(
        archived,
        Path(path),
        f"{archived.files} files and {sealed} as sealed by orch {archived.orch}",
        as_json,
        by,
    )
    if not (quoted or signers):
        typer.echo(
            "the archive is consistent; --seal SHA256 also verifies that it is the archive with a quoted seal",
            err=True,
        )


def _print(archived: Archive, path: Path, outcome: str, as_json: bool, signed_by: str = "") -> None:
    measured = archived.history["measured"]
    by = {"signed_by": signed_by} if signed_by else {}
    if as_json:
        values = {name: value for name, value in asdict(archived).items() if name != "history"}
        print_json({"path": str(path), **values, "measured": measured, **by})
        return
    typer.echo(f"{path}: {outcome}; {measured} of {archived.runs} runs have a number")
    if "verdict" in archived.tables:
        from orchestrator.report.text import one_line

        tables = archived.tables
        nodes = [one_line(f"{node['host']} {node['verdict']}") for node in tables["nodes"]]
        typer.echo(
            one_line(
                f"{tables['suite']} of {tables['created']}: {tables['verdict']}; {', '.join(nodes)}"
            )
        )
    typer.echo(f"seal {archived.seal}")
    if signed_by:
        from orchestrator.report.text import one_line

        typer.echo(one_line(f"signed by {signed_by}"))
