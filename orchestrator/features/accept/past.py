"""The acceptances of a project, from the evidence of each; what did not change is taken from one
deletable file.
"""

from __future__ import annotations

from dataclasses import asdict
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


def _read(path: Path) -> dict[str, Any]:
    try:
        certificate = certificate_of(AcceptanceDir(path)).as_dict()
    except OrchError as error:
        return {"acceptance": None, "damaged": str(error)}
    return {"acceptance": asdict(PastAcceptance.of_certificate(certificate)), "damaged": ""}
