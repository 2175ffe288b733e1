"""A project with stand-ins for Slurm's programs: sbatch refuses every job, and notes that it was
asked.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.commands import orch


def with_refusing_slurm(directory: Path) -> Path:
    """Make such a project in a directory, with an inventory of GPUs and a wrong suite."""
    (directory / "bin").mkdir()
    for name in ("sbatch", "squeue", "scontrol", "scancel", "srun"):
        lines = [
            "#!/bin/sh",
            f"touch {directory}/asked-{name}",
            "echo 'Invalid partition name specified' >&2",
            "exit 1",
            "",
        ]
        (directory / "bin" / name).write_text("\n".join(lines))
        (directory / "bin" / name).chmod(0o755)
    (directory / "gpus.yaml").write_text('schema: 1\nhosts:\n  "slurm-[0-1]": {gpus: 8}\n')
    (directory / "wrong.yaml").write_text(
        "schema: 1\ntitle: wrong\nstages:\n  - {bench: resnet50, dtype: fp61}\n"
    )
    return directory


def submitted(project: Path, *words: str, hosts: str = "") -> tuple[int, list[str], bool]:
    """Run a command with ``--slurm`` in a project whose inventory is ``hosts``; return its status,
    its errors and whether it has asked Slurm for anything."""
    variables = {"PATH": f"{project / 'bin'}:{os.environ['PATH']}"} | (
        {"ORCH_HOSTS": str(project / hosts)} if hosts else {}
    )
    done = orch(project, *words, environment=variables)
    was_asked = bool(list(project.glob("asked-*")))
    assert was_asked or not (project / ".orch").exists()
    return (
        done.returncode,
        [line for line in done.stderr.splitlines() if line.startswith("orch: ")],
        was_asked,
    )
