"""Simulate an accelerator: sleep for the compute of a step, then really all-reduce its gradients
over TCP.

Needs Python 3.6 or newer and, next to this file, rank_parts.py, rank_progress.py, trainer.py,
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
import os
import platform
import random
import signal
import socket
import sys
import time
from functools import partial
from typing import Any, Dict, List

import rank_progress
import trainer
from rank_parts import StepLog
from simulated_rendezvous import PeerError, farewell, rendezvous
from simulated_ring import FLOAT_BYTES, Ring
from trainer import Identity

PARAMETERS = {"resnet50": 25557032, "vgg16": 138357544}
# Samples/s of an imaginary accelerator: round numbers, so that nobody mistakes them for a
# measurement.
SPEED = {"resnet50": {"fp32": 1000.0, "half": 2000.0}, "vgg16": {"fp32": 500.0, "half": 1000.0}}
HALF_TYPES = ("fp16", "bf16")


# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the command line."""
    parser = trainer.options("seed", "warmup_steps", batch_size=128, steps=20, timeout_s=60.0)
    add = partial(trainer.add_option, parser)
    add("model", "resnet50", "determines the gradient bytes", sorted(PARAMETERS))
    add("dtype", "fp32", "4 or 2 bytes per gradient", ["fp32", "tf32", "fp16", "bf16"])
    add("compute_ms", -1.0, "sleep per step; -1: from model, dtype, batch size")
    add("jitter_percent", 0.0, "maximum random addition to that sleep, in percent")
    add("gradient_mb", 0.0, "MB all-reduced per step; 0: all of the model's")
    add("slow_rank", 0, "the rank that --slow-percent slows")
    add("slow_percent", 0.0, "addition to that rank's sleep, in percent")
    add("fail_at_step", 0, "inject a fault instead of this step; 0: none")
    add("fail_rank", 0, "the rank that fails")
    add("fail_mode", "exit3", "", sorted(FAULTS))
    return parser.parse_args()


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


def hang() -> None:
    """Sleep until killed."""
    while True:
        time.sleep(3600)


def hang_deaf() -> None:
    """Sleep until killed by SIGKILL."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    hang()


def leave() -> None:
    """End well at once: its peers see that it is gone when it is, not while it still clears up."""
    sys.stdout.flush()
    os._exit(0)


def run_out_of_memory() -> None:
    """Print the error of a GPU out of memory and exit at once, as the other trainers do."""
    sys.stderr.write(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. (injected for a rehearsal)\n"
    )
    sys.stderr.flush()
    os._exit(1)


FAULTS = {
    "exit3": partial(sys.exit, 3),
    "exit0": leave,
    "sigkill": partial(os.kill, os.getpid(), signal.SIGKILL),
    "hang": hang,
    "deaf": hang_deaf,
    "oom-print": run_out_of_memory,
}
"""What a rank does in place of a step; exit0 as if its share of the data had ended before that of
the others.
"""


# --- main -----------------------------------------------------------------------------------------


def sleep_until(deadline: float) -> None:
    """Sleep until the monotonic clock reaches ``deadline``."""
    while True:
        left = deadline - time.monotonic()
        if left <= 0:
            return
        time.sleep(left)


def facts_of(args: argparse.Namespace, ranks: List[Dict[str, Any]], ring: Ring) -> Dict[str, Any]:
    """Return the facts of the run for its last line."""
    return {
        "global_batch": args.batch_size * len(ranks),
        "parameters": PARAMETERS[args.model],
        "gradient_bytes": len(ring.buffer),
        "gradient_buckets_bytes": [len(ring.buffer)],
        "bytes_sent": [rank["sent_bytes"] for rank in ranks],
        "compute_s": compute_s(args),
        "framework": "simulated",
        "framework_version": "1",
        "python": platform.python_version(),
        "backend": "tcp-ring",
        "loader": "synthetic",
        "simulated": True,
        **dict.fromkeys(("cuda", "cudnn", "nccl")),
    }


def train(args: argparse.Namespace, me: Identity, ring: Ring) -> None:
    """Take all steps, rank 0 printing them, and print the parts of this rank's."""
    noise = random.Random(args.seed + me.rank)
    slower = 1 + (args.slow_percent / 100 if me.rank == args.slow_rank else 0)
    clock = trainer.HostClock()
    log = StepLog(args, me.rank, args.batch_size * me.world_size, clock)
    log.start(loss=None)
    for step in range(1, args.steps + 1):
        rank_progress.mark(step, "compute")
        if step == args.fail_at_step and me.rank == args.fail_rank:
            FAULTS[args.fail_mode]()
        clock.begin()
        noisy = 1 + noise.random() * args.jitter_percent / 100
        sleep_until(clock.begun + compute_s(args) * slower * noisy)
        clock.stamp("forward")
        rank_progress.mark(step, "collective")
        ring.all_reduce(step)
        # A sleep's processor time would look as if somebody else had the processor.
        log.tell(done._replace(compute_cpu_s=None) for done in clock.mark(step, None))
    log.end()


def main() -> None:
    """Meet, train, report."""
    rank_progress.declare_pauses()
    args = arguments()
    me = trainer.identity("", "MASTER_ADDR", "MASTER_PORT")
    meeting = rendezvous(me, args.timeout_s)
    host = socket.gethostname()
    trainer.say_rank(*me, host, "simulated")
    ring = Ring(me, meeting, gradient_bytes(args), args.timeout_s)
    ring.all_reduce(0)  # a barrier before the first step, which also uses every connection once
    ring.sent_bytes = 0
    train(args, me, ring)
    own_facts = {
        "rank": me.rank,
        "host": host,
        "device": "simulated",
        "sent_bytes": ring.sent_bytes,
        "memory_bytes": trainer.resident_bytes(),
    }
    ranks = farewell(meeting, own_facts, args.timeout_s)
    if me.rank == 0:
        trainer.say_done(trainer.of_all(args, ranks, facts_of(args, ranks, ring)))


if __name__ == "__main__":
    try:
        main()
    except PeerError as error:
        sys.stderr.write(f"rank {os.environ['RANK']}: {error}\n")
        sys.exit(1)
