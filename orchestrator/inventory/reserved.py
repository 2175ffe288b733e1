"""Names of variables that orch sets itself, and of the one that it sets on a lab's nodes.

No inventory, run file or option may set them.
"""

from __future__ import annotations

# The placement of a run sets these; if an inventory set them too, every rank would get the same
# wrong values.
PLACED = {
    "RANK",
    "LOCAL_RANK",
    "NODE_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
}
RESERVED = "ORCH_"
"""The beginning of the names by which orch finds the processes of its runs and labs; only orch sets
such variables.
"""

LAB_VARIABLE = "lab_private"
"""The variable of nodes of a lab of namespaces: the folders that each has for itself. Outside,
their addresses are others'.
"""
