"""Certificates in their folders: write and seal one, and find the last accepted one of the same
hosts.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from orchestrator.errors import ConfigError
from orchestrator.features.accept.certificate import Certificate, certificate_of
from orchestrator.features.accept.page import render
from orchestrator.features.accept.record import (
    CERTIFICATE,
    AcceptanceDir,
    acceptances,
    earlier_values,
)
from orchestrator.files import write_atomic
from orchestrator.inventory import Host


def certify(folder: AcceptanceDir) -> Certificate:
    """Write the certificate of an acceptance, as JSON and as a page, and return it."""
    certificate = certificate_of(folder)
    text = json.dumps(certificate.as_dict(), indent=1, allow_nan=False) + "\n"
    write_atomic(folder.path / f"{CERTIFICATE}.json", text.encode())
    write_atomic(folder.path / f"{CERTIFICATE}.html", render(certificate).encode())
    return certificate


def earlier_of(runs: Path, suite: str, hosts: Sequence[Host]) -> dict[str, Any]:
    """Return id and values of the last acceptance of these hosts with this suite that passed;
    nothing without one.
    """
    addresses = {host.name: host.address for host in hosts}
    for folder in acceptances(runs):
        try:
            content = json.loads((folder.path / f"{CERTIFICATE}.json").read_text(encoding="utf-8"))
            known = {node["host"]: node["address"] for node in content["nodes"]}
            if content["verdict"] == "pass" and content["suite"] == suite and known == addresses:
                return dict(
                    earlier_values(
                        {"id": content["acceptance_id"], "measured": content["measured"]}
                    )
                )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue  # it has no certificate, or none of this version
    return {}


def seal_certificate(folder: AcceptanceDir, sign: Path | None) -> Path:
    """Seal an acceptance into ``certificate.tar`` in its folder, replacing an earlier one, and sign
    it if a key is given.

    A key that does not sign is reported and raises nothing: what was measured counts without it."""
    from orchestrator.api.sealing import contents
    from orchestrator.cli.main import report
    from orchestrator.cli.sealing import sign_archive
    from orchestrator.record.archive import seal

    target = folder.own_archive
    for path in (target, target.with_name(f"{target.name}.sig")):
        path.unlink(missing_ok=True)
    archive = seal(folder, target, contents)
    typer.echo(f"seal {archive.seal}", err=True)
    if sign:
        try:
            sign_archive(archive, target, sign)
        except ConfigError as error:
            again = shlex.join(["orch", "archive", archive.bench_id, "--sign", str(sign)])
            error.hint = "; ".join(
                filter(None, (error.hint, f"the certificate is not signed; to sign it: {again}"))
            )
            report(error)
    return target
