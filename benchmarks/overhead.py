"""The overhead of `orch bench` compared with starting the same commands by hand, and the
controller's memory.

    orch lab up && orch lab exec -- python benchmarks/overhead.py [--framework simulated] [--rounds 5]

Both run the same rendered launch scripts on the same nodes, alternating round by round. By hand
means: one ssh per node, all started together, wait for all; the files are already on the nodes.
`orch` is timed per run by its own events from *planned* to *collected*, so its figure includes
staging, arming, the run, collection and the check for leftovers; the time of the whole command,
with start-up, connections and preflight, is shown next to it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from orchestrator.inventory.hosts import Host
from orchestrator.inventory.read import open_inventory


def main() -> None:
    """Run the rounds and print medians, difference and ratio."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--framework", default="pytorch")
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], dest="sets")
    asked = parser.parse_args()
    hosts = open_inventory(os.environ["ORCH_HOSTS"]).hosts[: asked.nodes]
    by_orch, by_hand, command, memory = [], [], [], []
    with tempfile.TemporaryDirectory() as project:
        for number in range(asked.rounds):
            run_s, whole_s, resident_mib, rendered = orch_run(Path(project), asked)
            by_orch.append(run_s)
            command.append(whole_s)
            memory.append(resident_mib)
            by_hand.append(hand_run(hosts, rendered, f"by-hand-{number}"))
            print(
                f"round {number + 1}: orch {run_s:.2f} s a run ({whole_s:.2f} s the command), by hand {by_hand[-1]:.2f} s",
                flush=True,
            )
    orch_s, hand_s = statistics.median(by_orch), statistics.median(by_hand)
    added = statistics.median(a - b for a, b in zip(by_orch, by_hand, strict=True))
    print(f"{asked.framework}, {asked.nodes} nodes, medians of {asked.rounds}:")
    print(
        f"  one run          orch {orch_s:.2f} s, by hand {hand_s:.2f} s, ratio {orch_s / hand_s:.3f}, added {added:+.2f} s"
    )
    print(f"  whole command    {statistics.median(command):.2f} s")
    print(f"  controller       {max(memory):.0f} MiB resident at most")


def orch_run(project: Path, asked: argparse.Namespace) -> tuple[float, float, float, Path]:
    """Return (seconds of the run, seconds of the command, MiB resident, the run's rendered folder)."""
    argv = [
        sys.executable,
        "-m",
        "orchestrator",
        "bench",
        "resnet50",
        "--framework",
        asked.framework,
    ]
    argv += ["--nodes", str(asked.nodes), "--repeats", "1", "--no-baseline"]
    argv += [word for pair in asked.sets for word in ("--set", pair)]
    began = time.monotonic()
    child = subprocess.Popen(
        argv, env={**os.environ, "ORCH_PROJECT": str(project)}, stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(child.pid, 0)
    whole_s = time.monotonic() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"orch bench ended with {child.returncode}")
    bench = max((project / "runs").iterdir(), key=lambda path: path.name)
    at = {
        event["event"]: event["at"]
        for event in map(json.loads, (bench / "events.jsonl").read_text().splitlines())
    }
    run = json.loads((bench / "bench.json").read_text())["runs"][0]
    return (
        at["collected"] - at["planned"],
        whole_s,
        usage.ru_maxrss / 1024,
        bench / run / "rendered",
    )


def hand_run(hosts: tuple[Host, ...], rendered: Path, name: str) -> float:
    """Return the seconds of the same launch scripts, started over one ssh per node."""
    folders = {host.name: f".orch-node/nodes/{host.name}/runs/{name}" for host in hosts}
    for host in hosts:
        folder = folders[host.name]
        for file in sorted((rendered / host.name).iterdir()):
            with file.open("rb") as content:
                subprocess.run(
                    [
                        *ssh(host),
                        f"mkdir -p {folder}/logs {folder}/ranks && cat > {folder}/{file.name}",
                    ],
                    stdin=content,
                    check=True,
                )
    began = time.monotonic()
    children = [
        subprocess.Popen(
            [
                *ssh(host),
                f"cd {folders[host.name]} && bash launch.sh > logs/node.out 2> logs/node.err",
            ],
            stdin=subprocess.DEVNULL,
        )
        for host in hosts
    ]
    codes = [child.wait() for child in children]
    took = time.monotonic() - began
    if any(codes):
        sys.exit(f"by hand: exit codes {codes}")
    return took


def ssh(host: Host) -> list[str]:
    """Return OpenSSH's command line for a host of a lab."""
    settings = host.ssh
    return [
        *(
            "ssh",
            "-F",
            str(settings.config),
            "-p",
            str(settings.port or 22),
            "-i",
            str(settings.key),
            "-o",
            "BatchMode=yes",
        ),
        *("-o", f"UserKnownHostsFile={settings.known_hosts}", f"{settings.user}@{host.address}"),
    ]


if __name__ == "__main__":
    main()
