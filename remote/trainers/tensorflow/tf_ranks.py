"""The ranks of train_tensorflow.py: their numbers on this node, the rendezvous of the nodes, and
the facts of all ranks.

TensorFlow 2.4 or newer, Python 3.8 or newer.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from typing import Any, NamedTuple, Sequence

import tensorflow as tf
import trainer


class Identity(NamedTuple):
    """The ranks that this process drives: ``rank`` … ``rank + replicas - 1``."""

    rank: int
    replicas: int
    world_size: int
    node_rank: int


def identity(replicas: int) -> Identity:
    """Read the environment. Raises SystemExit naming missing variables."""
    me = trainer.identity("", "TF_CONFIG")
    index = int(json.loads(os.environ["TF_CONFIG"])["task"]["index"])
    return Identity(me.rank, replicas, me.world_size, index)


def device_name(device: str) -> str:
    """Return a device's own name."""
    if device.startswith("/gpu:"):
        gpu = tf.config.list_physical_devices("GPU")[int(device.split(":")[1])]
        return str(tf.config.experimental.get_device_details(gpu).get("device_name", "GPU"))
    return trainer.cpu_name()


def join(args: argparse.Namespace, me: Identity) -> tuple[tf.distribute.Strategy, str]:
    """Meet the other nodes; return the strategy and the name of its all-reduce backend."""
    backend = (
        {"cuda": "nccl", "cpu": "ring"}[args.device]
        if args.all_reduce == "auto"
        else args.all_reduce
    )
    implementation = getattr(
        tf.distribute.experimental.CommunicationImplementation, backend.upper()
    )
    options = tf.distribute.experimental.CommunicationOptions(implementation=implementation)
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    if strategy.num_replicas_in_sync != me.world_size:
        raise SystemExit(
            f"WORLD_SIZE: expected {me.world_size} replicas, TensorFlow made {strategy.num_replicas_in_sync}"
        )
    return strategy, backend


def of_ranks(
    me: Identity, strategy: tf.distribute.Strategy, values: Sequence[Sequence[float]]
) -> Any:
    """Return one row of numbers per local rank as a value of the strategy. Integers up to 2**24
    stay exact.
    """
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(
            [values[int(context.replica_id_in_sync_group) - me.rank]], tf.float32
        )
    )


def gather(
    facts: Sequence[dict[str, Any]], me: Identity, strategy: tf.distribute.Strategy
) -> list[dict[str, Any]]:
    """Return the facts of every rank, in order of rank."""
    rows = strategy.gather(
        of_ranks(me, strategy, [trainer.pack_facts(rank_facts) for rank_facts in facts]), axis=0
    )
    return [trainer.unpack_facts(row) for row in rows.numpy().tolist()]


def prove_world(me: Identity, strategy: tf.distribute.Strategy) -> None:
    """Add up all ranks. Raises RuntimeError unless they are exactly 0 … world_size-1."""
    counts = of_ranks(me, strategy, [[me.rank + index, 1] for index in range(me.replicas)])
    total = strategy.reduce("SUM", counts, axis=None).numpy()[0]
    trainer.check_ranks([int(value) for value in total], me.world_size)


def memory_bytes(device: str) -> int:
    """Return the peak memory: allocated on the GPU, or resident."""
    if device.startswith("/gpu:"):
        return int(tf.config.experimental.get_memory_info(device[1:].upper())["peak"])
    return trainer.resident_bytes()


def versions() -> dict[str, Any]:
    """Return the versions that may affect the speed; None if missing or unknown: TensorFlow does
    not report NCCL's.
    """
    build = tf.sysconfig.get_build_info()
    return {
        "framework": "tensorflow",
        "framework_version": tf.__version__,
        "python": platform.python_version(),
        "cuda": build.get("cuda_version"),
        "cudnn": build.get("cudnn_version"),
        "nccl": None,
    }
