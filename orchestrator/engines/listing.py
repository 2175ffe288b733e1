"""The engines, by name and by what ``--hosts`` calls their hosts."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.engines.protocol import Base, Engine, Say
    from orchestrator.inventory import Inventory
    from orchestrator.record import Project
    from orchestrator.record.bench_record import BenchRecord

_SOURCES = {"slurm": re.compile(r"(slurm|srun)(:|$)"), "kubernetes": re.compile("pods:")}
"""The engines, and how a value of ``--hosts`` that means hosts of one begins."""
NAMES = tuple(_SOURCES)
"""The engines, each an option of ``orch bench``."""


def open_engine(name: str) -> Engine:
    """Return an engine. Each is imported when it is needed."""
    if name == "slurm":
        from orchestrator.engines.slurm.engine import SlurmEngine

        return SlurmEngine()
    from orchestrator.engines.kubernetes.engine import KubernetesEngine

    return KubernetesEngine()


def logs_go_with_job(record: BenchRecord) -> bool:
    """Whether the logs of a bench that are still on its nodes are lost when its job is over."""
    return bool(record.job) and open_engine(record.engine).logs_go_with_job


def engine_of(source: str) -> Engine | None:
    """Return the engine whose hosts a value of ``--hosts`` means; None for another value."""
    found = (name for name, beginning in _SOURCES.items() if beginning.match(source))
    return next(map(open_engine, found), None)


def write_hosts(
    project: Project, source: str, bench_id: str = "", *, say: Say
) -> tuple[str, str] | None:
    """Return the inventory file of an engine's hosts, which is written into ``.orch/``, and the
    hosts as an expression; None for a source of another kind.
    """
    engine = engine_of(source)
    if engine is None:
        return None
    return engine.write_hosts(project, source, bench_id, base_in(project), say)


def renew(project: Project, inventory: str, *, say: Say) -> None:
    """Write an inventory that an engine has written anew, as its hosts may be in other places by now:
    in another job, in other pods.
    """
    if Path(inventory).parent == project.root / ".orch":
        for engine in map(open_engine, NAMES):
            engine.renew(project, inventory, base_in(project), say)


def own_inventory(project: Project) -> tuple[str, Inventory] | None:
    """Return the file and the content of the project's own inventory, which may list the hosts of a
    job; None without one.
    """
    from orchestrator.inventory import open_inventory

    source = project.inventory_source("", {**os.environ, "SLURM_JOB_ID": ""})[0]
    if engine_of(source) or not Path(source).exists():
        return None
    return str(Path(source).absolute()), open_inventory(source)


def base_in(project: Project) -> Base:
    """Return the function that finds the project's own inventory, where that one lists hosts."""

    def base(names: Sequence[str]) -> str:
        known = own_inventory(project)
        return known[0] if known and lists_all(known[1], names) else ""

    return base


def lists_all(inventory: Inventory, names: Sequence[str]) -> bool:
    """Whether an inventory lists the hosts of a job; False if it lists none. Raises ConfigError if
    it lists some of them.
    """
    from orchestrator.errors import ConfigError
    from orchestrator.inventory import fold

    known = {host.name for host in inventory.hosts}
    if not known & set(names):
        return False
    if missing := [name for name in names if name not in known]:
        hint = f"add them, or name another inventory with ORCH_HOSTS; it lists {fold(known)}"
        raise ConfigError(
            f"expected all hosts of the job, {fold(missing)} are missing",
            where=inventory.source,
            hint=hint,
        )
    return True
