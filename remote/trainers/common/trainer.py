"""The common part of the trainers: options, clocks, output. Python 3.6 or newer, standard library
only.

It knows no framework: what differs between them is passed in.
"""

import argparse
import json
import math
import os
import platform
import sys
import time
import traceback
from collections import Counter, deque
from typing import (
    Any,
    Callable,
    Deque,
    Dict,
    Iterable,
    List,
    NamedTuple,
    NoReturn,
    Optional,
    Sequence,
    Tuple,
)

FACTS_BYTES = 1024
"""Bytes reserved for the facts of a rank: collectives of bytes need the same size on every rank."""


# --- options --------------------------------------------------------------------------------------


OPTIONS: Dict[str, Tuple[Any, ...]] = {
    "model": ("", "name of the shape"),
    "device": ("cuda", "", ["cuda", "cpu"]),
    "batch_size": (16, "samples per device and micro-batch"),
    "steps": (50, ""),
    "warmup_steps": (0, "steps before the measured window"),
    "seed": (0, ""),
    "learning_rate": (1e-4, ""),
    "weight_decay": (0.1, ""),
    "backend": ("auto", "auto: nccl on cuda, gloo on cpu", ["auto", "nccl", "gloo"]),
    "threads": (1, "threads per rank on cpu"),
    "timeout_s": (120.0, "longest wait for other ranks, also at the start"),
    # image models
    "image_size": (224, "height and width in pixels"),
    "num_classes": (1000, ""),
    "momentum": (0.9, ""),
    "label_smoothing": (0.0, ""),
    "loss_scale": (1024.0, "initial value with fp16; halved at each overflow"),
    "bucket_cap_mb": (25, "MiB of gradients reduced at once"),
    "loader": ("synthetic", "", ["synthetic", "native", "dali-cpu", "dali-gpu"]),
    "data_dir": ("", "where class folders of JPEG files are, in train/ or directly"),
    "workers": (4, "loader processes per rank, threads with DALI"),
    # language models
    "layers": (int, ""),
    "width": (int, ""),
    "heads": (int, ""),
    "kv_heads": (0, "key/value heads; 0: as many as --heads"),
    "head_width": (0, "0: --width / --heads"),
    "mlp": (int, "hidden width of the MLP"),
    "vocab": (int, ""),
    "gated": (False, "SwiGLU instead of GELU"),
    "tied": (True, "the output layer is the embedding table"),
    "bias": (False, "biases of matrix products"),
    "norm": ("layer", "", ["layer", "rms"]),
    "positions": ("learned", "", ["learned", "rotary"]),
    "max_positions": (1024, "positions of the published model"),
    "rope_theta": (500000.0, "base of rotary positions"),
    "seq_len": (1024, "tokens per sequence"),
    "accumulation": (1, "micro-batches per step"),
    "batches": (2, "different batches of tokens, used in turn"),
    "checkpointing": ("none", "full: recompute each layer", ["none", "full"]),
    "clip": (1.0, "maximum norm of all gradients; 0: no clipping"),
}
"""Options that mean the same in several programs: default, or the type of what must be given; help;
choices.
"""
SIZES = ("layers", "width", "heads", "mlp", "vocab", "max_positions")
"""Options of a decoder's shape that count something."""
SHAPE = (
    "model", *SIZES, "kv_heads", "head_width", "gated", "tied", "bias", "norm", "positions",
    "rope_theta",
)  # fmt: skip
"""All options of a decoder's shape."""


