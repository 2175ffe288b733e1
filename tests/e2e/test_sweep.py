"""A sweep over an option, a variable and shapes, some of them impossible: from the run file to the
tables, and `orch rm`.
"""

from __future__ import annotations

from tests.e2e.rig import Controller

RUN_FILE = """\
label: buckets and algorithms
framework: simulated
nodes: [1, 2, 99]
gpus: 1
repeats: 1
steps: 4
warmup_steps: 1
options: {gradient_mb: 0.1, compute_ms: [10, 50]}
env: {NCCL_ALGO: [null, Tree]}
exclude:
  - {nodes: 2, env: {NCCL_ALGO: null}}
  - {options: {compute_ms: 50}, env: {NCCL_ALGO: null}}
"""


def test_a_sweep_of_a_run_file_is_measured_and_told_apart_and_removed(
    controller: Controller,
) -> None:
    (controller.project / "sweep.yaml").write_text(RUN_FILE)
    done = controller.orch("bench", "resnet50", "--file", "sweep.yaml", "--json")
    assert done.code == 0 and "expected 99 hosts" in done.err, done
    rows = {
        (row["shape"], row["options"]["compute_ms"], row["options"]["NCCL_ALGO"]): row
        for row in done.json["rows"]
    }
    assert sorted(rows, key=str) == [
        ("1n1g", 10.0, "Tree"), ("1n1g", 10.0, None), ("1n1g", 50.0, "Tree"), ("2n1g", 10.0, "Tree"), ("2n1g", 50.0, "Tree"),
    ]  # fmt: skip
    assert all(row["n"] == 1 and row["speedup"] for row in rows.values())
    assert rows["1n1g", 10.0, "Tree"]["value"] > 1.5 * rows["1n1g", 50.0, "Tree"]["value"]
    assert [one["choices"]["nodes"] for one in done.json["skipped"]] == [99, 99, 99]

    # What the nodes were given: the variable where it is an axis, and none where it is not set.
    for row in rows.values():
        variables = (
            controller.bench / row["run_ids"][0] / "rendered" / "node1" / "env.sh"
        ).read_text()
        assert ("export NCCL_ALGO=Tree\n" in variables) == (row["options"]["NCCL_ALGO"] == "Tree")

    bench = controller.bench
    status = controller.orch("status")
    assert f"{bench.name}  (buckets and algorithms)  5 finished" in status.out, status
    removed = controller.orch("rm", "buckets and algorithms", "--yes")
    assert removed.code == 0 and "node[1-2] still have files of 5 of its runs" in removed.out, (
        removed
    )
    assert not bench.exists()
