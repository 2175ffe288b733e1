"""Text templates of new framework folders; `orchestrator.plan.scaffold` fills in the braces."""

from __future__ import annotations

FRAMEWORK = """\
# {about}
# Keys and template names: docs/programs.md. To have an editor complete the keys: orch schema framework > framework.schema.json,
# and this line at the top of the file, with the path of that file:
#   yaml-language-server: $schema=framework.schema.json
title: {title}
{measures}
# MODEL of `orch bench MODEL`. `parameters: N` improves predictions.
models:
  {model}: {{title: {title}}}

# For each device orch's name of a type (--dtype), and the program's: a template reads the latter as dtype_flag.
dtypes:
  cuda: {{{dtype}: {dtype}}}
  cpu: {{{dtype}: {dtype}}}
{defaults}
{options}{env}
files:
  - {{template: launch.sh.j2, path: launch.sh, mode: "0700"}}

# Sent to every node, into one directory: files and folders/ of this folder.{progress}
payload: [{payload}]

# Python for vars.python of each host: versions that the table shows, and that must be equal on all nodes.
probe: {probe}

log:
{files}
{lines}
{rank}"""

FIRST_RANK = """\
  # The files that the patterns read, below the logs of a node. rank-0.out is the output of the first rank;
  # its standard error is rank-0.err, where Python's logging writes.
  files: [rank-0.out]"""
EVERY_RANK = """\
  # The files that the patterns read, below the logs of a node: those of every rank, on every node. If the first rank alone
  # prints the results of the whole run, write files: [rank-0.out], nodes: first, and no scope: and across: below.
  files: ["rank-*.out"]
  nodes: every"""

TRAINING = """\
loaders: [synthetic]

# steps includes the warm-up; the steps after it are measured. batch_size is that of one rank.
defaults:
  {{batch_size: {batch}, dtype: fp32, loader: synthetic, steps: {steps}, warmup_steps: {warmup}, timeout_s: 1800, repeats: 5}}\
"""
MEASURING = """\

# steps and warmup_steps are what the program makes of them: a template reads them as spec.steps and spec.warmup_steps.
defaults: {{dtype: none, steps: {steps}, warmup_steps: 0, timeout_s: 1800, repeats: 5}}"""

STEP_LINES = """\
  # One line per step: the group step, and one of timestamp, elapsed_s, step_time_s, samples_per_s, steps_per_s.
  # Times are in seconds and the first step is 1. For other logs add units: {{step_time_s: ms}}, counts_from: 0.
  # Try it on a log of the program: orch framework check {name} --log FILE
  patterns:
    - 'step +(?P<step>[0-9]+) +(?P<step_time_s>[0-9.]+) s/step'
  # Other results, such as memory or a bandwidth by size: lines with groups of any name, and what the groups are. A program that
  # does not train has measures: readings at the top, these two, and no patterns, loaders and batch size:
  # orch framework new NAME --from-command COMMAND --metric bandwidth:GB/s writes such a folder.
  # readings: 'size=(?P<size>[0-9]+) rate=(?P<rate>[0-9.]+)'
  # metrics: {{rate: {{unit: GB/s, better: higher, keys: [size]}}}}"""
TOKEN_OPTIONS = """
# A sample is a sequence of so many tokens, and a step has as many samples as the batch sizes of its ranks: correct both, the
# time of a step follows from them. With the sizes of the model, models: transformer:, there are TFLOP/s and MFU too.
per_step: {{tokens: seq_len{counted}}}
options:
  seq_len: {{type: int, default: {seq_len}, minimum: 1, help: "tokens of a sequence"}}
{micro_batches}"""
MICRO_BATCHES = """\
  micro_batches: {{type: int, default: {}, minimum: 1, help: "forward passes of a step"}}
"""
_STEP = r'\b(?:[Ss]tep|[Ii]ter|[Ii]teration)"?[ =:]*(?P<step>[0-9]+)\b'
_TOKENS = "(?P<tokens_per_s>[0-9](?:[0-9.,]*[0-9])?)"
_TOKEN_PATTERNS = (
    rf"""{_STEP}.*?\b[Tt]ok(?:en)?s?(?:[-_ ]?per[-_ ]?|/)s(?:ec|econd)?"?[ =:]+{_TOKENS}""",
    rf"{_STEP}.*?\b{_TOKENS} *[Tt]ok(?:en)?s?/s(?! *(?:/|per))",
)
"""How a program may print steps with tokens/s: the number behind its name, or before its unit."""
TOKEN_LINES = """\
  # One line per step, or every so many: its number, and tokens/s of all ranks. For those of each rank write scope: process,
  # and files: ["rank-*.out"], nodes: every if all of them print.
  # Try it on a log of the program: orch framework check {name} --log FILE
  thousands: ","
  patterns:
{patterns}"""
TOKEN_PATTERNS = "\n".join(f"    - '{pattern}'" for pattern in _TOKEN_PATTERNS)
RESULT_LINES = """\
  # The lines with results: a group for each metric, and one for each of its keys, such as (?P<size>[0-9]+) with keys: [size].
  # scope: rank: each rank prints its own; across: what they become, mean, sum, min or max, or each to keep them apart.
  # Try them on a log of the program: orch framework check {name} --log FILE
  readings:
{readings}
  metrics:
{metrics}"""

