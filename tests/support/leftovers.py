"""What a killed run of the tests left mounted. pytest removes the folders of earlier runs, and
cannot remove one in which something is mounted.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from orchestrator.procs import stat


def temporary_root() -> Path:
    """Return the folder in which pytest makes one for each run."""
    return Path(os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()).resolve()


def unmount_leftovers(root: Path) -> None:
    """Unmount what lies in folders of runs that have ended, innermost first."""
    folders = [folder for folder in root.glob("pytest-of-*/*") if not _is_used(folder)]
    lines = Path("/proc/self/mounts").read_text().splitlines()
    for line in reversed(lines):
        target = Path(line.split()[1].encode().decode("unicode_escape"))
        if any(target.is_relative_to(folder) for folder in folders):
            subprocess.run(["umount", "--lazy", str(target)], check=False)


def _is_used(folder: Path) -> bool:
    """Return whether the run lives whose process id pytest has written into its lock."""
    try:
        return stat(int((folder / ".lock").read_text())) is not None
    except (OSError, ValueError):
        return False
