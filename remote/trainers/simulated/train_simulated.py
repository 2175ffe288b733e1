"""Simulate an accelerator: sleep for the compute of a step, then really all-reduce its gradients
over TCP.

Needs Python 3.6 or newer and, next to this file, rank_parts.py, rank_progress.py,
simulated_rendezvous.py and simulated_ring.py. It prints the same lines as the other trainers, and
the last one has `"simulated": true`: network, launch and logs are real, the computation is not. One
process per rank, which reads its rank from the environment:

    RANK=0 LOCAL_RANK=0 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python3 -s -E -S -u train_simulated.py --steps 5 &
    RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python3 -s -E -S -u train_simulated.py --steps 5

A step: sleep, then a ring all-reduce of the model's gradients: N-1 exchanges that add up, N-1 that
distribute the sums, each sending 1/N of the bytes to the next rank while receiving as many from the
previous one. The first floats of every chunk are really added, and checked at the end of each step;
the bytes behind them are moved but not added.

Injected faults, for rehearsals: `--fail-at-step N --fail-rank R --fail-mode M` makes one rank fail
instead of taking step N. exit3: exit with code 3 · exit0: end well too early · sigkill: kill itself
· hang: sleep forever · deaf: the same, ignoring SIGTERM · oom-print: print the error of a GPU out
of memory and exit 1. `--slow-rank R --slow-percent P` makes a rank sleep longer in each step.
"""

import argparse
import json
import os
import platform
import random
import resource
import signal
import socket
import sys
import time
from collections import Counter
from typing import Any, Dict, List

import rank_progress
from rank_parts import RankParts
from simulated_rendezvous import Identity, PeerError, farewell, identity, rendezvous
from simulated_ring import FLOAT_BYTES, Ring

PARAMETERS = {"resnet50": 25557032, "vgg16": 138357544}
# Samples/s of an imaginary accelerator: round numbers, so that nobody mistakes them for a
# measurement.
SPEED = {"resnet50": {"fp32": 1000.0, "half": 2000.0}, "vgg16": {"fp32": 500.0, "half": 1000.0}}
HALF_TYPES = ("fp16", "bf16")


# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument(
        "--model",
        choices=sorted(PARAMETERS),
        default="resnet50",
        help="determines the gradient bytes",
    )
    parser.add_argument(
        "--dtype",
        choices=["fp32", "tf32", "fp16", "bf16"],
        default="fp32",
        help="4 or 2 bytes per gradient",
    )
    parser.add_argument("--batch-size", type=int, default=128, help="samples per device and step")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument(
        "--compute-ms",
        type=float,
        default=-1.0,
        help="sleep per step; -1: from model, dtype, batch size",
    )
    parser.add_argument(
        "--jitter-percent",
        type=float,
        default=0.0,
        help="maximum random addition to that sleep, in percent",
    )
    parser.add_argument(
        "--gradient-mb",
        type=float,
        default=0.0,
        help="MB all-reduced per step; 0: all of the model's",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the jitter")
    parser.add_argument(
        "--warmup-steps", type=int, default=0, help="steps before the measured window"
    )
    parser.add_argument(
        "--slow-rank", type=int, default=0, help="the rank that --slow-percent slows"
    )
    parser.add_argument(
        "--slow-percent", type=float, default=0.0, help="addition to that rank's sleep, in percent"
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=60.0,
        help="longest wait for another rank, also at the start",
    )
    parser.add_argument(
        "--fail-at-step", type=int, default=0, help="inject a fault instead of this step; 0: none"
    )
    parser.add_argument("--fail-rank", type=int, default=0, help="the rank that fails")
    parser.add_argument("--fail-mode", choices=sorted(FAULTS), default="exit3")
    args = parser.parse_args()
    least = {
        "batch_size": 1,
        "steps": 1,
        "compute_ms": -1,
        "jitter_percent": 0,
        "slow_percent": 0,
        "gradient_mb": 0,
    }
    least.update(warmup_steps=0, timeout_s=0.001)
    for name, minimum in least.items():
        if not getattr(args, name) >= minimum:
            parser.error(
                "--{}: expected {} or more, got {}".format(
                    name.replace("_", "-"), minimum, getattr(args, name)
                )
            )
    if args.warmup_steps >= args.steps:
        parser.error(
            f"--warmup-steps: expected fewer than the {args.steps} steps, got {args.warmup_steps}"
        )
    return args


def gradient_bytes(args: argparse.Namespace) -> int:
    """Return the bytes all-reduced in a step, a whole number of floats."""
    width = 2 if args.dtype in HALF_TYPES else 4
    size = int(args.gradient_mb * 1e6) if args.gradient_mb else PARAMETERS[args.model] * width
    return max(size // FLOAT_BYTES, 1) * FLOAT_BYTES


def compute_s(args: argparse.Namespace) -> float:
    """Return the compute seconds of a step, without jitter."""
    if args.compute_ms >= 0:
        return float(args.compute_ms) / 1000.0
    return float(
        args.batch_size / SPEED[args.model]["half" if args.dtype in HALF_TYPES else "fp32"]
    )


# --- injected faults ------------------------------------------------------------------------------


def fail_exit() -> None:
    """Exit with code 3."""
    sys.exit(3)


def fail_early() -> None:
    """End with exit code 0, as if this rank's share of the data had ended before that of the
    others.
    """
    sys.exit(0)


def fail_sigkill() -> None:
    """Die of SIGKILL, as if killed by the kernel when memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)


def fail_hang() -> None:
    """Sleep until killed."""
    while True:
        time.sleep(3600)


def fail_deaf() -> None:
    """Sleep until killed by SIGKILL."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    fail_hang()


def fail_memory() -> None:
    """Print the error of a GPU out of memory and exit at once, as the other trainers do."""
    sys.stderr.write(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. (injected for a rehearsal)\n"
    )
    sys.stderr.flush()
    os._exit(1)


FAULTS = {
    "exit3": fail_exit,
    "exit0": fail_early,
    "sigkill": fail_sigkill,
    "hang": fail_hang,
    "deaf": fail_deaf,
    "oom-print": fail_memory,
}


# --- main -----------------------------------------------------------------------------------------


def say(line: str) -> None:
    """Print a line immediately, in one write: a run may be stopped at any time."""
    sys.stdout.write(f"orch {line}\n")
    sys.stdout.flush()


def sleep_until(deadline: float) -> None:
    """Sleep until the monotonic clock reaches ``deadline``."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(left)


def closing(args: argparse.Namespace, ranks: List[Dict[str, Any]], ring: Ring) -> Dict[str, Any]:
    """Return the facts of the run for its last line."""
    facts = dict(vars(args))
    counts = Counter(rank["device"] for rank in ranks)
    facts.update(
        world_size=len(ranks),
        ranks=[rank["rank"] for rank in ranks],
        hosts=list(dict.fromkeys(rank["host"] for rank in ranks)),
        devices=[{"name": name, "count": count} for name, count in counts.items()],
        global_batch=args.batch_size * len(ranks),
        parameters=PARAMETERS[args.model],
        gradient_bytes=len(ring.buffer),
        gradient_buckets_bytes=[len(ring.buffer)],
        bytes_sent=[rank["sent_bytes"] for rank in ranks],
        compute_s=compute_s(args),
        max_memory_bytes=max(rank["memory_bytes"] for rank in ranks),
        framework="simulated",
        framework_version="1",
        python=platform.python_version(),
        backend="tcp-ring",
        loader="synthetic",
        simulated=True,
    )
    facts.update(cuda=None, cudnn=None, nccl=None)
    return facts


def train(args: argparse.Namespace, me: Identity, ring: Ring) -> None:
    """Take all steps, rank 0 printing them, and print the parts of this rank's."""
    noise = random.Random(args.seed + me.rank)
    slower = 1 + (args.slow_percent / 100 if me.rank == args.slow_rank else 0)
    window = RankParts(args.warmup_steps + 1, args.steps)
    before = time.monotonic()
    if me.rank == 0:
        say(f"step=0 t={before:.6f} step_time_s=0 samples=0 loss=nan")
    for step in range(1, args.steps + 1):
        rank_progress.mark(step, "compute")
        if step == args.fail_at_step and me.rank == args.fail_rank:
            FAULTS[args.fail_mode]()
        begun = time.monotonic()
        sleep_until(
            begun + compute_s(args) * slower * (1 + noise.random() * args.jitter_percent / 100)
        )
        computed = time.monotonic() - begun
        rank_progress.mark(step, "collective")
        ring.all_reduce(step)
        now = time.monotonic()
        if me.rank == 0:
            say(
                f"step={step} t={now:.6f} step_time_s={now - before:.6f} samples={args.batch_size * me.world_size} loss=nan"
            )
        window.add(step, now - before, begun - before, computed)
        before = now
    say(window.line(me.rank))
    rank_progress.mark(args.steps, "end")


def main() -> None:
    """Meet, train, report."""
    rank_progress.declare_pauses()
    args = arguments()
    me = identity()
    meeting = rendezvous(me, args.timeout_s)
    host = socket.gethostname()
    say(
        f"rank={me.rank} local_rank={me.local_rank} world_size={me.world_size} node_rank={me.node_rank}"
        f" host={host} pid={os.getpid()} device=simulated"
    )
    ring = Ring(me, meeting, gradient_bytes(args), args.timeout_s)
    ring.all_reduce(0)  # a barrier before the first step, which also uses every connection once
    ring.sent_bytes = 0
    train(args, me, ring)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    own_facts = {
        "rank": me.rank,
        "host": host,
        "device": "simulated",
        "sent_bytes": ring.sent_bytes,
        "memory_bytes": memory,
    }
    ranks = farewell(meeting, own_facts, args.timeout_s)
    if me.rank == 0:
        say("done " + json.dumps(closing(args, ranks, ring), sort_keys=True))


if __name__ == "__main__":
    try:
        main()
    except PeerError as error:
        sys.stderr.write(f"rank {os.environ['RANK']}: {error}\n")
        sys.exit(1)
