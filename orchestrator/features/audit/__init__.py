"""Audit of hosts: settings of kernel, PCIe, drivers and NCCL that make training slow or unsafe, and
versions that an advisory names.
"""

from orchestrator.feature import Feature

FEATURE = Feature(provides={"host_audit": "host_audit", "variables": "host_audit"})
