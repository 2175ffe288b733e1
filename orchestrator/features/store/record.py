"""The heads of archives that a project has read, in one deletable file for each store: a seal
proves its head for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from orchestrator.errors import OrchError
from orchestrator.record.archive_record import Head
from orchestrator.record.state_file import read_state, write_state


def read_heads(path: Path) -> dict[str, Head]:
    """Return the remembered heads by seal; none of a file that is missing or damaged."""
    try:
        return {seal: Head(**head) for seal, head in read_state(path)["heads"].items()}
    except (OrchError, OSError, KeyError, TypeError, AttributeError):
        return {}


def write_heads(path: Path, heads: Mapping[str, Head]) -> None:
    """Remember heads, where the project can be written."""
    content = {"heads": {seal: asdict(head) for seal, head in heads.items()}}
    with suppress(OrchError, OSError):
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_state(path, content)
