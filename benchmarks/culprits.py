"""Right, wrong and missed culprits of `orch bench pairs`, in labs whose truth is known.

    python benchmarks/culprits.py [--nodes 4,8,16] [--clean 100] [--limited 20] [--steps 21] [--rate 200mbit] [--seed 1]

Needs root and PyTorch. Each lab is real sshd in network namespaces of this machine; a run is the
real command. Limited runs alternate: in one, a random node's link is limited to that rate (tbf); in
the next, the traffic between a random pair of nodes (htb). Several nodes on a few cores disturb
each other far more than separate machines do. A run that names anything in addition to the culprit
counts as wrong. Prints each run to standard error, and a row per kind to standard output.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from orchestrator import lab as labs
from orchestrator.lab import Lab
from tests.support import faults

REPOSITORY = Path(__file__).parents[1]
TIMEOUT_S = 900


@contextmanager
def limited(lab: Lab, kind: str, rate: str, chance: random.Random) -> Iterator[str]:
    """Limit a node or a pair during the context; yield how the verdict on it begins."""
    names = [node.name for node in lab.nodes]
    if kind == "clean":
        yield ""
    elif kind == "node":
        name = chance.choice(names)
        faults.rate(lab, name, rate)
        yield f"{name}:"
        faults.rate(lab, name, None)
    else:
        node, other = (names[place] for place in sorted(chance.sample(range(len(names)), 2)))
        faults.pair_rate(lab, node, other, rate)
        yield f"link {node} to {other}:"
        faults.pair_rate(lab, node, other, None)


def culprits(lab: Lab, project: Path, words: list[str]) -> list[str]:
    """Return the culprits that one bench names. Raises RuntimeError if it could not measure."""
    environment = (
        os.environ
        | dict(labs.environment(lab))
        | {"PYTHONPATH": str(REPOSITORY), "ORCH_PROJECT": str(project)}
    )
    argv = labs.argv_inside(
        lab, [sys.executable, "-m", "orchestrator", "bench", "pairs", "--json", *words]
    )
    done = subprocess.run(
        argv, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    sheets = json.loads(done.stdout)["sheets"] if done.stdout else []
    if not sheets or not sheets[0]["n"]:
        raise RuntimeError(f"no measurement: {done.stderr}")
    print(f"    {sheets[0]['said'][0]}", file=sys.stderr, flush=True)
    named: list[str] = sheets[0]["culprits"]
    return named


def main() -> None:
    """Run the labs and print a row for each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", default="4,8,16")
    parser.add_argument("--clean", type=int, default=100)
    parser.add_argument("--limited", type=int, default=20)
    parser.add_argument("--steps", type=int, default=21)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    print("| nodes | limited | runs | right | wrong | nothing |")
    print("|---:|---|---:|---:|---:|---:|")
    for count in map(int, asked.nodes.split(",")):
        kinds = ["clean"] * asked.clean + [
            ("node", "pair")[number % 2] for number in range(asked.limited)
        ]
        outcomes: dict[str, Counter[str]] = {}
        with tempfile.TemporaryDirectory(prefix="culprits-") as folder:
            lab = labs.up(
                Path(folder) / "lab",
                nodes=count,
                gpus_per_node=0,
                slots=1,
                kind="namespaces",
                say=lambda _: None,
            )
            try:
                for kind in kinds:
                    with limited(lab, kind, asked.rate, chance) as expected:
                        named = culprits(lab, Path(folder), ["--steps", str(asked.steps)])
                    is_right = (
                        not named
                        if kind == "clean"
                        else len(named) == 1 and named[0].startswith(expected)
                    )
                    outcome = "right" if is_right else "wrong" if named else "nothing"
                    print(
                        f"{count} nodes, {kind} {expected} {outcome} {named}",
                        file=sys.stderr,
                        flush=True,
                    )
                    outcomes.setdefault(kind, Counter())[outcome] += 1
            finally:
                labs.down(lab.directory)
        for kind, seen in outcomes.items():
            shown = " | ".join(str(seen[outcome]) for outcome in ("right", "wrong", "nothing"))
            print(f"| {count} | {kind} | {sum(seen.values())} | {shown} |", flush=True)


if __name__ == "__main__":
    main()
