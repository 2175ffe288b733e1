"""The acceptances of a project, from the evidence of each; what did not change is taken from one
deletable file.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from orchestrator.documents import read
from orchestrator.errors import OrchError
from orchestrator.features.accept.certificate import certificate_of
from orchestrator.features.accept.record import AcceptanceDir, acceptances
from orchestrator.record.folder_cache import read_folders
from orchestrator.record.past_acceptance import PastAcceptance, oldest_first


def past_acceptances(root: Path, cache: Path) -> tuple[tuple[PastAcceptance, ...], dict[str, str]]:
    """Return the acceptances in ``root``, the oldest first, and by name why others cannot be read.
    ``cache`` need not exist.
    """
    entries = read_folders(cache, [folder.path for folder in acceptances(root)], _read)
    made = [
        read(PastAcceptance, entry["acceptance"])
        for entry in entries.values()
        if entry["acceptance"]
    ]
    damaged = {name: entry["damaged"] for name, entry in entries.items() if entry["damaged"]}
    return oldest_first(made), damaged


def hosts_to_accept(
    hosts: Sequence[str],
    made: Iterable[PastAcceptance],
    suite: str,
    older_than_s: float,
    now: datetime | None = None,
) -> dict[str, str]:
    """Return the hosts that are due for a suite, each with the reason.

    A host is due if no acceptance of the last ``older_than_s`` seconds has judged it, or if the
    last one has not passed it.
    """
    since = (now or datetime.now(timezone.utc)) - timedelta(seconds=older_than_s)
    last = {host: past for past in oldest_first(made) if past.suite == suite for host in past.hosts}
    due = {}
    for host in hosts:
        past = last.get(host)
        if past is None:
            due[host] = f"{suite} has not judged it"
        elif host in past.undecided or host in dict(past.failed):
            due[host] = f"{past.acceptance_id} has not passed it"
        elif datetime.fromisoformat(past.created.replace("Z", "+00:00")) < since:
            due[host] = f"{past.acceptance_id} is of {past.created[:10]}"
    return due


def _read(path: Path) -> dict[str, Any]:
    try:
        certificate = certificate_of(AcceptanceDir(path)).as_dict()
    except OrchError as error:
        return {"acceptance": None, "damaged": str(error)}
    return {"acceptance": asdict(PastAcceptance.of_certificate(certificate)), "damaged": ""}
