"""A framework of the rows' own, whose only program does what a row tells it to before, between and
after its steps.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.e2e.rig import Controller

__all__ = ["release", "workload"]

_FRAMEWORK = """\
title: a program that misbehaves
launch: every_node
batch_size_is: device
simulated: true
models: {resnet50: {title: none, parameters: 1}}
dtypes: {cpu: {fp32: fp32}, cuda: {fp32: fp32}}
loaders: [synthetic]
defaults: {batch_size: 4, dtype: fp32, loader: synthetic, steps: 4, warmup_steps: 1, timeout_s: 60, repeats: 1}
device_defaults: {}
options: {pause_ms: {type: float, default: 5.0, minimum: 0, help: "between steps"}}
files: [{template: launch.sh.j2, path: launch.sh, target: sh, mode: "0700"}]
payload: [odd.py]
probe: 'print("{}")'
log:
  files: [rank-0.out]
  nodes: first
  scope: global
  patterns:
    - '^orch step=(?P<step>\\d+) t=(?P<timestamp>[0-9.]+) step_time_s=(?P<step_time_s>[0-9.]+) samples=(?P<samples>\\d+) loss='
  rank_files: ["rank-*.out"]
  rank: '^orch rank=(?P<rank>\\d+) local_rank=\\d+ world_size=(?P<world_size>\\d+) node_rank=\\d+ host=\\S+ pid=\\d+ device='
  closing: '^orch done (?P<json>\\{.*\\})$'
"""
_LAUNCH = """\
#!/bin/bash
set -euo pipefail
. ./env.sh
export WORLD_SIZE={{ spec.world_size }} RANK={{ node.first_rank }} LOCAL_RANK=0 NODE_RANK={{ node.node_rank }}
export STEPS={{ spec.steps }} BATCH={{ spec.global_batch }} PAUSE_MS={{ options.pause_ms }}
{{ runner_python }} -I -S {{ rank_wrapper }} -- {{ python }} -I -S -u {{ payload["odd.py"] }}
"""
_PROGRAM = """\
import json, os, socket, sys, time

RANK, WORLD, STEPS, BATCH = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "STEPS", "BATCH"))
PAUSE_S = float(os.environ["PAUSE_MS"]) / 1000
DONE = dict(world_size=WORLD, ranks=list(range(WORLD)), steps=STEPS, model="resnet50", dtype="fp32", global_batch=BATCH,
            devices={"cpu": WORLD}, simulated=True, framework="odd")
DEVICE = "cpu"


def hold():
    while not os.path.exists("go"):
        time.sleep(0.05)


def start():
    pass


def step(number):
    pass


def end():
    pass


# ---- what the row says
%s
# ---- so far

start()
host, node_rank = socket.gethostname(), os.environ["NODE_RANK"]
print(f"orch rank={RANK} local_rank=0 world_size={WORLD} node_rank={node_rank} host={host} pid={os.getpid()} device={DEVICE}")
if RANK == 0:
    print(f"orch step=0 t={time.monotonic():.6f} step_time_s=0.0 samples=0 loss=nan")
for number in range(1, STEPS + 1):
    began = time.monotonic()
    time.sleep(PAUSE_S)
    step(number)
    if RANK == 0:
        now = time.monotonic()
        print(f"orch step={number} t={now:.6f} step_time_s={now - began:.6f} samples={BATCH} loss=1.0")
if RANK == 0:
    print("orch done " + json.dumps(DONE))
end()
"""


def workload(controller: Controller, code: str, *, name: str = "odd") -> tuple[str, ...]:
    """Write a framework whose program runs ``code``; return the words of the bench that uses it.

    The code may define ``start()``, ``step(number)`` and ``end()``, change DONE and DEVICE, and call
    ``hold()``, which returns when the run is released.
    """
    folder = controller.project / "templates" / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "framework.yaml").write_text(_FRAMEWORK)
    (folder / "launch.sh.j2").write_text(_LAUNCH)
    (folder / "odd.py").write_text(_PROGRAM % code)
    words = (
        "resnet50",
        "-f",
        name,
        "--templates",
        str(folder.parent),
        "--gpus",
        "1",
        "--no-baseline",
        "--repeats",
        "1",
    )
    return ("bench", *words, "--stop-grace", "0.5")


def release(controller: Controller, names: Sequence[str]) -> None:
    """Let the programs of the newest run on these nodes go on where they hold."""
    for name in names:
        (controller.node_run(name) / "go").touch()