def options(*names: str, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with some of `OPTIONS`; ``defaults`` adds options with other defaults."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for name in dict.fromkeys((*names, *defaults)):
        default, words, *choices = OPTIONS[name]
        add_option(parser, name, defaults.get(name, default), words, *choices)
    return parser


def image_options(models: Iterable[str], *names: str, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with the options of every trainer of image models."""
    common = (
        "device", "image_size", "num_classes", "warmup_steps", "momentum", "loss_scale", "label_smoothing", "seed",
        "bucket_cap_mb", "data_dir", "workers", "threads", "timeout_s",
    )  # fmt: skip
    own = {"batch_size": 128, "steps": 120, "learning_rate": 0.01, "weight_decay": 5e-5}
    parser = options(*common, *names, **{**own, **defaults})
    add_option(parser, "model", "resnet50", "", sorted(models))
    return parser


def add_option(
    parser: argparse.ArgumentParser,
    name: str,
    default: Any,
    words: str = "",
    choices: Optional[Sequence[Any]] = None,
) -> None:
    """Declare an option of its default's type; a truth value is written as true or false. With a
    type in place of the default, the option must be given.
    """
    more: Dict[str, Any] = {"type": type(default), "default": default}
    if isinstance(default, bool):
        more.update(type=json.loads, nargs="?", const=True)
        choices = [True, False]
    elif isinstance(default, type):
        more = {"type": default, "required": True}
    parser.add_argument(flag_of(name), help=words or None, choices=choices, **more)


def shape_values(args: argparse.Namespace, names: Iterable[str]) -> Dict[str, Any]:
    """Return the sizes of a decoder by name, as far as there are such options."""
    values = {name: getattr(args, name) for name in names if hasattr(args, name)}
    values["kv_heads"] = args.kv_heads or args.heads
    values["head_width"] = args.head_width or args.width // args.heads
    return values


def flag_of(name: str) -> str:
    """Return the command-line flag of an option."""
    return "--" + name.replace("_", "-")


# --- ranks and devices ----------------------------------------------------------------------------


class Identity(NamedTuple):
    """The numbers of a process among all ranks, when each has one device."""

    rank: int
    local_rank: int
    world_size: int
    node_rank: int


def identity(start: str, *more: str) -> Identity:
    """Read the environment. Raises SystemExit naming missing variables.

    ``start``: how to start the program; ``more``: further variables that it needs.
    """
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", *more)
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise SystemExit(f"environment: expected {', '.join(missing)} to be set{start}")
    node_rank = os.environ.get("GROUP_RANK", os.environ.get("NODE_RANK", "0"))
    return Identity(*map(int, [*(os.environ[name] for name in names[:3]), node_rank]))


def cpu_name() -> str:
    """Return the processor's own name."""
    with open("/proc/cpuinfo") as lines:
        models = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
        return f"cpu {next(models, platform.machine())}"


def resident_bytes() -> int:
    """Return the peak resident memory of this process since it began to run this program.

    Not ru_maxrss, which Linux keeps over exec: it begins with the memory of the launcher, and
    torchrun may be the larger one.
    """
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def check_ranks(total: Sequence[int], world_size: int, group: Optional[int] = None) -> None:
    """Raise RuntimeError unless sum and count of all ranks match 0 … world_size-1.

    ``group``: the size of the process group, if the framework reports it.
    """
    expected = [world_size * (world_size - 1) // 2, world_size]
    if list(total) != expected or group not in (None, world_size):
        where = "" if group is None else f" in a group of {group}"
        raise RuntimeError(f"ranks: expected sum and count {expected}, got {list(total)}{where}")


def check_ones(total: float, count: int) -> None:
    """Raise RuntimeError unless ``count`` ones added up on the device are ``total``."""
    if total != count:
        raise RuntimeError(
            f"device: expected {count} ones to add up to {count}, got {total:g}:"
            " no kernel image is available for execution on the device"
        )


def pack_facts(facts: Dict[str, Any]) -> List[int]:
    """Return the facts of a rank as bytes, of the same length for every rank."""
    text = json.dumps(facts).encode()
    if len(text) > FACTS_BYTES:
        raise ValueError(f"facts of a rank: expected {FACTS_BYTES} bytes at most, got {len(text)}")
    return list(text.ljust(FACTS_BYTES))


def unpack_facts(values: Iterable[float]) -> Dict[str, Any]:
    """Return the facts of a rank from its bytes."""
    facts: Dict[str, Any] = json.loads(bytes(map(int, values)))
    return facts


# --- timing ---------------------------------------------------------------------------------------


class Step(NamedTuple):
    """A finished step: its number from 1, the monotonic clock at its end, its seconds, its loss;
    None for a program that learns nothing.

    ``input_wait_s``: the part of the seconds before its images were ready, if the trainer measures
    it. ``skipped``: 1 if the optimizer changed nothing because gradients overflowed, 0 if it did;
    None if the trainer does not tell. ``compute_s``: the seconds from when its images were ready to
    the end of its last forward pass; None if the trainer does not record that. ``compute_cpu_s``:
    the processor time of all threads during these; None on a GPU. ``gpu_waits``: whether the GPU
    waited for its program during these; None on a CPU.
    """

    number: int
    t: float
    seconds: float
    loss: Optional[float]
    input_wait_s: float = 0.0
    skipped: Optional[int] = None
    compute_s: Optional[float] = None
    compute_cpu_s: Optional[float] = None
    gpu_waits: Optional[bool] = None


HOST_SHARE = 0.5
"""Of the GPU's time for a part of a step, what the program takes at least to give it that work if
the GPU waits for it. Less than 1: the last kernels, as of an output layer, may take long after the
program is done."""


class Skips:
    """Detects steps that the loss scaler skipped: it lowers the scale after each overflow, and
    never otherwise.
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
        self.forward: Optional[Tuple[float, float]] = None
        return self.t

    def begin(self) -> None:
        """Record that the images of the next step are ready. Without this call the input wait is 0."""
        self.begun, self.begun_cpu = time.monotonic(), time.process_time()

    def stamp(self, name: str) -> None:
        """Record the end of a part of the step; only `forward` is kept."""
        if name == "forward":
            self.forward = time.monotonic(), time.process_time()

    def mark(self, number: int, loss: Any, scale: Any = None) -> List[Step]:
        """Record the end of a step; return the steps that are finished by now."""
        before, begun, begun_cpu, forward = self.t, self.begun, self.begun_cpu, self.forward
        self.t = self.begun = time.monotonic()
        self.begun_cpu, self.forward = time.process_time(), None
        skipped = None if scale is None else self.skips.after(float(scale))
        computed = (None, None) if forward is None else (forward[0] - begun, forward[1] - begun_cpu)
        known = None if loss is None else float(loss)
        return [Step(number, self.t, self.t - before, known, begun - before, skipped, *computed)]

    def rest(self) -> List[Step]:
        """Return the steps not yet returned."""
        return []


class EventClock:
    """Timing of steps on a GPU, by its own events, so that the device's queue never runs empty for
    the sake of a log line.

    After step k the host waits for step k-2. `t` is the host's clock at one synchronised moment
    plus the device's own time since then. The device's wait for input is the time between two of
    its own events: a host that waits while the device computes costs nothing. Whether the GPU has
    begun with a step is asked without waiting for it. ``scale`` is the initial loss scale.

    A framework's clock has `event`, which returns a recorded event; `settle`, which waits until
    the device is idle; and `keep`, which begins to copy loss and loss scale of a step to the host.
    """

    event: Callable[[], Any]
    settle: Callable[[], None]
    keep: Callable[[int, Any, Any], Tuple[Any, Any]]

    def __init__(self, scale: float = 1.0) -> None:
        self.skips = Skips(scale)
        self.queued: Deque[Tuple[Any, ...]] = deque()
        self.forward: Any = None

    def start(self) -> float:
        """Wait until the device is idle; return the monotonic clock."""
        self.settle()
        self.last = self.event()
        self.last.synchronize()
        self.t = time.monotonic()
        return self.t

    def begin(self) -> None:
        """Record that the images of the next step are ready, or will be when the device gets here."""
        self.begun = self.event()
        self.begun_host_s = time.perf_counter()

    def stamp(self, name: str) -> None:
        """Record the end of a part of the step; only `forward` is kept."""
        if name == "forward":
            event = self.event()
            self.forward = event, time.perf_counter() - self.begun_host_s, self.begun.query()

    def mark(self, number: int, loss: Any, scale: Any = None) -> List[Step]:
        """Record the end of a step that is still queued; return the steps that are finished by now."""
        kept = self.keep(number, loss, scale)
        self.queued.append((number, self.begun, self.forward, self.event(), *kept))
        self.forward = None
        return [self._oldest()] if len(self.queued) > 2 else []

    def rest(self) -> List[Step]:
        """Wait for the device; return the steps not yet returned."""
        return [self._oldest() for _ in range(len(self.queued))]

    def _oldest(self) -> Step:
        number, begun, forward, event, loss, scale = self.queued.popleft()
        event.synchronize()
        waited, seconds = (self.last.elapsed_time(end) / 1000.0 for end in (begun, event))
        self.last, self.t = event, self.t + seconds
        skipped = None if scale is None else self.skips.after(float(scale))
        step = Step(number, self.t, seconds, float(loss), waited, skipped)
        if forward is None:
            return step
        end, host_s, has_begun = forward
        gpu_s = begun.elapsed_time(end) / 1000.0
        # A program that waits for a full queue takes long too, and one that waits for the GPU
        # after each step is never ahead of it.
        waits = bool(has_begun) and host_s >= HOST_SHARE * gpu_s
        return step._replace(compute_s=gpu_s, gpu_waits=waits)


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


def say_start(t: float, skipped: Optional[int] = None, loss: Optional[float] = math.nan) -> None:
    """Print the line before the first step; ``loss`` and ``skipped`` as in the lines of steps."""
    say(f"step=0 t={t:.6f} step_time_s=0 samples=0{loss_words(loss)}{skipped_words(skipped)}")


def loss_words(loss: Optional[float]) -> str:
    """Return a loss as in a step's line, empty if the program has none."""
    return "" if loss is None else f" loss={loss:.6g}"


def skipped_words(skipped: Optional[int]) -> str:
    """Return the end of a step's line, empty if the trainer does not tell."""
    return "" if skipped is None else f" skipped={skipped}"


def say_step(step: Step, samples: int) -> None:
    """Print the line of a finished step."""
    values = f"step_time_s={step.seconds:.6f} samples={samples}{loss_words(step.loss)}"
    say(f"step={step.number} t={step.t:.6f} {values}{skipped_words(step.skipped)}")


def say_done(facts: Dict[str, Any]) -> None:
    """Print the last line."""
    say("done " + json.dumps(facts, sort_keys=True))


def of_all(
    args: argparse.Namespace, ranks: Sequence[Dict[str, Any]], of_run: Dict[str, Any]
) -> Dict[str, Any]:
    """Return the facts of a run for its last line: the options, the facts of all ranks, and those
    of the run, ``of_run``.
    """
    counts = Counter(rank["device"] for rank in ranks)
    return {
        **vars(args),
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
