"""Record that the logs of a bench are read with the log grammar of a corrected folder, and not with
the planned one.

The manifest of each run keeps the grammar that was planned, and gets the corrected one with the
digest of its folder and the date; everything that reads the run from then on uses that, and says
so. A grammar equal to the planned one removes the record.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.errors import DataError
from orchestrator.plan.folders import FrameworkFolder, open_framework
from orchestrator.record.journal import Event
from orchestrator.record.manifest import Manifest, read_manifest, write_reread
from orchestrator.record.rundir import BenchDir


def folders_of(bench: BenchDir, bases: Sequence[Path]) -> dict[str, FrameworkFolder]:
    """Return the current framework folders of a bench by name: from ``bases``, else from its plan's
    bases.

    Raises ConfigError for a folder that is missing or invalid.
    """
    record = bench.record()
    return {
        spec.framework: open_framework(spec.framework, bases or record.templates)
        for spec in record.cells
    }


def reread(bench: BenchDir, folders: Mapping[str, FrameworkFolder]) -> list[str]:
    """Record for every run of a bench that its logs are read with the grammar of these folders.
    Return in words for how many.

    The caller owns the bench. A run with a damaged manifest is left out. Raises DataError if a
    manifest cannot be written.
    """
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    counts = dict.fromkeys(folders, 0)
    for run in bench.runs():
        try:
            content = run.manifest_content()
            planned = Manifest.of({**content, "reread": None}, str(run.path), run.run_id)
            current = read_manifest(run).grammar
        except DataError:
            continue
        if planned.spec.framework not in folders:
            continue
        framework = folders[planned.spec.framework].framework
        grammar = framework.log.with_options(planned.spec.options)
        if grammar == current:
            continue
        write_reread(run, None if grammar == planned.grammar else framework, now)
        bench.event(Event.REREAD, run=run.run_id, framework=framework.name, digest=framework.digest)
        counts[framework.name] += 1
    return [_words(folders[name], count) for name, count in counts.items() if count]


def _words(folder: FrameworkFolder, count: int) -> str:
    runs = f"the logs of {count} runs are" if count > 1 else "the log of 1 run is"
    return (
        f"{runs} read again with {folder.framework.folder}, digest {folder.framework.digest[:12]}"
    )
