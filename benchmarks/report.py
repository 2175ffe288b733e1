"""Time and memory for the table and the HTML report of a bench of hundreds of runs.

    python benchmarks/report.py BENCH [--runs 500] [--series 10] [--dir FOLDER]

BENCH is a bench that was really run and collected. Its runs are copied repeatedly, as successive
repeats and as several series that differ in an option, until there are ``--runs`` of them:
manifests, rendered files, logs, exit records with the digests of these, and the journal, each under
its own run id. Then `orch summarize` reads the whole bench, once as a table and once as an HTML
page. The output has the seconds and the peak memory of new processes and their children.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from orchestrator.record.rundir import BenchDir, RunDir
from orchestrator.record.state_file import read_state

_ORCH = "import sys; from orchestrator.cli.process import run; sys.argv[0] = 'orch'; run()"


def main() -> None:
    """Write the large bench, read it in both forms, print time and memory."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bench", type=Path)
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--series", type=int, default=10)
    parser.add_argument(
        "--dir", type=Path, help="where the bench is written; a temporary folder if not given"
    )
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.dir) as folder:
        large = multiplied(BenchDir.open(asked.bench), Path(folder), asked.runs, asked.series)
        print(f"{asked.runs} runs in {asked.series} series", flush=True)
        for form in ("table", "html"):
            seconds, memory, size = taken(
                [sys.executable, "-c", _ORCH, "summarize", str(large), "--format", form]
            )
            print(
                f"  {form:6} {seconds:6.2f} s {memory:6.0f} MiB held {size / 2**20:8.2f} MiB written",
                flush=True,
            )


def multiplied(source: BenchDir, root: Path, count: int, series: int) -> Path:
    """Write a bench of ``count`` runs copied from another bench. Returns its folder."""
    runs = source.runs()
    content = read_state(source.path / "bench.json")
    record = {
        key: value for key, value in content.items() if key not in ("schema", "runs", "bench_id")
    }
    names = [f"large.{number:04d}" for number in range(count)]
    bench = BenchDir.create(root, {**record, "bench_id": "large", "runs": names})
    events = source.events()
    with (bench.path / "events.jsonl").open("w", encoding="utf-8") as journal:
        for number, name in enumerate(names):
            original = runs[number % len(runs)]
            round_, shift = number // len(runs), 60.0 * number
            _copy(original, bench.run(name), repeat=1 + round_ // series, seed=round_ % series)
            own = [
                entry for entry in events if entry.run == original.run_id and entry.at is not None
            ]
            for entry in own:
                line = {
                    "event": entry.event,
                    "at": (entry.at or 0.0) + shift,
                    "run": name,
                    **entry.fields,
                }
                journal.write(json.dumps(line) + "\n")
    return bench.path


def _copy(original: RunDir, copy: RunDir, repeat: int, seed: int) -> None:
    """Copy a run under another id, as another repeat of a spec with another seed."""
    manifest = {key: value for key, value in original.manifest_content().items() if key != "schema"}
    spec = manifest["spec"] | {"options": manifest["spec"]["options"] | {"seed": seed}}
    before = manifest["repeat"]
    copy.write_manifest(
        manifest
        | {
            "run_id": copy.run_id,
            "bench_id": "large",
            "repeat": before + 100 * repeat,
            "spec": spec,
        }
    )
    for slot in manifest["placement"]["slots"]:
        host = slot["host"]
        for path in original.rendered_path(host).iterdir():
            copy.write_rendered(
                host,
                path.name,
                path.read_bytes().replace(original.run_id.encode(), copy.run_id.encode()),
            )
        for path in original.logs(host):
            copy.write_log(host, path.name, path.read_bytes())
        record = original.exit_content(host) or {}
        copy.write_log(host, "exit.json", json.dumps(record | {"run_id": copy.run_id}).encode())


def taken(argv: list[str]) -> tuple[float, float, int]:
    """Return the seconds of a command, the peak MiB of it and its children together, and the bytes
    that it printed.
    """
    with tempfile.TemporaryFile() as said:
        began, memory = time.monotonic(), 0.0
        child = subprocess.Popen(argv, stdout=said, stdin=subprocess.DEVNULL)
        while child.poll() is None:
            memory = max(memory, sum(map(held_mib, [child.pid, *children(child.pid)])))
            time.sleep(0.02)
        seconds = time.monotonic() - began
        if child.returncode:
            sys.exit(f"{argv[3:]} ended with status {child.returncode}")
        return seconds, memory, os.fstat(said.fileno()).st_size


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    parents = {
        path.parent.name: _read(path).rpartition(")")[2].split()[1:2]
        for path in Path("/proc").glob("[0-9]*/stat")
    }
    return [int(child) for child, parent in parents.items() if parent == [str(pid)]]


def held_mib(pid: int) -> float:
    """Return the MiB that a process holds, with its share of pages that several processes use; 0
    once it is gone.
    """
    lines = (line.split() for line in _read(Path(f"/proc/{pid}/smaps_rollup")).splitlines())
    return sum(int(words[1]) for words in lines if words[0] == "Pss:") / 1024


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
