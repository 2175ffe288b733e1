"""Framework folders of a user's own, without a fault: one that trains, and one that trains a
language model.
"""

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


LANGUAGE_MODEL = """\
title: my language model
measures: language_model
models:
  nine:
    title: nine layers
    transformer: {layers: 9, width: 1024, heads: 16, kv_heads: 4, mlp: 4096, gated: true, vocab: 512}
    defaults: {batch_size: 5, options: {seq_len: 2048}}
  four: {transformer: {layers: 4, width: 128, heads: 4, mlp: 512, gated: false, vocab: 512}}
per_step:
  tokens: seq_len
  micro_batches: accumulation
  shared_by: [tensor_parallel, pipeline_parallel]
  recomputation: recompute
dtypes:
  cuda: {bf16: bf16}
  cpu: {bf16: bf16}
loaders: [synthetic]
defaults: {batch_size: 8, dtype: bf16, loader: synthetic, steps: 12, warmup_steps: 2, timeout_s: 300, repeats: 3}
device_defaults: {cpu: {batch_size: 1}}
options:
  seq_len: {type: int, default: 1024, minimum: 1, device_default: {cpu: 64}, help: tokens of a sequence}
  accumulation: {type: int, default: 1, minimum: 1, help: forward passes of a step}
  tensor_parallel: {type: int, default: 1, minimum: 1, help: ranks that share each layer}
  pipeline_parallel: {type: int, default: 1, minimum: 1, help: ranks that share the layers}
  recompute: {type: str, default: none, choices: [none, selective, full], help: what is recomputed}
  mode: {type: str, default: fast, choices: [fast, slow], help: how}
files:
  - {template: launch.sh.j2, path: launch.sh, mode: "0700"}
payload: [train.py]
probe: 'import json, torch; print(json.dumps({"torch": torch.__version__}))'
log:
  files: [rank-0.out]
  patterns: ['^step +(?P<step>[0-9]+) .* (?P<step_time_s>[0-9.]+) s/step']
  rank: '^rank (?P<rank>[0-9]+) of (?P<world_size>[0-9]+) is up$'
"""
