"""Time for the site of a project with hundreds of benches, and its size.

    python benchmarks/sites.py PROJECT [--benches 200] [--dir FOLDER]

PROJECT has benches that were really run and collected. They are copied in turn into a new project,
under other ids and times, a day apart, until there are ``--benches`` of them: bench.json, the
journal, manifests, rendered files, logs and exit records, by the same functions that write them.
Then `orch site` builds the site, builds it again with nothing changed, and again with one bench
more. The output has the seconds, the pages that were made, and the size.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from orchestrator.record.rundir import BenchDir, bench_folders
from orchestrator.record.state_file import read_state

FIRST = datetime(2026, 1, 1, 8, tzinfo=timezone.utc)
_ORCH = "import sys; from orchestrator.cli.process import run; sys.argv[0] = 'orch'; run()"


def main() -> None:
    """Write the benches, build the site three times, print seconds and sizes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("project", type=Path)
    parser.add_argument("--benches", type=int, default=200)
    parser.add_argument(
        "--dir", type=Path, help="where project and site are kept; a temporary folder if not given"
    )
    asked = parser.parse_args()
    sources = [BenchDir.open(folder) for folder in reversed(bench_folders(asked.project / "runs"))]
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.dir or Path(temporary)
        project, site = folder / "project", folder / "site"
        for number in range(asked.benches):
            copied(sources[number % len(sources)], project / "runs", number)
        runs = sum(len(source.runs()) for source in sources) * asked.benches // len(sources)
        print(f"{asked.benches} benches of {len(sources)} kinds, about {runs} runs", flush=True)
        built("new", project, site)
        built("nothing changed", project, site)
        copied(sources[0], project / "runs", asked.benches)
        built("one bench more", project, site)


def copied(source: BenchDir, root: Path, number: int) -> None:
    """Copy a bench under another id, made ``number`` days after the first."""
    at = FIRST + timedelta(days=number)
    name = f"{at:%Y%m%d-%H%M%S}-{number:04x}"
    content, before = read_state(source.path / "bench.json"), source.path.name

    def renamed(value: Any) -> Any:
        """Return a value of a record with the new id in place of the old one, which the ids of runs
        begin with.
        """
        return json.loads(json.dumps(value).replace(before, name))

    record = {key: value for key, value in renamed(content).items() if key != "schema"}
    bench = BenchDir.create(
        root, {**record, "bench_id": name, "created": f"{at:%Y-%m-%dT%H:%M:%SZ}", "borrowed": {}}
    )
    for entry in source.events():
        shift = at.timestamp() - (source.events()[0].at or 0.0)
        fields = {
            **renamed(dict(entry.fields)),
            **({"run": renamed(entry.run)} if entry.run else {}),
        }
        bench.event(entry.event, at=(entry.at or 0.0) + shift, **fields)
    for original in source.runs():
        copy = bench.run(renamed(original.run_id))
        copy.write_manifest(
            {
                key: value
                for key, value in renamed(original.manifest_content()).items()
                if key != "schema"
            }
        )
        for folder in sorted((original.path / "rendered").iterdir()):
            for path in folder.iterdir():
                copy.write_rendered(
                    folder.name,
                    path.name,
                    path.read_bytes().replace(before.encode(), name.encode()),
                )
        for folder in sorted((original.path / "logs").iterdir()):
            for path in original.logs(folder.name):
                copy.write_log(folder.name, path.name, path.read_bytes())
            exit_record = original.exit_content(folder.name) or {}
            copy.write_log(
                folder.name, "exit.json", json.dumps(exit_record | {"run_id": copy.run_id}).encode()
            )


def built(title: str, project: Path, site: Path) -> None:
    """Build the site in a new process, and print what that took."""
    began, before = time.monotonic(), sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    argv = [sys.executable, "-c", _ORCH, "site", str(site), "--json"]
    done = subprocess.run(
        argv, env=os.environ | {"ORCH_PROJECT": str(project)}, stdout=subprocess.PIPE, check=True
    )
    seconds, said = time.monotonic() - began, json.loads(done.stdout)
    used = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before
    sizes = {path: path.stat().st_size for path in site.rglob("*") if path.is_file()}
    size, largest = sum(sizes.values()), max(sizes.items(), key=lambda item: item[1])
    print(
        f"  {title:16} {seconds:6.1f} s, {used:6.1f} s of processors, {said['made']} of {said['pages']} pages made",
        flush=True,
    )
    print(
        f"  {'':16} {size / 2**20:.1f} MiB, the largest: {largest[0].name}, {largest[1] / 2**20:.1f} MiB",
        flush=True,
    )


if __name__ == "__main__":
    main()
