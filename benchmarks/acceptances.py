"""One acceptance over ssh, in Slurm and in pods, on the same nodes of a lab: are its numbers the same?

    orch lab up --slurm --pods --nodes 2
    orch lab exec -- sbatch --nodes 2 --wrap "sleep 2h"
    orch lab exec -- python benchmarks/acceptances.py JOB [--suite quick] [--rounds 1]

A round makes the acceptance once in each engine, every other round in reverse. Printed are medians
of all repeats, and the interval at 90 % of the ratio to ssh by Welch's t. Where that is within 1 %,
two one-sided tests at 95 % find the engines equal (D. J. Schuirmann, 1987).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import orchestrator
from orchestrator.results.numbers.intervals import change_interval

EQUAL = 0.01


def accept(suite: str, hosts: str) -> dict[str, list[float]]:
    """Return the values of the primary metrics of an acceptance, of all of its repeats."""
    found = defaultdict[str, list[float]](list)
    with tempfile.TemporaryDirectory() as project:
        argv = [sys.executable, "-m", "orchestrator", "accept", suite, "--hosts", hosts]
        environment = {**os.environ, "ORCH_PROJECT": project}
        subprocess.run(argv, env=environment, stdout=subprocess.DEVNULL, check=False)
        for path in sorted(Path(project).rglob("bench.json")):
            for row in orchestrator.load(path.parent).document["rows"]:
                name = " ".join([row["model"], row["metric"], *map(str, row["key"].values())])
                if row["primary"]:
                    found[name] += [repeat["value"] for repeat in row["repeats"]]
    assert found, f"{suite} measured nothing on {hosts}"
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("job")
    parser.add_argument("--suite", default="quick")
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    engines = {
        "ssh": os.environ["ORCH_HOSTS"],
        "slurm": f"srun:{options.job}",
        "pods": "pods:app=lab",
    }
    values: dict[str, dict[str, list[float]]] = {name: {} for name in engines}
    for turn in range(options.rounds):
        for name, hosts in list(engines.items())[:: -1 if turn % 2 else 1]:
            for metric, of_round in accept(options.suite, hosts).items():
                values[name].setdefault(metric, []).extend(of_round)
    print(f"{'median, repeats':48}  over ssh  90 % interval")
    for metric, base in values["ssh"].items():
        print(f"{metric:38} ssh   {median(base):10.4g} {len(base):3}")
        for name in ("slurm", "pods"):
            other = values[name].get(metric, [])
            if not (interval := change_interval(base, other, 0.90)):
                print(f"{metric:38} {name:5} {'none':>10}")
                continue
            is_equal = interval.low > 1 - EQUAL and interval.high < 1 + EQUAL
            verdict = "equal within 1 %" if is_equal else "not shown to be equal"
            line = f"{metric:38} {name:5} {median(other):10.4g} {len(other):3}"
            ratio = median(other) / median(base)
            print(f"{line} {ratio:8.4f}  {interval.low:.4f} to {interval.high:.4f}  {verdict}")


if __name__ == "__main__":
    main()
