"""What rows share: benches, and the bounds that they are judged by."""

from __future__ import annotations

from tests.e2e.rig import GRACE_S, LONG, QUICK, SMALL, running

__all__ = ["DETECT_S", "GRACE_S", "LEASE_S", "LONG", "QUICK", "SMALL", "running"]

LEASE_S = 5.0
DETECT_S = 3.5
"""At most so many seconds after it fell silent is a node declared lost."""
