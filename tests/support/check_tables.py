"""The table of checks on a page, which is made from their list."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator.checks.catalogue import Entry, table_rows

_HEAD = "|---|---|---|---|\n"


def assert_table(page: Path, entries: tuple[Entry, ...]) -> None:
    """Compare the first table of a page, or write it with ORCH_UPDATE_GOLDEN."""
    before, _, rest = page.read_text(encoding="utf-8").partition(_HEAD)
    after = rest.partition("\n\n")[2] if rest.startswith("|") else rest.lstrip("\n")
    text = f"{before}{_HEAD}{table_rows(entries, page.name)}\n\n{after}"
    if os.environ.get("ORCH_UPDATE_GOLDEN"):
        page.write_text(text, encoding="utf-8")
    assert page.read_text(encoding="utf-8") == text
