"""The options of `orchestrator.prepare`, written from the rows of `orchestrator.options`.

After a change of a row: ``ORCH_UPDATE_GOLDEN=1 pytest tests/api/test_options.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from orchestrator.api.arguments import Values


class Options(TypedDict, total=False):
    """Options of a bench; an option of type `Values` takes one value or several."""

    # Frameworks. Default: chosen by the model.
    framework: Values | None
    # fp32, tf32, fp16, bf16, fp8.
    dtype: Values | None
    # Samples per device and step; language models: sequences per micro-batch.
    batch_size: Values | None
    # Sources of samples.
    loader: Values | None
    # CPUs of a rank: all, its GPU's NUMA node, its own cores.
    cpu_binding: Values | None
    # Values of a framework option; quotes keep a comma: 'k="a,b"'.
    options: Mapping[str, Values] | None
    # Values of an environment variable, such as NCCL_ALGO=Ring,Tree.
    env: Mapping[str, Values] | None
    # Inventory file, gpu[01-04],@group, slurm, or pods:LABEL=VALUE.
    hosts: str | Path | Sequence[str] | None
    # Hosts or devices to leave out, such as node2:gpu3.
    exclude: str | Path | Sequence[str] | None
    # Directory with more framework folders; repeatable. Always searched: ORCH_TEMPLATES, templates/ of the project.
    templates: Sequence[str | Path] | None
    # Node counts. Default: all nodes.
    nodes: Values | None
    # Ranks per node. Default: all GPUs.
    gpus: Values | None
    # Shapes instead of --nodes and --gpus; 4x8 is 4n8g.
    shape: Values | None
    # Steps per run, including warm-up.
    steps: int | None
    # Steps that are not measured.
    warmup_steps: int | None
    # Start launch scripts in this image; none: on the hosts.
    container: str | None
    # 1n1g, 1n2g … one full node, then 2, 4 … up to --nodes.
    ladder: bool | None
    # Runs per configuration.
    repeats: int | None
    # A name for the bench, shown next to its id.
    label: str | None
    # Exit with 5 if this bound is not met, 6 if undecided.
    expect: Sequence[str] | None
    # Add repeats until every 95 % interval is within ± this fraction of its value.
    until_ci: str | None
    # Maximum repeats with --until-ci. Default: 30.
    max_repeats: int | None
    # balanced, random or interleaved.
    order: str | None
    # Total time: 90s, 30m, 1h30m.
    budget: str | None
    # Measure 1n1g unless an earlier run of it is usable.
    baseline: bool | None
    # Baseline shape of speedups, instead of 1n1g.
    baseline_shape: str | None
    # Time after which a run is stopped.
    timeout_s: float | None
    # Samples per step over all ranks: strong scaling. Default: weak scaling.
    global_batch: int | None
    # Refuse the bench if a configuration is impossible, instead of skipping it.
    strict: bool | None
    # YAML file with the same choices, lists, include and exclude; options override it.
    file: str | Path | None
