"""The common part of the trainers: options, the clock of a CPU, output. Python 3.8 or newer,
standard library only.

It knows no framework: what differs between them is passed in.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any, Callable, Iterable, NamedTuple, NoReturn, Sequence

SWITCH: dict[str, Any] = {"nargs": "?", "const": "true", "choices": ["true", "false"]}
"""Keyword arguments that declare an option as true or false."""
FACTS_BYTES = 1024
"""Bytes reserved for the facts of a rank: collectives of bytes need the same size on every rank."""


# --- options --------------------------------------------------------------------------------------


def options(models: Iterable[str]) -> argparse.ArgumentParser:
    """Return a parser with the options that mean the same in every trainer."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", choices=sorted(models), default="resnet50")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--batch-size", type=int, default=128, help="samples per device and step")
    parser.add_argument("--image-size", type=int, default=224, help="height and width in pixels")
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--learning-rate", type=float, default=0.01)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=5e-5)
    parser.add_argument(
        "--loss-scale",
        type=float,
        default=1024.0,
        help="initial value with fp16; halved at each overflow",
    )
    parser.add_argument("--label-smoothing", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def parsed(
    parser: argparse.ArgumentParser, unusable: Callable[[argparse.Namespace], str]
) -> argparse.Namespace:
    """Return the command line. Ends the process if ``unusable`` returns a reason why it cannot be
    used.
    """
    args = parser.parse_args()
    problem = unusable(args)
    if problem:
        parser.error(problem)
    return args


def unusable_values(args: argparse.Namespace, counts: Sequence[str]) -> str:
    """Return which number or type cannot be used, or an empty text. ``counts``: options that must
    be 1 or more.
    """
    for name in counts:
        if getattr(args, name) < 1:
            return f"--{name.replace('_', '-')}: expected 1 or more, got {getattr(args, name)}"
    if args.image_size < 32:
        return f"--image-size: expected 32 or more, got {args.image_size}"
    for name in ("timeout_s", "loss_scale"):
        if getattr(args, name) <= 0:
            return f"--{name.replace('_', '-')}: expected more than 0, got {getattr(args, name):g}"
    if args.model == "resnet50" and args.batch_size == 1 and args.image_size == 32:
        return "--batch-size: expected 2 or more at image size 32, got 1: BatchNorm would see one value per channel"
    if args.dtype == "tf32" and args.device == "cpu":
        return "--dtype: expected fp32, fp16 or bf16 on cpu, got tf32"
    return ""


def unusable_loader(args: argparse.Namespace) -> str:
    """Return why the loader has nothing to read or no device to decode on, or an empty text."""
    if args.loader != "synthetic" and not args.data_dir:
        return f"--data-dir: expected the folder that loader {args.loader} reads, got none"
    if args.loader == "dali-gpu" and args.device == "cpu":
        return "--loader: expected a loader for --device cpu, got dali-gpu, which decodes on a GPU. use dali-cpu"
    return ""


# --- ranks and devices ----------------------------------------------------------------------------


class Identity(NamedTuple):
    """The numbers of a process among all ranks, when each has one device."""

    rank: int
    local_rank: int
    world_size: int
    node_rank: int


def cpu_name() -> str:
    """Return the processor's own name."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"cpu {models[0] if models else platform.machine()}"


def resident_bytes() -> int:
    """Return the peak resident memory of this process since it began to run this program.

    Not ru_maxrss, which Linux keeps over exec: it begins with the memory of the launcher, and
    torchrun may be the larger one.
    """
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def check_ranks(total: Sequence[int], world_size: int, group: int | None = None) -> None:
    """Raise RuntimeError unless sum and count of all ranks are those of 0 … world_size-1.

    ``group``: the size of the process group, if the framework reports it.
    """
    expected = [world_size * (world_size - 1) // 2, world_size]
    if list(total) != expected or group not in (None, world_size):
        where = "" if group is None else f" in a group of {group}"
        raise RuntimeError(f"ranks: expected sum and count {expected}, got {list(total)}{where}")


def packed(facts: dict[str, Any]) -> list[int]:
    """Return the facts of a rank as bytes, of the same length for every rank."""
    text = json.dumps(facts).encode()
    if len(text) > FACTS_BYTES:
        raise ValueError(f"facts of a rank: expected {FACTS_BYTES} bytes at most, got {len(text)}")
    return list(text.ljust(FACTS_BYTES))


def unpacked(values: Iterable[float]) -> dict[str, Any]:
    """Return the facts of a rank from its bytes."""
    facts: dict[str, Any] = json.loads(bytes(map(int, values)))
    return facts


# --- timing ---------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A finished step: its number from 1, the monotonic clock at its end, its seconds, its loss.

    ``input_wait_s``: the part of the seconds before its images were ready, if the trainer measures it. ``skipped``: 1 if the
    optimizer changed nothing because gradients overflowed, 0 if it did; None if the trainer does
    not tell. ``compute_s``: the seconds from when its images were ready to the end of its last
    forward pass; None if the trainer does not record that.
    ``compute_cpu_s``: the processor time of all threads during these; None on a GPU. ``gpu_waits``: whether the GPU waited for
    its program during these, as `gpu_waits` tells; None on a CPU.
    """

    number: int
    t: float
    seconds: float
    loss: float
    input_wait_s: float = 0.0
    skipped: int | None = None
    compute_s: float | None = None
    compute_cpu_s: float | None = None
    gpu_waits: bool | None = None


HOST_SHARE = 0.5
"""Of the GPU's time for a part of a step, what the program takes at least to give it that work if
the GPU waits for it. Less than 1: the last kernels, as of an output layer, may take long after the
program is done."""


def gpu_waits(host_s: float, gpu_s: float, has_begun: bool) -> bool:
    """Return whether a GPU waited for its program during a part of a step.

    ``host_s``: the seconds in which the program gave it the work, ``gpu_s``: those in which the GPU did it, by its own events.
    ``has_begun``: whether the GPU had begun with it when the program was done; if not, all of it was queued before. A program
    that waits for a full queue takes long too, and one that waits for the GPU after each step is
    never ahead of it.

    >>> [gpu_waits(0.009, 0.012, True), gpu_waits(0.009, 0.009, False), gpu_waits(0.001, 0.012, True)]
    [True, False, False]
    """
    return has_begun and host_s >= HOST_SHARE * gpu_s


def computed_in(
    begun: Any, forward: tuple[Any, float, bool] | None
) -> tuple[float | None, bool | None]:
    """Return the seconds from the event ``begun`` to the end of a forward pass, and whether the GPU
    waited meanwhile.

    ``forward``: the event at its end, and the other arguments of `gpu_waits`. None twice if the end was not recorded.
    """
    if forward is None:
        return None, None
    end, host_s, has_begun = forward
    gpu_s = begun.elapsed_time(end) / 1000.0
    return gpu_s, gpu_waits(host_s, gpu_s, has_begun)


class Skips:
    """Which steps the loss scaler skipped: it lowers the scale after each overflow, and never
    otherwise.
    """

    def __init__(self, scale: float) -> None:
        self.scale = scale

    def after(self, scale: float) -> int:
        """Return 1 if the step that left this scale was skipped, else 0."""
        skipped = int(scale < self.scale or scale == 0)
        self.scale = scale
        return skipped


def largest(fits: Callable[[int], bool], first: int, most: int) -> int:
    """Return the largest size up to ``most`` that fits, to within a sixteenth; 0 if none fits.

    Double from ``first`` until a size does not fit, then bisect. Sizes from 64 on are multiples of
    8.
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
    """Timing of steps that are finished when their end is marked, as on a CPU. ``scale`` is the
    initial loss scale, if the trainer passes the scale after each step."""

    def __init__(self, scale: float = 1.0) -> None:
        self.skips = Skips(scale)

    def start(self) -> float:
        """Return the monotonic clock before the first step."""
        self.t = self.begun = time.monotonic()
        self.begun_cpu = time.process_time()
        self.forward: tuple[float, float] | None = None
        return self.t

    def begin(self) -> None:
        """Record that the images of the next step are ready. Without this call the input wait is 0."""
        self.begun, self.begun_cpu = time.monotonic(), time.process_time()

    def stamp(self, name: str) -> None:
        """Record the end of a part of the step; only that of `forward` is kept."""
        if name == "forward":
            self.forward = time.monotonic(), time.process_time()

    def mark(self, number: int, loss: Any, scale: Any = None) -> list[Step]:
        """Record the end of a step; return the steps that are finished by now."""
        before, begun, begun_cpu, forward = self.t, self.begun, self.begun_cpu, self.forward
        self.t = self.begun = time.monotonic()
        self.begun_cpu, self.forward = time.process_time(), None
        skipped = None if scale is None else self.skips.after(float(scale))
        computed = (None, None) if forward is None else (forward[0] - begun, forward[1] - begun_cpu)
        return [
            Step(number, self.t, self.t - before, float(loss), begun - before, skipped, *computed)
        ]

    def rest(self) -> list[Step]:
        """Return the steps not yet returned."""
        return []


# --- output ---------------------------------------------------------------------------------------


def say(line: str) -> None:
    """Print a line immediately, in one write: a run may be stopped at any time."""
    sys.stdout.write(f"orch {line}\n")
    sys.stdout.flush()


def say_rank(
    rank: int, local_rank: int, world_size: int, node_rank: int, host: str, device: str
) -> None:
    """Print a rank's numbers, host and device."""
    say(
        f"rank={rank} local_rank={local_rank} world_size={world_size} node_rank={node_rank}"
        f" host={host} pid={os.getpid()} device={device}"
    )


def say_start(t: float, skipped: int | None = None) -> None:
    """Print the line before the first step; ``skipped`` as in the lines of steps."""
    say(f"step=0 t={t:.6f} step_time_s=0 samples=0 loss=nan{skipped_words(skipped)}")


def skipped_words(skipped: int | None) -> str:
    """Return the end of a step's line, empty if the trainer does not tell."""
    return "" if skipped is None else f" skipped={skipped}"


def say_steps(steps: Iterable[Step], samples: int) -> None:
    """Print the lines of finished steps."""
    for step in steps:
        values = f"step_time_s={step.seconds:.6f} samples={samples} loss={step.loss:.6g}{skipped_words(step.skipped)}"
        say(f"step={step.number} t={step.t:.6f} {values}")


def say_done(facts: dict[str, Any]) -> None:
    """Print the last line."""
    say("done " + json.dumps(facts, sort_keys=True))


def closing(
    args: argparse.Namespace,
    ranks: Sequence[dict[str, Any]],
    of_run: dict[str, Any],
    switches: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the facts of a training run for its last line, as `of_all` does."""
    return of_all(args, ranks, {"global_batch": args.batch_size * len(ranks), **of_run}, switches)


def of_all(
    args: argparse.Namespace,
    ranks: Sequence[dict[str, Any]],
    of_run: dict[str, Any],
    switches: Iterable[str] = (),
) -> dict[str, Any]:
    """Return the facts of a run for its last line: the options, the facts of all ranks, and those
    of the run, ``of_run``.

    ``switches``: names of options declared with `SWITCH`.
    """
    counts = Counter(rank["device"] for rank in ranks)
    return {
        **vars(args),
        **{name: getattr(args, name) == "true" for name in switches},
        "world_size": len(ranks),
        "ranks": sorted(rank["rank"] for rank in ranks),
        "hosts": list(dict.fromkeys(rank["host"] for rank in ranks)),
        "devices": [{"name": name, "count": count} for name, count in counts.items()],
        "max_memory_bytes": max(rank["memory_bytes"] for rank in ranks),
        "simulated": False,
        **of_run,
    }


def leave_at_once() -> NoReturn:
    """Print the current exception and exit: an orderly exit would wait for collectives that the
    other ranks may never join.
    """
    traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
