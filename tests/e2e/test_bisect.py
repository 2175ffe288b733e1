"""`orch bisect` in a lab: the planted difference is proven, also after its controller was killed."""

from __future__ import annotations

import json
import os
import signal

from tests.e2e.rig import SMALL, Controller
from tests.support import judge

WORDS = (
    *SMALL[:-4],
    "--stop-grace",
    "0.5",
    "--nodes",
    "1",
    "--steps",
    "12",
    "--warmup-steps",
    "2",
    "--repeats",
    "2",
)
A, B = (
    ("--set", "compute_ms=20", "--label", "A"),
    ("--set", "compute_ms=80", "--set", "seed=7", "--label", "B"),
)
"""A step of B takes about three times as long, however busy the machine is; the seed of no jitter
does nothing. Both sleep so long that noise asks for no more runs than the fewest.
"""


def test_a_planted_option_is_proven_though_the_controller_is_killed_on_the_way(
    controller: Controller,
) -> None:
    for side in (A, B):
        done = controller.orch("bench", *WORDS, *side)
        assert done.code == 0, done
    process = controller.start(
        "bisect", "A", "B", "--budget", f"{300 * judge.patience:g}s", "--stop-grace", "0.5"
    )
    # after the eight runs of A and B, in the round of single differences
    judge.wait_for(
        lambda: len(list(controller.project.glob("runs/*/*/manifest.json"))) >= 4 + 10,
        90,
        "no round was begun",
    )
    os.kill(process.pid, signal.SIGKILL)
    controller.end(process, 20)
    before = json.loads((controller.bench / "bench.json").read_text())["bisect"]
    assert [one["name"] for one in before["differences"]] == [
        "options.compute_ms",
        "options.seed",
    ] and before["rungs"]

    done = controller.orch("resume", "--json", timeout_s=300)
    assert done.code == 0, done
    found = done.json
    assert (found["verdict"], found["causes"], found["doubtful"]) == (
        "explained",
        ["compute_ms=80.0"],
        [],
    )
    assert found["share"]["low"] > 0.5 and found["change"]["interval"]["high"] < 0.7
    assert found["answer"].startswith("compute_ms=80.0 explains ")
    record = json.loads((controller.bench / "bench.json").read_text())
    assert (
        record["bisect"]["ended"] == "verified"
        and record["bisect"]["rungs"][: len(before["rungs"])] == before["rungs"]
    )
    launched = [
        (run / "rendered" / "node1" / "launch.sh").read_text()
        for run in controller.runs
        if run.name in found["evidence"]
    ]
    assert len(launched) == 3 * record["bisect"]["rungs"][-1]["repeats"]
    assert {("--compute-ms=80.0" in text, "--seed 7" in text) for text in launched} == {
        (False, False), (True, False), (True, True),
    }  # fmt: skip

    shown = controller.orch("summarize")
    assert shown.code == 0 and "compute_ms=80.0 explains" in shown.out.replace("\n", " "), shown
    pruned = controller.orch("collect", "--prune", controller.bench.name)
    assert pruned.code == 0 and judge.ours(controller.lab) == [], pruned
    again = controller.orch("attach")
    assert again.code == 0 and found["answer"] in again.out, again
