"""Cells that were kept as JSON are compared as those that were read."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.analysis.compare.cell_snapshot import cell_of, dump_cell
from orchestrator.analysis.compare.cells import compare_cells, match_cells
from orchestrator.results import cells_of
from orchestrator.results.bench import read_bench
from tests.results.test_measures import made_bench
from tests.support.benches import bench


def test_a_comparison_of_kept_cells_is_that_of_the_cells(tmp_path: Path) -> None:
    before = bench(tmp_path, "a", "", [1.0, 1.01, 0.99, 1.0, 1.02])
    after = bench(tmp_path, "b", "", [1.2, 1.21, 1.19, 1.2, 1.22])
    broken = after.run("b-3").log_path("node1", "rank-0.out")
    broken.write_bytes(b"")  # a run without a number counts as failed
    whole = [cells_of(read_bench(one)) for one in (before, after)]
    again = [
        [cell_of(json.loads(json.dumps(dump_cell(cell)))) for cell in cells] for cells in whole
    ]
    pairs = compare_cells(match_cells(*whole))
    assert (
        compare_cells(match_cells(*again)) == pairs
        and pairs[0].verdict == "slower"
        and pairs[0].after.failed == 1
    )


def test_metrics_with_keys_are_kept_too(tmp_path: Path) -> None:
    cells = cells_of(read_bench(made_bench(tmp_path, "m", [["1.0", "2.0"], ["1.1", "2.1"]])))
    again = [cell_of(json.loads(json.dumps(dump_cell(cell)))) for cell in cells]
    assert [(cell.key(), cell.values, cell.metric) for cell in again] == [
        (cell.key(), cell.values, cell.metric) for cell in cells
    ]
    assert any(cell.metric_key for cell in cells)
