"""A rehearsal cluster on this machine, with real SSH servers, for experiments and tests.

`up` builds one in a directory, `load` returns one that is up, `down` removes it completely.
Programs on the controller's side are started through `argv_inside` with `environment`.
"""

from orchestrator.lab.machines import Machines
from orchestrator.lab.rehearsal import argv_inside, argv_on, down, environment, up
from orchestrator.lab.state import Lab, LabNode, load

__all__ = [
    "Lab",
    "LabNode",
    "Machines",
    "argv_inside",
    "argv_on",
    "down",
    "environment",
    "load",
    "up",
]
