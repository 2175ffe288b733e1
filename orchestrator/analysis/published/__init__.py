"""Compare a bench with published tables, and recompute those tables from their own logs."""

from orchestrator.analysis.published.folders import published_files
from orchestrator.analysis.published.foreign import by_rule
from orchestrator.analysis.published.nearest import nearest_records
from orchestrator.analysis.published.reference import reference_tables
from orchestrator.analysis.published.tables import recompute

__all__ = ["by_rule", "nearest_records", "published_files", "recompute", "reference_tables"]
