"""The two files that apply the result of a tune, variables of hosts and options, and the command
that uses them.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.engines.listing import open_engine
from orchestrator.features.search.halving.answer import FASTER, Tuned, answer
from orchestrator.files import write_atomic
from orchestrator.inventory import fold
from orchestrator.plan.option_values import as_written, quote
from orchestrator.record import BenchDir
from orchestrator.record.bench_record import BenchRecord
from orchestrator.report.text import one_line


def write(bench: BenchDir, result: Tuned, output: str) -> list[Path]:
    """Write the inventory and the run file of a faster candidate; return their paths. ``output`` is
    the inventory's, empty for one in the bench. Existing files are not overwritten.
    """
    if result.verdict != FASTER:
        return []
    target = Path(output) if output else bench.path / "tuned.yaml"
    files = {}
    if result.env:
        is_file = Path(result.inventory).exists()
        base = os.path.relpath(result.inventory, target.parent) if is_file else ""
        files[target] = inventory_file(result, base)
    if result.options or result.batch_size:
        files[options_path(target)] = options_file(result)
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomic(path, text.encode(), 0o644, is_input=True)
    return list(files)


def options_path(target: Path) -> Path:
    """Return the path of the run file of a tune that writes its inventory to ``target``."""
    return target.with_name(f"{target.stem}.options.yaml")


def command(result: Tuned, files: Sequence[Path], record: BenchRecord) -> str:
    """Return the `orch bench` command that uses the result: after a tune in a job of its own, in
    another job on its hosts.
    """
    spec, job = result.spec, record.job
    shape = f"{spec['nodes']}n{spec['gpus']}g"
    words = ["orch", "bench", spec["model"], "--shape", shape, "--dtype", spec["dtype"]]
    if not result.batch_size:
        words += ["--batch-size", str(spec["batch_size"])]
    if spec.get("follows"):
        words += ["--global-batch", str(result.global_batches[1])]
    words += ["--framework", spec["framework"], "--loader", spec["loader"]]
    if spec.get("container"):
        words += ["--container", spec["container"]]
    for folder in record.templates:
        words += ["--templates", os.path.relpath(folder)]
    for name, value in result.chosen.items():
        words += ["--set", f"{name}={quote(as_written(value))}"]
    for path in map(os.path.relpath, files):
        if path.endswith(".options.yaml"):
            words += ["--file", path]
        elif job:  # no option: Slurm chooses the hosts, and this is what else is known of them
            words = ["env", f"ORCH_HOSTS={path}", *words]
        else:
            words += ["--hosts", path]
    if job and record.planned_with:
        hosts = record.planned_with.hosts
        request = open_engine(record.engine).recall(job).on(list(hosts))
        words += [f"--{record.engine}", request.text]
    return shlex.join(words)


def inventory_file(tuned: Tuned, base: str) -> str:
    """Return an inventory that sets the variables on top of ``base``, a path relative to the new
    file; empty for no base.
    """
    lines = [*_evidence(tuned), "schema: 1"]
    if base:
        lines.append(f"base: {_quote(base)}")
    lines += ["hosts:", f"  {_quote(fold(tuned.hosts))}:", "    env:"]
    lines += [f"      {name}: {_quote(value)}" for name, value in tuned.env.items()]
    return "\n".join(lines) + "\n"


def options_file(tuned: Tuned) -> str:
    """Return the run file for ``--file`` that sets the options, and the batch size if it is another
    one.
    """
    lines = [*_evidence(tuned)]
    if tuned.batch_size:
        lines.append(f"batch_size: {tuned.batch_size}")
    if tuned.options:
        lines.append("options:")
    lines += [f"  {name}: {_quote(value)}" for name, value in tuned.options.items()]
    return "\n".join(lines) + "\n"


def _quote(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _evidence(tuned: Tuned) -> list[str]:
    """Return comment lines: for what spec and hosts the result holds, and where its evidence is."""
    spec, shape = tuned.spec, f"{tuned.spec['nodes']}n{tuned.spec['gpus']}g"
    words = [spec["framework"], spec["model"], spec["dtype"], f"b{spec['batch_size']}", shape]
    versions = ", ".join(f"{name} {version}" for name, version in tuned.versions.items())
    texts = [
        f"Written by orch tune, {tuned.created}, for {' '.join(words)} on {fold(tuned.hosts)}.",
        answer(tuned),
        f"Network: {', '.join(tuned.networks) or 'not reported by NCCL'}. {versions}",
        f"Evidence: bench {tuned.bench_id}, runs {', '.join(tuned.evidence)}.",
    ]
    return [f"# {one_line(text).strip()}" for text in texts]
