"""The hosts of a Slurm job in place of an inventory: ``--hosts slurm``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from orchestrator.inventory import Inventory
    from orchestrator.record import Project


def write_allocation(
    project: Project, source: str, bench_id: str = "", *, say: Callable[[str], None]
) -> tuple[str, str]:
    """Return the inventory file of a job's hosts, which is written into ``.orch/``, and the hosts
    as an expression.

    The file is named after the job, or after the bench that has submitted it: that one may get
    another job later.

    Raises ConfigError outside of a job, unless the source names one as in ``slurm:4711``.
    """
    from orchestrator import slurm
    from orchestrator.errors import ConfigError
    from orchestrator.files import PROJECT_HINT, write_atomic
    from orchestrator.inventory import fold
    from orchestrator.inventory.allocation import (
        SOURCES,
        inventory_text,
        job_in,
        lists_all,
        names_of,
    )

    word, number = job_in(source) or ("", "")
    number = slurm.job_id(number, f"--hosts {source}") if number else slurm.here(os.environ)
    if not number:
        hint = f"start it with salloc or sbatch, name a job of yours (--hosts {word}:4711), or name an inventory"
        raise ConfigError(
            "expected to run inside a job of Slurm: SLURM_JOB_ID is not set",
            where=f"--hosts {word}",
            hint=hint,
        )
    job = slurm.job(number)
    if job is None:
        hint = "squeue --me lists your jobs"
        raise ConfigError(
            f"expected a job that Slurm knows, got {number}", where=f"--hosts {source}", hint=hint
        )
    slurm.check_owner(job, f"--hosts {source}")
    names = names_of(job)
    known = listing(project)
    base = known[0] if known and lists_all(known[1], names) else ""
    transport = SOURCES[word]
    devices = slurm.visible_devices(job) if job.devices and transport == "srun" else {}
    project.prepare()
    path = project.root / ".orch" / f"{word}-{bench_id or job.id}.yaml"
    text = inventory_text(job, transport, base, devices)
    write_atomic(path, text.encode(), hint=PROJECT_HINT)
    until = f", until {job.end}" if job.end else ""
    counts = sorted({count for _, _, count in job.devices})
    gpus = "no GPUs"
    if counts:
        gpus = f"{' or '.join(map(str, counts))} GPU{'' if counts == [1] else 's'} a node"
    say(f"slurm: job {job.id}, {fold(names)}, {gpus}{until}")
    return str(path), fold(names)


def listing(project: Project) -> tuple[str, Inventory] | None:
    """Return the file and the content of the project's own inventory, which may list the hosts of a
    job; None without one.
    """
    from orchestrator.inventory import open_inventory
    from orchestrator.inventory.allocation import job_in

    source = project.inventory_source("", {**os.environ, "SLURM_JOB_ID": ""})[0]
    if job_in(source) or not Path(source).exists():
        return None
    return str(Path(source).absolute()), open_inventory(source)
