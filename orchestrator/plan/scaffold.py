"""The files of a new framework folder, as text: for a training command, or a small example that runs anywhere.

What is generated passes ``orch framework check`` and runs as it is; comments say what to change for a program of one's own.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence

from orchestrator.errors import ConfigError
from orchestrator.logs.metrics import BETTER, Metric
from orchestrator.plan.command_line import TrainingCommand
from orchestrator.plan.measures import SAMPLES_PER_S

__all__ = ["example", "for_command", "new_metric"]

_BATCH = re.compile(r"--(?:batch[-_]size|batch|bs)")
_STEPS = re.compile(r"--(?:(?:max|num|train)[-_])?(?:steps|iters|iterations)")

_FRAMEWORK = """\
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

# Sent to every node, into one directory: files and folders/ of this folder.
payload: [{payload}]

# Python for vars.python of each host: versions that the table shows, and that must be equal on all nodes.
probe: {probe}

log:
  # The files that the patterns read, below the logs of a node. rank-0.out is the output of the first rank.
  files: [rank-0.out]
{lines}
{rank}"""

_TRAINING = """\
loaders: [synthetic]

# steps includes the warm-up; the steps after it are measured. batch_size is that of one rank.
defaults:
  {{batch_size: {batch}, dtype: fp32, loader: synthetic, steps: {steps}, warmup_steps: {warmup}, timeout_s: 1800, repeats: 3}}\
"""
_MEASURING = """\

# steps and warmup_steps are what the program makes of them: a template reads them as spec.steps and spec.warmup_steps.
defaults: {{dtype: none, steps: {steps}, warmup_steps: 0, timeout_s: 1800, repeats: 5}}"""

_STEP_LINES = """\
  # One line per step: the group step, and one of timestamp, elapsed_s, step_time_s, samples_per_s, steps_per_s.
  # Try it on a log of the program: orch framework check {name} --log FILE
  patterns:
    - 'step +(?P<step>[0-9]+) +(?P<step_time_s>[0-9.]+) s/step'
  # Other results, such as memory or a bandwidth by size: lines with groups of any name, and what the groups are. A program that
  # does not train has measures: readings at the top, these two, and no patterns, loaders and batch size:
  # orch framework new NAME --from-command COMMAND --metric bandwidth:GB/s writes such a folder.
  # readings: 'size=(?P<size>[0-9]+) rate=(?P<rate>[0-9.]+)'
  # metrics: {{rate: {{unit: GB/s, better: higher, keys: [size]}}}}"""
_RESULT_LINES = """\
  # The lines with results: a group for each metric, and one for each of its keys, such as (?P<size>[0-9]+) with keys: [size].
  # Try them on a log of the program: orch framework check {name} --log FILE
  readings:
{readings}
  metrics:
{metrics}"""

_NO_RANK = """\
  # The line by which each rank says who it is proves that all ranks took part. If the program prints one, such as
  # "rank 0 of 8 is up", take the comment signs away:
  # rank_files: ["rank-*.out"]
  # rank: '^rank (?P<rank>[0-9]+) of (?P<world_size>[0-9]+) is up$'
"""
_RANK = """\
  # The line by which each rank says who it is: a run counts only if every rank took part.
  rank_files: ["rank-*.out"]
  rank: '^rank (?P<rank>[0-9]+) of (?P<world_size>[0-9]+) is up$'
"""

_OPTIONS = """
# What --set takes; a template reads options.size.
options:
  size: {type: int, default: 32, minimum: 1, help: "rows and columns of a matrix"}
"""

