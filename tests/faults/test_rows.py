"""One trial of every row that fits, with all other tests; ``make faults`` runs them as often as
they ought to be.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.lab import Lab
from tests.faults import rows  # noqa: F401 - importing them enters the rows
from tests.faults.suite import ROWS, run_trial


@pytest.mark.parametrize("name", [row.name for row in ROWS.values() if row.short])
def test_row(shared_lab: Lab, tmp_path: Path, name: str, request: pytest.FixtureRequest) -> None:
    if reason := ROWS[name].skip():
        pytest.skip(reason)
    result = run_trial(name, 1, 1, shared_lab, tmp_path / "trial", full=False)
    assert result.passed, f"{ROWS[name].fault}: {result.text}"
