"""What our trainers have in common: options, the clock of a CPU, what is said. Python 3.8 or newer, standard library only.

It knows no framework: what differs from one to the other is handed in.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Iterable, NamedTuple, NoReturn, Sequence

SWITCH: dict[str, Any] = {"nargs": "?", "const": "true", "choices": ["true", "false"]}
"""How an option is declared that is true or false."""
FACTS_BYTES = 1024
"""Room for what a rank says of itself: collectives of bytes want one size for all."""


# --- what is asked for ----------------------------------------------------------------------------------------------------


def options(models: Iterable[str]) -> argparse.ArgumentParser:
    """Return a parser with the options that mean the same everywhere."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", choices=sorted(models), default="resnet50")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--batch-size", type=int, default=128, help="samples per device and step")
    parser.add_argument("--image-size", type=int, default=224, help="pixels, height and width")
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=5e-5)
    parser.add_argument("--loss-scale", type=float, default=1024.0, help="of fp16, at first; halved at each overflow")
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def parsed(parser: argparse.ArgumentParser, unusable: Callable[[argparse.Namespace], str]) -> argparse.Namespace:
    """Return the command line. Ends the process where ``unusable`` tells why it cannot be run."""
    asked = parser.parse_args()
    problem = unusable(asked)
    if problem:
        parser.error(problem)
    return asked


def unusable_values(asked: argparse.Namespace, counts: Sequence[str]) -> str:
    """Return which number or type cannot be run, or nothing. ``counts``: numbers that are 1 or more."""
    for name in counts:
        if getattr(asked, name) < 1:
            return f"--{name.replace('_', '-')}: expected 1 or more, got {getattr(asked, name)}"
    if asked.image_size < 32:
        return f"--image-size: expected 32 or more, got {asked.image_size}"
    for name in ("timeout_s", "loss_scale"):
        if getattr(asked, name) <= 0:
            return f"--{name.replace('_', '-')}: expected more than 0, got {getattr(asked, name):g}"
    if asked.model == "resnet50" and asked.batch_size == 1 and asked.image_size == 32:
        return "--batch-size: expected 2 or more at image size 32, got 1: BatchNorm would see one value per channel"
    if asked.dtype == "tf32" and asked.device == "cpu":
        return "--dtype: expected fp32, fp16 or bf16 on cpu, got tf32"
    return ""


def unusable_loader(asked: argparse.Namespace) -> str:
    """Return why the loader has nothing to read or nowhere to decode, or nothing."""
    if asked.loader != "synthetic" and not asked.data_dir:
        return f"--data-dir: expected the folder that loader {asked.loader} reads, got none"
    if asked.loader == "dali-gpu" and asked.device == "cpu":
        return "--loader: dali-gpu decodes on a GPU, there is none with --device cpu. take dali-cpu"
    return ""


# --- who and where --------------------------------------------------------------------------------------------------------


class Identity(NamedTuple):
    """Who a process is among all, where each has one device."""

    rank: int
    local_rank: int
    world_size: int
    node_rank: int