_HEAD = """\
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
_MODULES = """\
# Modules of the payload are in one directory with the rank wrapper.
export PYTHONPATH="$(cd -- "$(dirname -- {{ rank_wrapper }})" && pwd)${PYTHONPATH:+:$PYTHONPATH}"
"""
_TORCHRUN = """\
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
# The rank wrapper gives each rank its own log: logs/rank-<rank>.out and .err.
exec {{ python }} -m torch.distributed.run \\
  --nnodes {{ spec.nodes }} --nproc_per_node {{ node.nproc }} --node_rank {{ node.node_rank }} \\
  --rdzv_backend static --master_addr {{ master_addr }} --master_port {{ master_port }} --max_restarts 0 \\
  --no_python {{ runner_python }} -I -S {{ rank_wrapper }} -- \\
  COMMAND
"""
_RANKS = """\
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

_PROGRAM = '''\
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
_PRINTED = r"\b{name}\b[ =:]+(?P<{name}>[-+]?[0-9.]+(?:[eE][-+]?[0-9]+)?)(?=\s|$)"
"""How a program may print a metric: its name, then the number."""
_SAMPLE = """\
rank 0 of 2 is up
step   1  0.026804 s/step
step   2  0.026466 s/step
step   3  0.026391 s/step
"""
_NO_LOG = "(no real log: these lines have the form that the pattern reads; put a log of the program in their place)\n"
_PLACEHOLDER = """\
step 1  0.026804 s/step
step 2  0.026466 s/step
step 3  0.026391 s/step
"""


def example(name: str) -> dict[str, str]:
    """Return the files of a folder with a program of its own that needs nothing but Python."""
    command = (
        '{{ python }} -u {{ payload["train.py"] }} '
        "--batch {{ spec.batch_size }} --steps {{ spec.steps }} --size {{ options.size }}"
    )
    framework = _FRAMEWORK.format(
        measures="",
        dtype="fp32",
        defaults=_TRAINING.format(batch=8, steps=60, warmup=10),
        lines=_STEP_LINES.format(name=name),
        about=f"{name}: an example of a framework folder, which multiplies matrices in Python.",
        title=json.dumps(name),
        model=name,
        options=_OPTIONS,
        env="",
        payload="train.py",
        probe="'import json, platform; print(json.dumps({\"python\": platform.python_version()}))'",
        name=name,
        rank=_RANK,
    )
    launch = _HEAD + _RANKS.replace("COMMAND", command)
    return {"framework.yaml": framework, "launch.sh.j2": launch, "sample.log": _SAMPLE, "train.py": _PROGRAM}


def new_metric(text: str) -> Metric:
    """Return the metric that ``NAME:UNIT`` or ``NAME:UNIT:lower`` describes. Raises ConfigError for anything else."""
    name, _, rest = text.partition(":")
    unit, _, better = rest.partition(":")
    better = better or "higher"
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) or hasattr(dict, name) or not unit.strip() or better not in BETTER:
        hint = "NAME has letters, digits and '_'; add :lower if smaller values are better"
        raise ConfigError(f"expected NAME:UNIT, such as bandwidth:GB/s, got {text!r}", where="--metric", hint=hint)
    if name == SAMPLES_PER_S.name:
        raise ConfigError(f"expected another name than {name!r}", where="--metric", hint="leave --metric out for a training")
    return Metric(name, unit, better)


def for_command(
    name: str,
    typed: str,
    command: TrainingCommand,
    payload: Sequence[str],
    metrics: Sequence[Metric] = (),
    sample: str = "",
) -> dict[str, str]:
    """Return the files of a folder that runs a command: its own arguments, and ranks, addresses and ports from orch.

    ``typed`` is the command as it was typed. ``payload`` are the names of the files to send, which the caller copies. Number of
    steps and batch size come from the arguments with these names, and go through ``--steps`` and ``--batch-size`` of orch.
    With ``metrics``, the program does not train: its lines have these. ``sample`` is a log of the program, if there is one.
    """
    # A program that does not train has no batch size of orch: its argument stays as it is.
    arguments, batch, steps = _arguments(command.arguments, () if metrics else ("batch_size",))
    program = command.script or command.program
    start = (
        f"-m {shlex.quote(command.module)}"
        if command.module
        else f"{{{{ payload[{json.dumps(_base(program))}] }}}}"
        if command.is_here
        else _literal(program)
    )
    flags = " ".join(map(_literal, command.flags if "-u" in command.flags else ("-u", *command.flags)))
    interpreter = "" if command.launcher == "program" else f"{{{{ python }}}} {flags} "
    head = _HEAD
    if command.launcher == "program" and command.is_here:  # files of a payload are not executable
        head += f"install -m 0700 {start} program\n"
        start = "./program"
    if command.module and payload:
        head += _MODULES
    words = f"{interpreter}{start} {arguments}".rstrip()
    script = head + (_TORCHRUN if command.launcher == "torchrun" else _RANKS)
    env = "".join(f"  {variable}: {json.dumps(value)}\n" for variable, value in command.env)
    needs_torch = command.launcher == "torchrun"
    probe = (
        '\'import json, torch; print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda}))\''
        if needs_torch
        else "'import json, platform; print(json.dumps({\"python\": platform.python_version()}))'"
    )
    steps = steps or (1 if metrics else 100)
    if metrics:
        readings = "\n".join(f"    - '{_PRINTED.format(name=metric.name)}'" for metric in metrics)
        declared = "\n".join(
            f"    {metric.name}: {{unit: {json.dumps(metric.unit)}, better: {metric.better}}}" for metric in metrics
        )
        defaults = _MEASURING.format(steps=steps)
        lines = _RESULT_LINES.format(name=name, readings=readings, metrics=declared)
        placeholder = _NO_LOG + "".join(f"{metric.name}: 1.5\n" for metric in metrics)
    else:
        defaults = _TRAINING.format(batch=batch or 1, steps=steps, warmup=min(10, steps - 1))
        lines, placeholder = _STEP_LINES.format(name=name), _NO_LOG + _PLACEHOLDER
    framework = _FRAMEWORK.format(
        about=f"{name}: made from the command {json.dumps(typed)[1:-1]}",
        title=json.dumps(name),
        model=name,
        measures="measures: readings\n" if metrics else "",
        dtype="none" if metrics else "fp32",
        defaults=defaults,
        lines=lines,
        options="",
        env=f"\n# Variables of every run; those of the inventory win.\nenv:\n{env}" if env else "",
        payload=", ".join(map(json.dumps, payload)),
        probe=probe,
        name=name,
        rank=_NO_RANK,
    )
    return {"framework.yaml": framework, "launch.sh.j2": script.replace("COMMAND", words), "sample.log": sample or placeholder}


def _base(path: str) -> str:
    return path.rstrip("/").rsplit("/", 1)[-1]


def _literal(word: str) -> str:
    """Return a word for a shell script that is a template as well."""
    return f"{{{{ {json.dumps(word)} }}}}" if re.search(r"\{[{%#]", word) else shlex.quote(word)


def _arguments(words: Sequence[str], more: Sequence[str] = ()) -> tuple[str, int, int]:
    """Return the arguments as they are in the template, with the batch size and the number of steps in them, 0 without. Besides
    the number of steps, ``more`` of them become values of orch."""
    shown: list[str] = []
    numbers = {"batch_size": 0, "steps": 0}
    waiting = ""
    for word in words:
        name, equals, value = word.partition("=")
        key = "batch_size" if "batch_size" in more and _BATCH.fullmatch(name) else "steps" if _STEPS.fullmatch(name) else ""
        text = value if equals else word
        if (key if equals else waiting) and text.isdecimal() and int(text) > 0:
            numbers[key if equals else waiting] = int(text)
            printed = f"{{{{ spec.{key if equals else waiting} }}}}"
            shown.append(f"{name}={printed}" if equals else printed)
        else:
            shown.append(_literal(word))
        waiting = "" if equals else key
    return " ".join(shown), numbers["batch_size"], numbers["steps"]
