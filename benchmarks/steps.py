"""The cost of a Slurm step as a way to a node, compared with a command over ssh to the same node.

    orch lab up --slurm && orch lab exec -- python benchmarks/steps.py JOB [--rounds 20]

JOB is a job on at least one node of the inventory in ORCH_HOSTS. Printed are medians, and srun over
ssh as a ratio: a command that does nothing, on a connection that is open; the round trip of one
byte; and a megabyte of random bytes each way. Rounds alternate between the two.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median

from orchestrator.engines.slurm import client as slurm
from orchestrator.inventory import expand, open_inventory
from orchestrator.transport import Transport, Trust
from orchestrator.transport.connections import Connections

SIZE = 1 << 20
BYTE = "import os\nwhile os.read(0, 1): os.write(1, b'y\\n')"
DOWN = f"import os, sys; sys.stdout.buffer.write(os.urandom({SIZE}))"


def nothing(way: Transport, python: str) -> float:
    """Return the seconds of a command that does nothing."""
    begin = time.monotonic()
    assert way.run(["true"], timeout_s=60).code == 0
    return time.monotonic() - begin


def byte(way: Transport, python: str) -> float:
    """Return the median seconds of the round trip of a byte and the end of a line."""
    channel = way.popen([python, "-I", "-S", "-u", "-c", BYTE], timeout_s=60)
    times = []
    for _ in range(200):
        begin, size = time.monotonic(), 0
        channel.send(b"x")
        while size < 2:
            size += len(channel.recv(60))
        times.append(time.monotonic() - begin)
    channel.close()
    return median(times[20:])


def down(way: Transport, python: str) -> float:
    """Return the seconds of a megabyte from the node, with the start of the program that sends it."""
    begin = time.monotonic()
    assert len(way.run([python, "-I", "-S", "-c", DOWN], timeout_s=60).stdout) == SIZE
    return time.monotonic() - begin


def up(way: Transport, python: str) -> float:
    """Return the seconds of a megabyte to the node, with the start of the program that reads it."""
    data = os.urandom(SIZE)
    begin = time.monotonic()
    assert (
        way.run(["sh", "-c", "wc -c"], input=data, timeout_s=60).stdout.strip()
        == str(SIZE).encode()
    )
    return time.monotonic() - begin


MEASURES: dict[str, Callable[[Transport, str], float]] = {
    "a command": nothing, "round trip of a byte": byte, "1 MiB down": down, "1 MiB up": up,
}  # fmt: skip


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("job")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    job = slurm.job(options.job)
    assert job, f"Slurm does not know job {options.job}"
    host = open_inventory(os.environ["ORCH_HOSTS"]).of(expand(job.nodes)[:1])[0]
    (python,) = host.runner_python
    ways = {
        "ssh": host,
        "srun": replace(host, transport="srun", vars={**host.vars, "slurm_job": job.id}),
    }
    connections = Connections(Trust(store=Path(os.devnull)))
    opened = {name: connections.connect(way) for name, way in ways.items()}
    print(f"{'':22} {'ssh':>10} {'srun':>10}  srun/ssh   medians of {options.rounds} rounds, ms")
    for title, measure in MEASURES.items():
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(options.rounds):
            for name, way in opened.items():
                times[name].append(measure(way, python))
        ssh, srun = median(times["ssh"]), median(times["srun"])
        print(f"{title:22} {ssh * 1000:10.3f} {srun * 1000:10.3f} {srun / ssh:9.2f}", flush=True)
    for way in opened.values():
        way.close()
    connections.close()


if __name__ == "__main__":
    main()
