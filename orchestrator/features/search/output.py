"""The output of a finished tune or bisect, and the files that a tune writes."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from orchestrator.cli.options import print_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from orchestrator.features.search.halving import Tuned
    from orchestrator.record import BenchDir
    from orchestrator.record.bench_record import BenchRecord

__all__ = ["options_path", "show_bisect", "show_tune"]


def show_tune(bench: BenchDir, as_json: bool) -> None:
    """Print the result of a tune; write it to ``tuned.json`` in the bench, with the files that
    apply a faster candidate.
    """
    from orchestrator.features.search.halving import tuned
    from orchestrator.features.search.halving.words import answer, rungs

    result = tuned(bench)
    files = _write(bench, result)
    document = {
        **result.as_dict(),
        "answer": answer(result),
        "files": [str(path) for path in files],
    }
    lines = [*rungs(result), "", answer(result)]
    if files:
        lines += ["", f"to use it: {shlex.join(_command(result, files, bench.record()))}"]
    elif result.verdict == "unfinished":
        lines.append(_how_to_continue(bench) + (" --retry-failed" if _pilot_failed(bench) else ""))
    _show(bench, "tuned.json", document, lines, as_json)


def show_bisect(bench: BenchDir, as_json: bool) -> None:
    """Print the result of a bisect, and write it to ``bisect.json`` in the bench."""
    from orchestrator.features.search.bisection import bisected
    from orchestrator.features.search.bisection.words import answer, left_open, tried

    result = bisected(bench)
    document = {**result.as_dict(), "answer": answer(result), "left_open": left_open(result)}
    lines = [*tried(result), "", answer(result), *left_open(result)]
    if result.verdict == "unfinished":
        lines.append(_how_to_continue(bench))
    _show(bench, "bisect.json", document, lines, as_json)


def _show(
    bench: BenchDir, name: str, document: dict[str, Any], lines: Iterable[str], as_json: bool
) -> None:
    """Write the document of a result into its bench, and print it, or the lines for people."""
    import json

    from orchestrator.files import write_atomic

    write_atomic(
        bench.path / name, json.dumps(document, indent=2, allow_nan=False).encode() + b"\n"
    )
    if as_json:
        print_json(document)
        return
    for line in lines:
        typer.echo(line)


def _how_to_continue(bench: BenchDir) -> str:
    return f"to continue: orch resume {shlex.quote(bench.path.name)}"


def _pilot_failed(bench: BenchDir) -> bool:
    """Return True if the first run failed by itself: a resume repeats it only with
    ``--retry-failed``.
    """
    from contextlib import suppress

    from orchestrator.errors import DataError
    from orchestrator.record.manifest import read_manifest

    for pilot in bench.runs()[:1]:
        with suppress(DataError):  # reported where its evidence is read
            outcome = read_manifest(pilot).outcome
            return outcome is not None and outcome.counts and outcome.state != "finished"
    return False


def _write(bench: BenchDir, result: Tuned) -> list[Path]:
    """Write the inventory and the run file of a faster candidate; return their paths. Existing
    files are not overwritten.
    """
    from orchestrator.features.search.halving.answer import FASTER
    from orchestrator.features.search.halving.words import inventory_file, options_file
    from orchestrator.features.search.record import tune_of
    from orchestrator.files import write_atomic

    if result.verdict != FASTER:
        return []
    tune = tune_of(bench.record())
    target = Path(tune.output) if tune and tune.output else bench.path / "tuned.yaml"
    base = (
        os.path.relpath(result.inventory, target.parent) if Path(result.inventory).exists() else ""
    )
    files = {}
    if result.env:
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


def _command(result: Tuned, files: list[Path], record: BenchRecord) -> list[str]:
    """Return the `orch bench` command that uses the result: after a tune in a job of its own, in
    another job on its hosts.
    """
    from orchestrator.inventory import fold
    from orchestrator.plan.job import JobWanted
    from orchestrator.plan.spec import as_written
    from orchestrator.plan.words import quoted

    spec = result.spec
    words = [
        "orch",
        "bench",
        spec["model"],
        "--shape",
        f"{spec['nodes']}n{spec['gpus']}g",
        "--dtype",
        spec["dtype"],
    ]
    words += [] if result.batch_size else ["--batch-size", str(spec["batch_size"])]
    words += ["--global-batch", str(result.global_batches[1])] if spec.get("follows") else []
    words += ["--framework", spec["framework"], "--loader", spec["loader"]]
    words += ["--container", spec["container"]] if spec.get("container") else []
    words += [
        word for folder in record.templates for word in ("--templates", os.path.relpath(folder))
    ]
    words += [
        word
        for name, value in result.chosen.items()
        for word in ("--set", f"{name}={quoted(as_written(value))}")
    ]
    for path in files:
        if path.name.endswith(".options.yaml"):
            words += ["--file", os.path.relpath(path)]
        elif (
            record.job
        ):  # no option: Slurm chooses the hosts, and this is what else is known of them
            words = ["env", f"ORCH_HOSTS={os.path.relpath(path)}", *words]
        else:
            words += ["--hosts", os.path.relpath(path)]
    if record.job and record.planned_with:
        hosts = record.planned_with.hosts
        job = JobWanted(record.job).on(fold(hosts), len(hosts))
        words += ["--slurm", ",".join(option.removeprefix("--") for option in job.options)]
    return words
