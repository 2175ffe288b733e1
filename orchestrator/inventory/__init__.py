"""The machines of a cluster: hosts, groups and host sets, from inventories in any supported format.

Depends only on the ground files. Nothing in this package opens a connection, and only `read` opens
files.
"""

from orchestrator.inventory.hosts import REFERENCE, Host, Inventory, SshSettings, takes_references
from orchestrator.inventory.hostset import expand, fold, in_order, is_loopback, is_path
from orchestrator.inventory.read import open_inventory
from orchestrator.inventory.secrets import NO_SECRETS, Redaction, public_vars, redaction
from orchestrator.inventory.versions import meets

__all__ = [
    "NO_SECRETS", "REFERENCE", "Host", "Inventory", "Redaction", "SshSettings", "expand", "fold", "in_order", "is_loopback",
    "is_path",
    "meets", "open_inventory", "public_vars", "redaction", "takes_references",
]  # fmt: skip