def cpu_name() -> str:
    """Return what the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"cpu {models[0] if models else platform.machine()}"


def resident_bytes() -> int:
    """Return the most memory this process held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def check_ranks(total: Sequence[int], world_size: int, group: int | None = None) -> None:
    """Raise RuntimeError where sum and count of all ranks are not those of 0 … world_size-1.

    ``group``: the size of the process group, where the framework tells it.
    """
    expected = [world_size * (world_size - 1) // 2, world_size]
    if list(total) != expected or group not in (None, world_size):
        where = "" if group is None else f" in a group of {group}"
        raise RuntimeError(f"ranks: expected sum and count {expected}, got {list(total)}{where}")


def packed(facts: dict[str, Any]) -> list[int]:
    """Return what a rank says of itself as bytes, as many for every rank."""
    text = json.dumps(facts).encode()
    if len(text) > FACTS_BYTES:
        raise ValueError(f"facts of a rank: expected {FACTS_BYTES} bytes at most, got {len(text)}")
    return list(text.ljust(FACTS_BYTES))


def unpacked(values: Iterable[float]) -> dict[str, Any]:
    """Return what a rank said of itself."""
    facts: dict[str, Any] = json.loads(bytes(map(int, values)))
    return facts


# --- time -----------------------------------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A finished step: its number from 1, the monotonic clock at its end, its seconds, its loss.

    ``input_wait_s``: of the seconds, those before its images were there, where a trainer notes it.
    """

    number: int
    t: float
    seconds: float
    loss: float
    input_wait_s: float = 0.0


def largest(fits: Callable[[int], bool], first: int, most: int) -> int:
    """Return the largest size up to ``most`` that fits, to a sixteenth; 0 where none does.

    It doubles from ``first`` until a size does not fit, then halves the distance. Sizes from 64 on are multiples of 8.
    """
    low, high = 0, min(first, most)
    while fits(high):
        low, high = high, 2 * high
        if high > most:
            high = most + 1
            break
    while high - low > max(1, low // 16):
        middle = (low + high) // 2
        middle -= middle % 8 if middle >= 64 else 0
        middle += 8 if middle <= low else 0
        if middle >= high:
            break
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


class HostClock:
    """Time of steps that are over when their end is noted, as on a CPU."""

    def start(self) -> float:
        """Return the monotonic clock before the first step."""
        self.t = self.begun = time.monotonic()
        return self.t

    def begin(self) -> None:
        """Note that the images of the next step are there. Whoever does not ask has no wait."""
        self.begun = time.monotonic()

    def mark(self, number: int, loss: Any) -> list[Step]:
        """Note the end of a step; return the steps that are over by now."""
        before, begun = self.t, self.begun
        self.t = self.begun = time.monotonic()
        return [Step(number, self.t, self.t - before, float(loss), begun - before)]

    def rest(self) -> list[Step]:
        """Return the steps not yet returned."""
        return []


# --- what is said ---------------------------------------------------------------------------------------------------------


def say(line: str) -> None:
    """Print a line now, in one write: a run may be stopped at any time."""
    sys.stdout.write(f"orch {line}\n")
    sys.stdout.flush()


def say_rank(rank: int, local_rank: int, world_size: int, node_rank: int, host: str, device: str) -> None:
    """Print who a rank is and where it runs."""
    say(
        f"rank={rank} local_rank={local_rank} world_size={world_size} node_rank={node_rank}"
        f" host={host} pid={os.getpid()} device={device}"
    )


def say_start(t: float) -> None:
    """Print the line before the first step."""
    say(f"step=0 t={t:.6f} step_time_s=0 samples=0 loss=nan")


def say_steps(steps: Iterable[Step], samples: int) -> None:
    """Print the lines of finished steps."""
    for step in steps:
        say(f"step={step.number} t={step.t:.6f} step_time_s={step.seconds:.6f} samples={samples} loss={step.loss:.4f}")


def say_done(facts: dict[str, Any]) -> None:
    """Print the last line."""
    say("done " + json.dumps(facts, sort_keys=True))


def closing(
    asked: argparse.Namespace, ranks: Sequence[dict[str, Any]], found: dict[str, Any], switches: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the facts of a training run for its last line, like `of_all`."""
    return of_all(asked, ranks, {"global_batch": asked.batch_size * len(ranks), **found}, switches)


def of_all(
    asked: argparse.Namespace, ranks: Sequence[dict[str, Any]], found: dict[str, Any], switches: Iterable[str] = ()
) -> dict[str, Any]:
    """Return the facts of a run for its last line: what was asked, what all ranks said, what was found out.

    ``switches``: what was declared as `SWITCH`.
    """
    counts = Counter(one["device"] for one in ranks)
    return {
        **vars(asked),
        **{name: getattr(asked, name) == "true" for name in switches},
        "world_size": len(ranks),
        "ranks": sorted(one["rank"] for one in ranks),
        "hosts": list(dict.fromkeys(one["host"] for one in ranks)),
        "devices": [{"name": name, "count": count} for name, count in counts.items()],
        "max_memory_bytes": max(one["memory_bytes"] for one in ranks),
        "simulated": False,
        **found,
    }


def leave_at_once() -> NoReturn:
    """Print the exception in hand and end: an orderly exit would wait for collectives that the other ranks may never join."""
    traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
