"""Messages by RDMA between all pairs of nodes, before a run needs them."""

from orchestrator.feature import Feature

FEATURE = Feature(provides={"host_audit": "host_audit"})
