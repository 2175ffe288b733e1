"""Train a GPT-2 with JAX, data parallel, and print one line per step.

Needs JAX 0.6 or newer (0.10 with Python 3.11 was run) and nothing else. Next to this file are the
model (jax_transformer.py) and what all trainers share (trainer.py).

One process per device, which reads its rank from the environment (RANK, LOCAL_RANK, WORLD_SIZE,
MASTER_ADDR, MASTER_PORT). JAX has no launcher: start this program once per device, for instance on
one machine without GPUs

    for rank in 0 1; do
      RANK=$rank LOCAL_RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 python train_jax_lm.py --device cpu ... &
    done

Process 0 listens on MASTER_PORT, and all meet there (jax.distributed). The devices of all processes
form one axis: each holds the whole model and its part of the sequences. A step is both passes, one
mean of the gradients over all devices, and one update; XLA compiles it as one program before the
first step.

Every rank prints one `orch rank=` line; rank 0 prints one `orch step=` line per step and `orch done
{json}` at the end. The line of a step comes when its loss has arrived. On a GPU, the next step has
been queued by then, so that the device never waits for Python; a CPU computes while Python waits,
so there each step begins after the line of the last.

Tokens are random and made once, on the devices. A sequence depends on the seed and on its place in
the global batch, and not on which rank has it: with the same global batch, any number of ranks has
the same losses, up to rounding. The same few batches return, so the loss falls.
"""

from __future__ import annotations

import argparse
import os
import platform
import socket
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rank_progress
import trainer
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax_transformer import Adam, Shape, fresh, initial, mean_loss, parameters, update
from trainer import Identity

BATCHES = 4
"""Different global batches; the fifth step sees the first again."""
EVERYWHERE, SPLIT = PartitionSpec(), PartitionSpec(None, "data")
PRECISIONS = {"fp32": "highest", "tf32": "tensorfloat32", "bf16": "default"}
"""How a GPU multiplies fp32 matrices. Its default for fp32 is TF32."""


# --- options --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the checked command line."""
    parser = trainer.options(
        "model", *trainer.SIZES, "device", "weight_decay", "seed", "threads", "timeout_s",
        batch_size=1, seq_len=128, steps=10, learning_rate=3e-4,
    )  # fmt: skip
    precision = "dtype of matrix products; weights are fp32"
    trainer.add_option(parser, "dtype", "bf16", precision, sorted(PRECISIONS))
    trainer.add_option(parser, "grad_clip", 1.0, "maximum norm of all gradients; 0: no clipping")
    return parser.parse_args()


# --- ranks ----------------------------------------------------------------------------------------


def join(args: argparse.Namespace, me: Identity) -> Mesh:
    """Meet the other processes, print this rank's line, and return the devices of all as one axis.
    Raises SystemExit if a process has not exactly one device of its own. On a CPU, gloo connects to
    the address of each process's host name."""
    os.environ.setdefault(
        "NPROC", str(args.threads)
    )  # XLA takes the size of a CPU's thread pool from here
    jax.config.update("jax_platforms", args.device)
    jax.config.update("jax_default_matmul_precision", PRECISIONS[args.dtype])
    jax.distributed.initialize(
        f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
        me.world_size,
        me.rank,
        local_device_ids=[me.local_rank] if args.device == "cuda" else None,
        initialization_timeout=max(1, round(args.timeout_s)),
    )
    if jax.local_device_count() != 1 or jax.device_count() != me.world_size:
        raise SystemExit(
            f"devices: expected 1 in this process and {me.world_size} in all, JAX has {jax.local_device_count()} and"
            f" {jax.device_count()}. unset XLA_FLAGS and JAX_NUM_CPU_DEVICES if they ask for more"
        )
    trainer.say_rank(
        me.rank, me.local_rank, me.world_size, me.node_rank, socket.gethostname(), device_name()
    )
    return Mesh(np.array(sorted(jax.devices(), key=lambda device: device.process_index)), ("data",))


def device_name() -> str:
    """Return the device's own name."""
    device = jax.local_devices()[0]
    return trainer.cpu_name() if device.platform == "cpu" else str(device.device_kind)


def memory_bytes() -> int:
    """Return the largest memory in use so far: of the device, or of this process on a CPU."""
    statistics = jax.local_devices()[0].memory_stats() or {}
    return int(statistics.get("peak_bytes_in_use", 0)) or trainer.resident_bytes()


