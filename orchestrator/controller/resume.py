"""The outstanding work of a bench whose controller is gone: runs to bring to their end, runs to
repeat, runs to start.

A run counts if it finished or failed by itself. A run that ended because its controller or a node
was lost measured nothing; its evidence is kept, and a new attempt replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.controller.campaign import Campaign
from orchestrator.controller.events import TakingOver
from orchestrator.errors import restore_error
from orchestrator.plan.bench import PlannedRun
from orchestrator.record.journal import list_runs
from orchestrator.record.manifest import read_manifest
from orchestrator.record.pending_work import supersede


def remaining(
    campaign: Campaign, runs: Mapping[str, PlannedRun], *, retry_failed: bool = False
) -> list[PlannedRun]:
    """Bring every run that was under way to its end, and return the runs still to be executed, in
    order.

    Errors of runs that count are added to the campaign, as by the previous controller. Raises
    OrchError if a node of a run that was under way cannot be reached, and no spare may take its
    place.
    """
    outstanding = []
    begun = list_runs(campaign.bench.events())
    for run_id, run in runs.items():
        directory = campaign.bench.run(run_id)
        if not (directory.path / "manifest.json").exists():
            # Its files may still be complete on the nodes, where a run of the same id would
            # overwrite them.
            outstanding.append(supersede(campaign.bench, run) if run_id in begun else run)
            continue
        outcome = read_manifest(directory).outcome
        if outcome is None:
            campaign.stage.observe(TakingOver(run))
            taken_over = campaign.take_over(run)
            if taken_over is None:
                outstanding.append(run)
                continue
            campaign.errors += taken_over.leftovers
            if campaign.stage.interrupt.signal:
                return []
            outcome = read_manifest(directory).outcome
        if outcome is None or not outcome.counts or (retry_failed and outcome.state != "finished"):
            outstanding.append(supersede(campaign.bench, run))
        elif outcome.state != "finished":
            campaign.errors.append(outcome.error or restore_error(None, run_id))
    return outstanding