NO_RANK = """\
  # The line by which each rank says who it is proves that all ranks took part. If the program prints one, such as
  # "rank 0 of 8 is up", take the comment signs away:
  # rank_files: ["rank-*.out"]
  # rank: '^rank (?P<rank>[0-9]+) of (?P<world_size>[0-9]+) is up$'
"""
RANK = """\
  # The line by which each rank says who it is: a run counts only if every rank took part.
  rank_files: ["rank-*.out"]
  rank: '^rank (?P<rank>[0-9]+) of (?P<world_size>[0-9]+) is up$'
"""

OPTIONS = """
# What --set takes; a template reads options.size.
options:
  size: {type: int, default: 32, minimum: 1, help: "rows and columns of a matrix"}
"""

HEAD = """\
#!/bin/bash
# Rendered for every node: each value in braces is a literal there, already quoted. orch computes ranks, addresses and ports.
set -euo pipefail
. ./env.sh
{% if spec.device == "cuda" %}
export CUDA_VISIBLE_DEVICES={{ node.devices }}
{% endif %}
{% if host_vars.interface is defined %}
export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-{{ host_vars.interface }}}
export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-{{ host_vars.interface }}}
{% endif %}
"""
MODULES = """\
# Modules of the payload are in one directory with the rank wrapper.
export PYTHONPATH="$(cd -- "$(dirname -- {{ rank_wrapper }})" && pwd)${PYTHONPATH:+:$PYTHONPATH}"
"""
TORCHRUN = """\
# The rank wrapper gives each rank its own log: logs/rank-<rank>.out and .err.
exec {{ python }} -m torch.distributed.run \\
  --nnodes {{ spec.nodes }} --nproc_per_node {{ node.nproc }} --node_rank {{ node.node_rank }} \\
  --rdzv_backend static --master_addr {{ master_addr }} --master_port {{ master_port }} --max_restarts 0 \\
  --log_dir launcher \\
  --no_python {{ runner_python }} -I -S {{ rank_wrapper }} -- \\
  COMMAND
"""
RANKS = """\
export WORLD_SIZE={{ spec.world_size }} LOCAL_WORLD_SIZE={{ node.nproc }} NODE_RANK={{ node.node_rank }}
export MASTER_ADDR={{ master_addr }} MASTER_PORT={{ master_port }}

# The rank wrapper gives each rank its own log: logs/rank-<rank>.out and .err.
{% for local_rank in range(node.nproc) %}
RANK={{ node.first_rank + local_rank }} LOCAL_RANK={{ local_rank }} {{ runner_python }} -I -S {{ rank_wrapper }} -- \\
  COMMAND &
{% endfor %}
# Ends with the status of the first rank that fails.
for ((left = {{ node.nproc }}; left > 0; left--)); do wait -n; done
"""

PROGRAM = '''\
"""An example of a program: every rank multiplies matrices, and rank 0 prints a line per step. Put your own in its place."""

import argparse
import os
import time

options = argparse.ArgumentParser()
options.add_argument("--batch", type=int, required=True, help="products per step")
options.add_argument("--steps", type=int, required=True)
options.add_argument("--size", type=int, required=True, help="rows and columns of a matrix")
options = options.parse_args()

# A program that trains in parallel prints this line after its ranks have found each other, with the numbers of its library.
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
print("rank {} of {} is up".format(rank, world_size), flush=True)

matrix = [[float(row * column % 7) for column in range(options.size)] for row in range(options.size)]
for step in range(1, options.steps + 1):
    start = time.perf_counter()
    for _ in range(options.batch):
        columns = list(zip(*matrix))
        product = [[sum(a * b for a, b in zip(row, column)) for column in columns] for row in matrix]
    seconds = time.perf_counter() - start
    if rank == 0:
        print("step {:3d}  {:.6f} s/step".format(step, seconds), flush=True)
'''
PROGRESS = """
# rank_progress.py is orch's own: with the two lines below in the program, a hang is reported with the rank that is the cause.
#   import rank_progress
#   rank_progress.mark(step, "step")  # where each step begins"""
PRINTED = (
    r'\b(?:{spellings})\b"?[ =:]+(?P<{name}>[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)(?=[\s,;)}}\]]|$)'
)
"""How a program may print a metric: its name, also as a key of JSON, then the number."""
SAMPLE = """\
rank 0 of 2 is up
step   1  0.026804 s/step
step   2  0.026466 s/step
step   3  0.026391 s/step
"""
NO_LOG = "(no real log: these lines have the form that the pattern reads; put a log of the program in their place)\n"
TOKEN_PLACEHOLDER = """\
step 1 | loss 4.2 | 41,523 tokens/s
step 2 | loss 4.1 | 41,498 tokens/s
"""
PLACEHOLDER = """\
step 1  0.026804 s/step
step 2  0.026466 s/step
step 3  0.026391 s/step
"""
