"""Ansible inventories: what `ansible-inventory` prints for them where it is installed, else plain
INI and YAML files.
"""

from orchestrator.feature import Feature

FEATURE = Feature(provides={"inventory_format": "inventory"})
