"""Notes on what was planned."""

from __future__ import annotations

from orchestrator.notes import REFUSAL, Kind

SKIPPED = Kind("skipped", REFUSAL, "skipped, because impossible: {names}: {reason}")
