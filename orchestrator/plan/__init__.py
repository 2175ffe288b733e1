"""Plan runs as data: turn a framework folder and the user's choices into every file of every node.

May use `inventory` and `logs`. Results of earlier benches are passed in, never read. Only `folders`
and `payload` open files.
"""

from orchestrator.plan.framework import Framework, Knob
from orchestrator.plan.limits import Limits
from orchestrator.plan.measures import MEASURES, Measure
from orchestrator.plan.schedule import Schedule
from orchestrator.plan.spec import RunSpec, Skipped

__all__ = ["Framework", "Knob", "Limits", "MEASURES", "Measure", "RunSpec", "Schedule", "Skipped"]
