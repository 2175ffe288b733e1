"""A folder with a wrong pattern: what its bench says after one run, and the repair from the logs
that were collected.
"""

from __future__ import annotations

import shutil

from tests.e2e.rig import QUICK, REPOSITORY, Controller


def test_a_wrong_pattern_ends_a_bench_after_one_run_and_is_repaired_from_its_logs(
    controller: Controller,
) -> None:
    folder = controller.project / "templates" / "simulated"
    shutil.copytree(REPOSITORY / "templates" / "simulated", folder)
    declared = folder / "framework.yaml"
    right = declared.read_text()
    declared.write_text(right.replace("^orch step=", "^orch stop="))
    words = (*QUICK, "--templates", "templates", "--nodes", "1,2", "--gpus", "1", "--repeats", "2")

    stopped = controller.orch("bench", *words)

    assert stopped.code == 4, stopped
    assert (
        "finished in" in stopped.err
        and ", no number: expected lines for steps 2…4, found 0" in stopped.err
    )
    assert (
        "node1: rank-0.out: expected lines for steps 2…4, found 0; log.patterns[0] comes nearest: line"
        in stopped.err
    )
    assert "3 further runs were not started: their logs would give no number either" in stopped.err
    assert "0 of 4 planned runs measured, 1 failed, 3 never run" in " ".join(stopped.out.split())
    assert controller.orch("history").code == 0

    declared.write_text(right)
    summarized = controller.orch("summarize")
    assert summarized.code == 4, summarized
    again = controller.orch("summarize", "--reread", "--json")
    assert again.code == 0 and "the log of 1 run is read again" in again.err, again
    (row,) = [row for row in again.json["rows"] if row["n"]]
    assert any(text.startswith("log read again on ") for text in row["qualifications"])
    assert [row["n"] for row in controller.orch("summarize", "--json").json["rows"]] == [
        row["n"] for row in again.json["rows"]
    ]

    resumed = controller.orch("resume", "--json")
    assert resumed.code == 0, resumed
    assert [row["n"] for row in resumed.json["rows"]] == [2, 2]
