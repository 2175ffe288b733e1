"""A launcher that starts on the first node only: the others wait, end with it, and what it started
there is theirs to end.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.plan.framework import run_path
from tests.e2e.rig import Controller
from tests.support import judge
from tests.support.faultlab import ssh

FRAMEWORK = """\
title: a launcher in the way of mpirun
launch: every_node
launch_by: {style: {mpi: first_node}}
models: {resnet50: {title: ResNet-50, parameters: 25557032}}
dtypes: {cpu: {fp32: fp32}}
loaders: [synthetic]
defaults: {batch_size: 2, dtype: fp32, loader: synthetic, steps: 3, warmup_steps: 1, timeout_s: 600, repeats: 1}
options:
  style: {type: str, default: mpi, choices: [mpi, plain], help: "how it starts"}
  pause_s: {type: float, default: 0.0, minimum: 0, help: "seconds before the end"}
  code: {type: int, default: 0, help: "exit code of the launcher"}
files: [{template: launch.sh.j2, path: launch.sh, mode: "0700"}]
probe: "print('{}')"
log:
  files: [node.out]
  patterns: ['step=(?P<step>[0-9]+) took (?P<step_time_s>[0-9.]+) s']
"""
LAUNCH = """\
#!/bin/bash
set -euo pipefail
. ./env.sh
for step in 1 2 3; do sleep 0.1; echo "step=$step took 0.1 s"; done
while [ -e ~/hold ]; do sleep 0.1; done
sleep {{ options.pause_s }}
exit {{ options.code }}
"""


@pytest.fixture
def templates(tmp_path: Path) -> Path:
    folder = tmp_path / "templates" / "mpilike"
    folder.mkdir(parents=True)
    (folder / "framework.yaml").write_text(FRAMEWORK)
    (folder / "launch.sh.j2").write_text(LAUNCH)
    return folder.parent


def bench(templates: Path, *words: str) -> tuple[str, ...]:
    return (
        "bench",
        "resnet50",
        "-f",
        "mpilike",
        "--templates",
        str(templates),
        "--nodes",
        "3",
        "--gpus",
        "1",
        "--no-baseline",
        *words,
    )


def test_the_others_wait_and_end_with_the_first(controller: Controller, templates: Path) -> None:
    done = controller.orch(*bench(templates, "--set", "pause_s=1"))
    assert done.code == 0, done
    records = {host: controller.exit_record(host) for host in ("node1", "node2", "node3")}
    assert {record["state"] for record in records.values()} == {"finished"}
    ends = {host: record["ended_mono_s"] for host, record in records.items()}
    assert min(ends["node2"], ends["node3"]) >= ends["node1"] and judge.in_time(
        max(ends.values()) - ends["node1"], 2.0
    )
    assert (controller.runs[-1] / "rendered/node2/launch.sh").read_text() != (
        controller.runs[-1] / "rendered/node1/launch.sh"
    ).read_text()


def test_what_the_launcher_started_on_a_waiting_node_ends_with_the_run(
    controller: Controller, templates: Path
) -> None:
    hold = controller.lab.node("node1").home / "hold"
    hold.touch()  # until ssh has got there
    process = controller.start(*bench(templates))
    waiting = "node2", "launch.sh"

    def launched() -> set[tuple[str, str]]:
        return {(one.node, one.cmdline.rpartition(" ")[2]) for one in judge.ours(controller.lab)}

    judge.wait_for(lambda: waiting in launched(), 20, "nothing is launched on node2")
    marker = f"ORCH_RUN_ID={controller.runs[-1].name}"
    # As mpirun's ssh does it: no descendant of the node runner, known by the run's marker alone.
    first = f"~/.orch-node/{run_path('node1', controller.runs[-1].name)}"
    launched_there = f"cd {first} && echo by node1 > logs/nccl.log && {marker} setsid -f sleep 1000 </dev/null >/dev/null 2>&1"
    ssh(controller.lab, "node2", launched_there)
    assert any("sleep 1000" in one.cmdline for one in judge.ours(controller.lab))
    hold.unlink()
    done = controller.end(process, 60)
    assert done.code == 0, done
    assert not judge.ours(controller.lab)
    assert controller.manifest()["outcome"]["clean"]["node2"] == {"checked": True, "left": []}
    assert (controller.runs[-1] / "logs" / "node2" / "nccl.log").read_text() == "by node1\n"
    assert controller.orch("collect", "--prune").code == 0
    assert not list(
        (controller.lab.node("node2").home / ".orch-node").glob(
            f"nodes/*/runs/{controller.runs[-1].name}"
        )
    )


def test_a_launcher_that_fails_fails_the_run_and_frees_those_that_wait(
    controller: Controller, templates: Path
) -> None:
    began = time.monotonic()
    done = controller.orch(*bench(templates, "--set", "code=3"))
    assert done.code == 1 and "node1: its launch script ended with exit code 3" in done.err, done
    assert judge.in_time(time.monotonic() - began, 20)
    assert controller.exit_record("node2")["state"] == "stopped"
    assert not judge.ours(controller.lab)


def test_the_same_folder_starts_on_every_node_where_an_option_says_so(
    controller: Controller, templates: Path
) -> None:
    assert controller.orch(*bench(templates, "--set", "style=plain")).code == 0
    for host in ("node1", "node2", "node3"):
        assert "step=3" in (controller.runs[-1] / "logs" / host / "node.out").read_text()
