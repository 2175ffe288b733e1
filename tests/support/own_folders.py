"""A framework folder of a user's own, without a fault."""

from __future__ import annotations

from pathlib import Path

WHOLE = """\
title: my MLP
models:
  mlp: {title: MLP, parameters: 4198400}
dtypes:
  cpu: {fp32: float32}
loaders: [synthetic]
defaults:
  batch_size: 256
  dtype: fp32
  loader: synthetic
  steps: 40
  warmup_steps: 10
  timeout_s: 300
  repeats: 3
options:
  width: {type: int, default: 1024, minimum: 1, help: width of each layer}
  mode: {type: str, default: fast, choices: [fast, slow], help: how}
env: {OMP_NUM_THREADS: "1"}
files:
  - {template: launch.sh.j2, path: launch.sh, mode: "0700"}
payload: [train.py]
probe: 'import json, torch; print(json.dumps({"torch": torch.__version__}))'
log:
  files: [rank-0.out]
  patterns: ['^step +(?P<step>[0-9]+) .* (?P<step_time_s>[0-9.]+) s/step']
  rank: '^rank (?P<rank>[0-9]+) of (?P<world_size>[0-9]+) is up$'
"""


def folder_of(path: Path, text: str, launch: str = "echo\n") -> Path:
    path.mkdir()
    (path / "framework.yaml").write_text(text)
    (path / "launch.sh.j2").write_text(launch)
    (path / "train.py").write_text("")
    return path
