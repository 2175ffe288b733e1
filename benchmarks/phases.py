"""The phases of reaching many hosts: start, imports, inventory, keys and names, connections,
command, disconnecting.

    orch lab up --nodes 64 && orch lab exec -- python benchmarks/phases.py --n 4,64 [--rounds 5]

Each round is a separate process, so that no cache is warm. The output has medians of wall-clock
seconds and of processor seconds of the controller; the rest of a phase's wall-clock time is the
work of the servers, which share this machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

PHASES = ("start", "imports", "inventory", "prepare", "connect", "command", "hang up")


def main() -> None:
    """Run the rounds and print a line per phase."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--n", default="4", help="numbers of hosts, e.g. 4,64")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--once", type=int, default=0, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.once:
        print(json.dumps(once(asked.once)))
        return
    for count in map(int, asked.n.split(",")):
        timings = []
        for _ in range(asked.rounds):
            began = time.time()
            words = [sys.executable, __file__, "--once", str(count)]
            done = subprocess.run(
                words,
                capture_output=True,
                text=True,
                check=True,
                env={**os.environ, "BEGAN": repr(began)},
            )
            timings.append(json.loads(done.stdout))
        print(f"{count} hosts, load {os.getloadavg()[0]:.1f}: wall, processor")
        for phase in (*PHASES, "all"):
            wall, own = (
                statistics.median(timing[phase][place] for timing in timings) for place in (0, 1)
            )
            print(f"  {phase:10} {wall:8.3f} s {own:8.3f} s")


def once(count: int) -> dict[str, tuple[float, float]]:
    """Reach ``count`` hosts and run `true`; return wall-clock and processor seconds of each phase."""
    marks = [(float(os.environ["BEGAN"]), 0.0)]

    def mark() -> None:
        marks.append((time.time(), time.process_time()))

    mark()
    from pathlib import Path

    import orchestrator.cli.main  # noqa: F401
    from orchestrator.inventory import NO_SECRETS
    from orchestrator.inventory.read import open_inventory
    from orchestrator.nodes.cluster import Cluster
    from orchestrator.nodes.fanout import each_or_raise
    from orchestrator.transport import Trust
    from orchestrator.transport.ssh import connect, prepare

    mark()
    hosts = {host.name: host for host in open_inventory(os.environ["ORCH_HOSTS"]).hosts[:count]}
    trust = Trust(Path(os.devnull))
    Cluster(tuple(hosts.values()), trust, NO_SECRETS)
    mark()
    endpoints = each_or_raise(hosts, lambda name: prepare(hosts[name], trust), 16)
    mark()
    lines = each_or_raise(hosts, lambda name: connect(hosts[name], trust, endpoints[name]))
    mark()
    each_or_raise(lines, lambda name: lines[name].run(["true"], timeout_s=60))
    mark()
    each_or_raise(lines, lambda name: lines[name].close())
    mark()
    steps = zip(marks, marks[1:], strict=False)
    taken = {phase: (b[0] - a[0], b[1] - a[1]) for phase, (a, b) in zip(PHASES, steps, strict=True)}
    return taken | {"all": (marks[-1][0] - marks[0][0], marks[-1][1])}


if __name__ == "__main__":
    main()
