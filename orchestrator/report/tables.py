"""All tables of a summary, in the order in which every output for people shows them."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.report.cells import Table, scaling_table
from orchestrator.report.metric_tables import MetricTable, metric_tables
from orchestrator.results.series import Group
from orchestrator.results.summary import Summary


def tables(summary: Summary) -> tuple[Table, ...]:
    """Return the tables of each framework, model, dtype and device: the speed's, then the other
    metrics'.
    """
    shown: list[Table] = []
    for group in summary.groups():
        speeds = tuple(row for row in group.rows if row.is_speed)
        shown += [scaling_table(replace(group, rows=speeds), summary)] if speeds else []
        shown += [entry.table for entry in _of_group(group)]
    return tuple(shown)


def of_metrics(summary: Summary) -> tuple[MetricTable, ...]:
    """Return the tables of metrics other than speeds of training."""
    return tuple(entry for group in summary.groups() for entry in _of_group(group))


def _of_group(group: Group) -> tuple[MetricTable, ...]:
    rows = tuple(row for row in group.rows if not row.is_speed)
    if not rows:
        return ()
    return metric_tables(replace(group, rows=rows))