def prove_world(me: Identity, mesh: Mesh) -> None:
    """Raise RuntimeError unless each device contributes its own rank to a sum over all. Also a
    barrier.
    """
    own = np.array([[me.rank, 1]], np.int32)
    ranks = jax.make_array_from_process_local_data(NamedSharding(mesh, PartitionSpec("data")), own)
    total = jax.jit(lambda rows: rows.sum(0), out_shardings=NamedSharding(mesh, EVERYWHERE))(ranks)
    trainer.check_ranks([int(value) for value in total], me.world_size)


# --- steps ----------------------------------------------------------------------------------------


def step_of(args: argparse.Namespace, shape: Shape, mesh: Mesh) -> Any:
    """Return the function of one step: (state, tokens of all batches, number of the step) to
    (state, loss).
    """
    compute = jnp.bfloat16 if args.dtype == "bf16" else jnp.float32
    loss_of = jax.value_and_grad(partial(mean_loss, shape, compute))

    def step(state: Adam, tokens: jax.Array, number: jax.Array) -> tuple[Adam, jax.Array]:
        """The part of one device. ``tokens``: batches, sequences of this device, T + 1."""
        loss, grads = jax.lax.pmean(loss_of(state.params, tokens[number % BATCHES]), "data")
        return update(state, grads, args.learning_rate, args.weight_decay, args.grad_clip), loss

    # check_vma: otherwise JAX itself adds up gradients over devices, as parameters are the same
    # everywhere.
    specs = (EVERYWHERE, SPLIT, EVERYWHERE)
    shared = jax.shard_map(step, mesh=mesh, in_specs=specs, out_specs=EVERYWHERE, check_vma=False)
    return jax.jit(shared, donate_argnums=0)


def train(args: argparse.Namespace, me: Identity, mesh: Mesh) -> dict[str, Any]:
    """Take all steps, rank 0 printing them; return the facts of the run."""
    shape = Shape(**{name: getattr(args, name) for name in Shape._fields})
    everywhere, split = NamedSharding(mesh, EVERYWHERE), NamedSharding(mesh, SPLIT)
    weights, data = jax.random.split(jax.random.key(args.seed))
    state = jax.jit(lambda key: fresh(initial(shape, key)), out_shardings=everywhere)(weights)
    samples = args.batch_size * me.world_size
    sizes = (BATCHES, samples, args.seq_len + 1)
    tokens = jax.jit(
        lambda key: jax.random.randint(key, sizes, 0, shape.vocab), out_shardings=split
    )(data)
    numbers = [jax.device_put(np.int32(number), everywhere) for number in range(BATCHES)]
    clock = trainer.HostClock()

    compiling = clock.start()
    step = step_of(args, shape, mesh).lower(state, tokens, numbers[0]).compile()
    compile_s = clock.start() - compiling

    prove_world(
        me, mesh
    )  # also the barrier before the first step: from here on all ranks are ready
    start = clock.start()
    if me.rank == 0:
        trainer.say_start(start)
    losses: list[jax.Array] = []
    ahead = 1 if args.device == "cuda" else 0
    for number in range(1, args.steps + ahead + 1):
        if number <= args.steps:
            rank_progress.mark(number, "step")
            state, loss = step(state, tokens, numbers[number % BATCHES])
            losses.append(loss)
        if number > ahead:
            (done,) = clock.mark(number - ahead, jax.block_until_ready(losses.pop(0)))
            if me.rank == 0:
                trainer.say_step(done, samples)
    rank_progress.mark(args.steps, "end")
    return {
        "global_batch": samples,
        "parameters": parameters(shape),
        "gradient_bytes": parameters(shape) * 4,
        "gradient_dtype": "float32",
        "compile_s": round(compile_s, 3),
    }


def main() -> None:
    """Join, train, verify, report."""
    rank_progress.declare_pauses()
    args = arguments()
    me = trainer.identity(", once per process", "MASTER_ADDR", "MASTER_PORT")
    mesh = join(args, me)
    of_run = train(args, me, mesh)
    prove_world(me, mesh)
    facts = {
        "rank": me.rank,
        "host": socket.gethostname(),
        "device": device_name(),
        "memory_bytes": memory_bytes(),
    }
    rows = multihost_utils.process_allgather(
        np.array(trainer.pack_facts(facts), np.uint8), tiled=False
    ).reshape(me.world_size, -1)
    if me.rank == 0:
        versions = {
            "framework": "jax",
            "framework_version": jax.__version__,
            "python": platform.python_version(),
        }
        ranks = [trainer.unpack_facts(row) for row in rows]
        trainer.say_done(trainer.of_all(args, ranks, {**versions, **of_run}))
    jax.distributed.shutdown()


if __name__ == "__main__":
    try:
        main()
    except Exception:
        trainer.leave_at_once()
    sys.stdout.flush()
    os._exit(0)  # the coordination threads of JAX may outlive the interpreter
