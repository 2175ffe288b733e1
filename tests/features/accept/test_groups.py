"""Benches of acceptances among the benches of a project."""

from __future__ import annotations

from pathlib import Path

from orchestrator.record.bench_groups import every_bench_folder


def test_benches_of_an_acceptance_are_benches_of_the_project(tmp_path: Path) -> None:
    for name in ("b2/bench.json", "b1/bench.json", "quick/s1/bench.json", "quick/s2/bench.json",
                 "quick/acceptance.json", "other/s3/bench.json"):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in every_bench_folder(tmp_path)]
    assert found == ["b1", "b2", "quick/s1", "quick/s2"]
