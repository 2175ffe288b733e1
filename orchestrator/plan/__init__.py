"""Plan runs as data: turn a framework folder and the user's choices into every file of every node.

May use `inventory` and `logs`. Results of earlier benches are passed in, never read. Only `folders` opens files.
"""

from orchestrator.plan.bench import Bench, PlannedRun, plan_run
from orchestrator.plan.folders import FrameworkFolder, framework_for, frameworks, open_framework
from orchestrator.plan.framework import Framework, Knob
from orchestrator.plan.limits import Limits
from orchestrator.plan.measures import MEASURES, Measure
from orchestrator.plan.render import NodePlan, Plan
from orchestrator.plan.request import Request
from orchestrator.plan.schedule import Schedule
from orchestrator.plan.spec import RunSpec

__all__ = [
    "Bench", "Framework", "FrameworkFolder", "Knob", "Limits", "MEASURES", "Measure", "NodePlan", "Plan", "PlannedRun",
    "Request", "RunSpec", "Schedule", "framework_for", "frameworks", "open_framework", "plan_run",
]  # fmt: skip
