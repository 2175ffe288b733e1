"""Count how often an archive is refused after one byte was changed, in equal parts in headers,
contents, padding and the end.

    python -m tests.support.flips FILE [--count 200] [--seed 1]

asks the real `orch verify`, a process each. The standard library's reader of tars says where the
bytes lie.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.e2e.rig import ORCH
from tests.support.judge import LIMIT_S


def regions(archive: Path) -> dict[str, list[range]]:
    """Return where which kind of byte lies; together they are the whole file."""
    ranges: dict[str, list[range]] = {"header": [], "content": [], "padding": [], "end": []}
    at = 0
    with tarfile.open(archive) as tar:
        for member in tar:
            stop = member.offset_data + member.size
            full = -(-stop // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
            ranges["header"].append(range(at, member.offset_data))
            ranges["content"].append(range(member.offset_data, stop))
            ranges["padding"].append(range(stop, full))
            at = full
    ranges["end"].append(range(at, archive.stat().st_size))
    return ranges


def flips(archive: Path, count: int, seed: int) -> Iterator[tuple[str, int, int]]:
    """Yield so many changes: the kind of byte, its place, and what it is combined with by exclusive
    or.
    """
    chance = random.Random(seed)
    places = {
        name: [at for span in spans for at in span] for name, spans in regions(archive).items()
    }
    names = sorted(places)
    for index in range(count):
        name = names[index % len(names)]
        yield name, chance.choice(places[name]), chance.randrange(1, 256)


def refused(
    archive: Path, count: int, seed: int, refuses: Callable[[Path], bool]
) -> tuple[Counter[str], list[int]]:
    """Return how many changes of each kind were refused, and the places of those that were not."""
    data = bytearray(archive.read_bytes())
    counts: Counter[str] = Counter()
    passed = []
    with tempfile.TemporaryDirectory() as folder:
        changed = Path(folder) / archive.name
        for name, at, mask in flips(archive, count, seed):
            data[at] ^= mask
            changed.write_bytes(data)
            data[at] ^= mask
            if refuses(changed):
                counts[name] += 1
            else:
                passed.append(at)
    return counts, passed


def program_refuses(archive: Path) -> bool:
    """Ask the program. A refusal is exit status 4 and one line, nothing else."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        [*ORCH, "verify", str(archive)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env=environment,
    )
    return (
        done.returncode == 4
        and not done.stdout
        and done.stderr.startswith(f"orch: {archive}")
        and done.stderr.count("\n") == 1
    )


def main() -> int:
    """Say how many were refused."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.flips")
    parser.add_argument("file", type=Path)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    counts, passed = refused(options.file, options.count, options.seed, program_refuses)
    parts = ", ".join(f"{counts[name]} in {name}" for name in sorted(counts))
    print(f"{counts.total()} of {options.count} refused: {parts}; seed {options.seed}")
    if passed:
        print(f"not refused: bytes {passed}", file=sys.stderr)
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main())
