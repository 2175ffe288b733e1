"""What rows share: benches that last, and moments in them."""

from __future__ import annotations

import subprocess

from tests import judge
from tests.e2e.rig import LONG, QUICK, SMALL, Controller

__all__ = ["GRACE_S", "LEASE_S", "LONG", "QUICK", "SMALL", "running"]

GRACE_S = 0.5
"""Seconds from terminate to kill in `LONG`."""
LEASE_S = 5.0
DETECT_S = 3.5
"""At most so many seconds after it fell silent is a node declared lost."""


def running(controller: Controller, *words: str, nodes: int = 4, step: int = 3) -> subprocess.Popen[str]:
    """Start a bench that lasts, and return once its first rank has done a few steps."""
    process = controller.start("bench", *LONG, "--nodes", str(nodes), "--gpus", "1", *words)
    judge.wait_for(lambda: list(controller.project.glob("runs/*/*/manifest.json")), 30, "no run was planned")
    controller.wait_for_step(step)
    return process
