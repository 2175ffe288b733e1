"""Trees of logs that this tool did not write, with the speeds of published tables."""

from __future__ import annotations

import random
from pathlib import Path

from orchestrator.features.published.folders import read_published_files
from orchestrator.features.published.run_size import Case
from orchestrator.features.published.tables import PublishedTable
from tests.support import systemlogs
from tests.support.rendering import opened

FILES = read_published_files()
FRAMEWORKS = {name: opened(name).framework for name in FILES}
C8 = Case(nodes=1, gpus=8, batch_size=128)
TF = "tensorflow_official"


def plant(root: Path, framework: str, table: PublishedTable, seed: int = 1) -> None:
    """Write the runs of a published table as a tree, in any order; a table without runs as one run
    of each case.
    """
    places = []
    for cell in table.cells:
        nodes, gpus = map(int, cell.case[:-1].split("n"))
        case = Case(nodes, gpus, table.batch_size)
        unprinted = (
            systemlogs.pytorch_runs if framework == "pytorch_examples" else lambda speed, _: [speed]
        )
        places += [
            (case, *run) for run in cell.runs or enumerate(unprinted(cell.speed, case), start=1)
        ]
    random.Random(seed).shuffle(places)
    for case, run_id, speed in places:
        folder = root / "logs" / "any" / str(case)
        folder.mkdir(parents=True, exist_ok=True)
        name = f"rn50_b{table.batch_size}_{table.dtype}_{run_id}.log"
        # The bytes of two runs are never the same, even where two speeds are.
        log = systemlogs.WRITERS[framework](speed, case) + f"run {run_id}\n".encode()
        (folder / name).write_bytes(log)


def table_of(framework: str, name: str) -> PublishedTable:
    return next(table for table in FILES[framework].tables if table.name == name)


def put(
    path: Path,
    framework: str = "tensorflow_official",
    speed: float = 2458.74,
    case: Case = C8,
    end: str = "",
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(systemlogs.WRITERS[framework](speed, case) + end.encode())
