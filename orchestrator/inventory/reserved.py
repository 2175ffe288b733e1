"""Names of environment variables that no inventory, run file or option may set, because orch sets them itself."""

from __future__ import annotations

__all__ = ["PLACED", "RESERVED"]

# The placement of a run sets these; if an inventory set them too, every rank would get the same wrong values.
PLACED = {"RANK", "LOCAL_RANK", "NODE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
RESERVED = "ORCH_"
"""The beginning of the names by which orch finds the processes of its runs and labs; only orch sets such variables."""
