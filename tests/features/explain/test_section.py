"""The JSON of an explained bench, by the published schema."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from orchestrator.cli.main import program
from tests.support.explained_benches import bench_of
from tests.support.run_folders import build
from tests.support.summary_schema import assert_every_key_counts, problems


def test_the_schema_has_what_explains_a_summary(tmp_path: Path) -> None:
    bench = bench_of(tmp_path, "r2", "r3")
    build(bench, "r2", repeat=2, seconds=0.51)
    build(bench, "r3", lambda planned, logs: planned["spec"].update(batch_size=128), repeat=1)
    whole = json.loads(
        CliRunner().invoke(program(), ["summarize", str(bench.path), "--json", "--explain"]).stdout
    )
    assert problems(whole) == [] and whole["explained"][1]["startup"]
    assert_every_key_counts(whole, optional=["explained"])
