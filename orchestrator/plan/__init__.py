"""Decide everything as data: a framework folder and choices become every file of every node.

May use `inventory` and `logs`; knows no past: what earlier benches say is handed in. `folders` alone opens files.
"""

from orchestrator.plan.framework import Framework, Knob
from orchestrator.plan.limits import Limits
from orchestrator.plan.measures import MEASURES, Measure
from orchestrator.plan.schedule import Schedule
from orchestrator.plan.spec import RunSpec

__all__ = ["Framework", "Knob", "Limits", "MEASURES", "Measure", "RunSpec", "Schedule"]
