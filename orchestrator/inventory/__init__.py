"""The machines of a cluster: hosts, groups and host sets, from inventories in any supported format.

Depends only on the ground files. Nothing in this package opens a connection, and only `read` opens files.
"""

from orchestrator.inventory.hosts import Host, Inventory, SshSettings, secret_values
from orchestrator.inventory.hostset import expand, fold, nearest
from orchestrator.inventory.read import open_inventory
from orchestrator.inventory.secrets import Redaction, redaction
from orchestrator.inventory.versions import meets

__all__ = [
    "Host", "Inventory", "Redaction", "SshSettings", "expand", "fold", "meets", "nearest", "open_inventory", "redaction",
    "secret_values",
]  # fmt: skip
