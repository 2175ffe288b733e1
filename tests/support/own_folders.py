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


RULE = """\
published:
  rule: steady
  runs: 3
  statistic: mean
  rules:
    steady:
      title: mean rate of steps 11-40
      lines: '^step +(?P<step>[0-9]+) .* (?P<step_time_s>[0-9.]+) s/step'
      clock: '(?P<timestamp>[0-9:]+)'
      size_lines: ['^(?P<world_size>[0-9]+) ranks']
      window: {first: 11, last: 40}
      by: step_time_s
      over: mean
      line_rounding: {places: 4}
      rounding: {places: 1, by: python}
"""
"""A published rule for the end of `WHOLE`."""

TABLES = """\
{
  "schema": 1,
  "source": "a paper, table 2",
  "tables": {
    "mlp_b256": {
      "model": "mlp",
      "dtype": "fp32",
      "batch_size": 256,
      "statistic": "mean",
      "divisor": "mean/mean",
      "places": {"speed": 1},
      "runs": 3,
      "cases": {
        "1n1g": {"speed": 303.1, "speedup": 1.0, "runs": [301.4, 303.9, 304.0]},
        "1n2g": {"speed": 590.2, "speedup": 1.95, "median": 591.1, "runs": [[1, 588.0], [2, 591.1], [3, 591.5]]}
      }
    }
  }
}
"""
"""A file with published tables, without a fault."""
