"""A rank that hangs, from the first suspicion to the verdict, and what one sees of it in the
meantime.
"""

from __future__ import annotations

import json
import os
import signal

from tests.e2e.rig import Controller, running
from tests.support import judge


def test_a_stopped_rank_is_shown_suspected_and_named(controller: Controller) -> None:
    process = running(controller, nodes=2, step=30)
    done = controller.orch("stacks")
    assert done.code == 0 and "ranks 0, 1 still made progress, in step" in done.out, done
    assert "rank 1  node2  pid" in done.out and "in train" in done.out, done
    os.kill(controller.rank_process("node2").pid, signal.SIGSTOP)

    def said() -> list[str]:
        return [event["words"] for event in controller.events() if event["event"] == "stalled"]

    judge.wait_for(lambda: process.poll() is not None, 60, lambda: f"it goes on; said: {said()}")
    done = controller.end(process, 30)
    assert (
        done.code == 1
        and "orch: node2: rank 1 stopped in step " in done.err
        and "(state T); rank 0 waits in a collective" in done.err
    )
    assert len(said()) == 1 and ": rank 1 on node2 stopped in step" in said()[0], said()
    assert controller.manifest()["outcome"]["error"]["kind"] == "run_timeout"
    for name in ("node1", "node2"):
        assert "hang.json" in controller.exit_record(name)["files"]
    controller.assert_all_bytes_are_home("node1", "node2")
    (hang,) = json.loads(controller.orch("summarize", "--json").out)["hangs"]
    assert (hang["kind"], hang["ranks"], hang["host"], hang["waiting"]) == (
        "stopped",
        [1],
        "node2",
        [0],
    ), hang
    waiting, stopped = hang["seen"]
    assert (waiting["does"].partition(" of step")[0], stopped["state"], stopped["host"]) == (
        "waits in a collective",
        "T",
        "node2",
    )
    assert any("in train" in line for line in waiting["stack"]) and not stopped["stack"], hang[
        "seen"
    ]
    assert (
        hang["sentence"].startswith("rank 1 on node2 stopped in step ")
        and hang["suspicions"][0]["after_s"] > 0
    )
    done = controller.orch("stacks")
    assert done.code == 2 and "no run is in progress" in done.err, done
