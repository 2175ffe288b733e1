"""What a bench still owes when its controller is gone: runs to bring to their end, runs to repeat, runs to start.

A run counts when it finished, or failed of itself. One that ended because its controller or a node went away measured nothing;
it stays where it is, and a fresh attempt takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.controller.campaign import Campaign
from orchestrator.controller.events import TakingOver
from orchestrator.errors import recorded_error
from orchestrator.plan.bench import PlannedRun
from orchestrator.record.journal import begun_runs
from orchestrator.record.manifest import RecordedOutcome, read_manifest
from orchestrator.record.owed import supersede

__all__ = ["counts", "remaining"]

_OF_ITSELF = ("rank_failed", "run_timeout", "output_limit")


def remaining(campaign: Campaign, runs: Mapping[str, PlannedRun], *, retry_failed: bool = False) -> list[PlannedRun]:
    """Bring every run that was under way to its end, and return those that are still to be run, in order.

    Errors of runs that count are noted in the campaign, as the controller before would have done. Raises OrchError where
    a node of a run that was under way cannot be reached.
    """
    found = []
    begun = begun_runs(campaign.bench.events())
    for run_id, run in runs.items():
        directory = campaign.bench.run(run_id)
        if not (directory.path / "manifest.json").exists():
            # What was lost here may lie whole on its nodes, where no other run may write over it.
            found.append(supersede(campaign.bench, run) if run_id in begun else run)
            continue
        outcome = read_manifest(directory).outcome
        if outcome is None:
            campaign.stage.cluster.open()
            campaign.stage.observe(TakingOver(run))
            if campaign.take_over(run) is None:
                found.append(run)
                continue
            if campaign.stage.interrupt.signal:
                return []
            outcome = read_manifest(directory).outcome
        if outcome is None or not counts(outcome) or (retry_failed and outcome.state != "finished"):
            found.append(supersede(campaign.bench, run))
        elif outcome.state != "finished":
            campaign.errors.append(outcome.error or recorded_error(None, run_id))
    return found


def counts(outcome: RecordedOutcome) -> bool:
    """Claim that a recorded outcome says something about what was measured."""
    return outcome.state == "finished" or (outcome.error is not None and outcome.error.kind in _OF_ITSELF)
