"""Train ResNet-50 v1.5 or VGG16 with Paddle's fleet, and print one line per step.

Needs PaddlePaddle 2.5 or newer and Python 3.8 or newer. What it shares with its like is in trainer.py beside this file. One
process per device; who it is, it reads from the environment: RANK, LOCAL_RANK, WORLD_SIZE, NODE_RANK, and what
paddle.distributed.launch sets, with which they must agree:

    python -m paddle.distributed.launch --ips 10.11.0.2,10.11.0.3 --host 10.11.0.2 --start_port 29500 --nnodes 2 rank.sh

where rank.sh derives the four from PADDLE_TRAINER_ID and its like, and starts this file. Every rank prints one `orch rank=`
line; rank 0 prints one `orch step=` line for each step and `orch done {json}` at the end. Synthetic images are made once, on
the device: no loader and no copy is part of a step. The other loaders read image folders, see loaders.py beside this file:
`native` is paddle.io over Pillow, whose pixels travel as bytes and are normalised on the device; `dali-cpu` and `dali-gpu` are
NVIDIA DALI. Waiting for them is part of a step.

Two strategies. `collective` is fleet's data parallelism: each rank has its batch, gradients are averaged. `auto` gives Paddle 3
one sharded global batch and lets its placement rules find the communication.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import os
import platform
import socket
import sys
import time
from collections import deque
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path
from typing import Any, Iterator, NamedTuple

import paddle
import paddle.distributed as dist
import trainer
from paddle import nn
from paddle.distributed import fleet
from paddle.distributed.collective import _set_default_store
from paddle.framework import core
from trainer import Identity, Step

FLUSH_TO_ZERO, DENORMALS_ARE_ZERO = 1 << 15, 1 << 6
HALF_TYPES = {"fp16": "float16", "bf16": "bfloat16"}
# Paddle's own definitions: the stride of resnet50 is in its 3x3 convolutions, which is version 1.5.
MODELS = {"resnet50": paddle.vision.models.resnet50, "vgg16": paddle.vision.models.vgg16}


# --- what is asked for, and who asks --------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the command line, checked."""
    parser = trainer.options(MODELS)
    parser.add_argument("--dtype", choices=["fp32", "tf32", "fp16", "bf16"], default="fp32", help="fp16 and bf16: AMP")
    parser.add_argument("--amp-level", choices=["O1", "O2"], default="O1", help="O2: weights in that type as well")
    parser.add_argument("--strategy", choices=["collective", "auto"], default="collective")
    parser.add_argument("--bucket-cap-mb", type=int, default=25, help="MiB of gradients reduced at once")
    parser.add_argument("--loader", choices=["synthetic", "native", "dali-cpu", "dali-gpu"], default="synthetic")
    parser.add_argument("--data-dir", default="", help="where class folders of JPEG files lie, in train/ or directly")
    parser.add_argument("--workers", type=int, default=4, help="processes, with DALI threads, that load for one rank")
    parser.add_argument("--threads", type=int, default=1, help="threads of one rank on cpu")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="longest wait for other ranks")
    return trainer.parsed(parser, unusable)


def unusable(asked: argparse.Namespace) -> str:
    """Return why these arguments cannot be run, or nothing."""
    counts = ("batch_size", "steps", "num_classes", "bucket_cap_mb", "threads", "workers")
    if problem := trainer.unusable_values(asked, counts):
        return problem
    if asked.device == "cuda" and not paddle.is_compiled_with_cuda():
        return f"--device: expected a Paddle built for CUDA, {paddle.__version__} is not"
    if problem := trainer.unusable_loader(asked):
        return problem
    if asked.loader != "synthetic":
        import loaders

        if loaders.lacking(asked.loader):
            return str(loaders.lacking(asked.loader))
    if asked.strategy == "auto" and not hasattr(dist, "shard_layer"):
        return f"--strategy: auto needs the placement rules of Paddle 3, this is {paddle.__version__}"
    return ""


def identity() -> Identity:
    """Read the environment. Raises SystemExit naming what is missing, or what Paddle's launcher sees otherwise."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "NODE_RANK", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM")
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise SystemExit(f"environment: expected {', '.join(missing)} to be set. start this with paddle.distributed.launch")
    values = {name: int(os.environ[name]) for name in names}
    for ours, theirs in (("RANK", "PADDLE_TRAINER_ID"), ("WORLD_SIZE", "PADDLE_TRAINERS_NUM")):
        if values[ours] != values[theirs]:
            hint = "the launcher finds a node by its --host in --ips"
            raise SystemExit(f"{theirs}: expected {values[ours]} as {ours} says, got {values[theirs]}. {hint}")
    return Identity(values["RANK"], values["LOCAL_RANK"], values["WORLD_SIZE"], values["NODE_RANK"])


def device_name(device: str) -> str:
    """Return what the device calls itself."""
    if device == "cuda":
        return str(paddle.device.cuda.get_device_name())
    return trainer.cpu_name()


def flush_subnormals() -> None:
    """Let this thread, and those it starts, take numbers too small for full precision as 0, where the processor is x86.

    Images that never change are soon learnt by heart; the gradients that are left are such numbers, and each step then takes
    five times as long. TensorFlow does the same, a GPU need not.
    """
    if platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc":
        return
    mathematics = ctypes.CDLL("libm.so.6")
    state = (ctypes.c_uint32 * 8)()  # glibc's fenv_t; MXCSR is its last word
    mathematics.fegetenv(state)
    state[7] |= FLUSH_TO_ZERO | DENORMALS_ARE_ZERO
    mathematics.fesetenv(state)


def fresh_store(me: Identity, timeout_s: float) -> Any:
    """Return a store that holds nothing yet, at a port that rank 0 finds and tells in the one where all ranks have met."""
    meeting, limit = core.create_or_get_global_tcp_store(), max(1, int(timeout_s))
    host = dist.ParallelEnv().trainer_endpoints[0].rsplit(":", 1)[0]
    if me.rank > 0:
        return core.TCPStore(host, int(bytes(meeting.get("orch/port"))), False, me.world_size, limit)
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = int(probe.getsockname()[1])
    store = core.TCPStore(host, port, True, 1, limit)  # a world of one: the others come when they know the port
    meeting.set("orch/port", str(port).encode())
    return store


def join(asked: argparse.Namespace, me: Identity) -> str:
    """Take this rank's device, meet the other ranks; return the backend. Fleet refuses a world of one, which needs it not."""
    # Read when the process group is made; gloo has a limit of its own, 30 s.
    os.environ["PADDLE_PG_TIMEOUT"] = str(int(asked.timeout_s * 1000))
    if asked.device == "cpu":
        os.environ["PADDLE_DISTRI_BACKEND"] = "gloo"
        paddle.set_device("cpu")
        flush_subnormals()
    else:
        paddle.set_device(f"gpu:{dist.ParallelEnv().device_id}")
    if me.world_size > 1:
        strategy = fleet.DistributedStrategy()
        strategy.fuse_grad_size_in_MB = asked.bucket_cap_mb
        if asked.device == "cpu":
            # Every group of gloo tells its addresses under the same keys: 0, 1 … In one store, the quicker rank of fleet's
            # group would read its peer's address in the default group, where nobody listens any more.
            dist.init_parallel_env()
            _set_default_store(fresh_store(me, asked.timeout_s))
        fleet.init(is_collective=True, strategy=strategy)
    # The launcher's copy of its whole environment, secrets too; fleet has read it by now, and keeps it in memory.
    Path(os.environ.get("PADDLE_BACKUP_ENV_PATH", os.devnull)).write_text("{}")
    return {"cuda": "nccl", "cpu": "gloo"}[asked.device]


# --- one step -------------------------------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """What a step is made of."""

    model: Any
    optimizer: Any
    scaler: Any
    cast: Any
    """Makes the context of the forward pass."""


def parts(asked: argparse.Namespace, world_size: int) -> Parts:
    """Return the model, made alike on all ranks, with what trains it. A single rank has nobody to share with."""
    collective, auto = (asked.strategy == name and world_size > 1 for name in ("collective", "auto"))
    paddle.seed(asked.seed)
    model = MODELS[asked.model](num_classes=asked.num_classes)
    initialise(model)
    if auto:
        model = dist.shard_layer(model, mesh(), whole_on_every_rank)
    optimizer = paddle.optimizer.Momentum(
        asked.learning_rate, asked.momentum, parameters=model.parameters(), weight_decay=asked.weight_decay
    )
    half = HALF_TYPES.get(asked.dtype)
    if half and asked.amp_level == "O2":
        model, optimizer = paddle.amp.decorate(model, optimizer, level="O2", dtype=half)
    scaler = paddle.amp.GradScaler(init_loss_scaling=asked.loss_scale) if asked.dtype == "fp16" else None
    if scaler and not scaler.is_enable():
        scaler = None  # as on a CPU, where AMP has no effect: it warns, and all is computed in fp32
    if auto and scaler:
        scaler = dist.shard_scaler(scaler)
    if collective:
        model = fleet.distributed_model(model)
        optimizer = fleet.distributed_optimizer(optimizer)
    return Parts(model, optimizer, scaler, lambda: autocast(asked, half))


def autocast(asked: argparse.Namespace, half: Any) -> Any:
    """Return the context of one forward pass."""
    return paddle.amp.auto_cast(level=asked.amp_level, dtype=half) if half else nullcontext()


def initialise(model: nn.Layer) -> None:
    """Draw weights as the papers do, so that the loss stays a number: He for convolutions, small normal for the head."""
    for layer in model.sublayers():
        if isinstance(layer, nn.Conv2D):
            fan_out = layer.weight.shape[0] * layer.weight.shape[2] * layer.weight.shape[3]
            layer.weight.set_value(paddle.randn(layer.weight.shape) * (2.0 / fan_out) ** 0.5)
        elif isinstance(layer, nn.Linear):
            layer.weight.set_value(paddle.randn(layer.weight.shape) * 0.01)


def mesh() -> Any:
    """Return all ranks as one axis."""
    return dist.ProcessMesh(list(range(dist.get_world_size())), dim_names=["data"])


def whole_on_every_rank(_: str, layer: nn.Layer, where: Any) -> None:
    """Place a layer's weights and statistics on all ranks."""
    for name, parameter in layer._parameters.items():
        if parameter is not None:
            layer.add_parameter(name, dist.shard_tensor(parameter, where, [dist.Replicate()]))
    for name, buffer in layer._buffers.items():
        if buffer is not None:
            layer._buffers[name] = dist.shard_tensor(buffer, where, [dist.Replicate()])


def synthetic(asked: argparse.Namespace, me: Identity) -> Iterator[tuple[Any, Any]]:
    """Yield images and labels that never change, other ones on each rank."""
    paddle.seed(asked.seed + 1 + me.rank)
    images = paddle.randn([asked.batch_size, 3, asked.image_size, asked.image_size])
    labels = paddle.randint(0, asked.num_classes, [asked.batch_size, 1])
    return repeat((images, labels))


class Folder(paddle.io.Dataset):  # type: ignore[misc]
    """Image files as arrays of bytes, height x width x 3, by `Draw`."""

    def __init__(self, files: list[tuple[str, int]], size: int) -> None:
        super().__init__()
        self.files, self.size = files, size

    def __getitem__(self, draw: Any) -> tuple[Any, Any]:
        """Return pixels and label."""
        import loaders
        import numpy

        path, label = self.files[draw.index]
        pixels = numpy.frombuffer(loaders.decoded(path, self.size, draw.seed), numpy.uint8)
        return pixels.reshape(self.size, self.size, 3), numpy.array([label], numpy.int64)

    def __len__(self) -> int:
        """Return the number of files, which the endless sequence does not ask for."""
        return len(self.files)


class Endless(paddle.io.BatchSampler):  # type: ignore[misc]
    """The `Batches` of loaders.py; Paddle takes nothing but a sampler of its own kind."""

    def __init__(self, source: Any) -> None:
        self.source, self.batch_size = source, source.batch_size

    def __iter__(self) -> Iterator[Any]:
        """Yield lists of `Draw`s."""
        return iter(self.source)

    def __len__(self) -> int:
        """Return what stands for no end."""
        return sys.maxsize


def native(asked: argparse.Namespace, me: Identity) -> Iterator[tuple[Any, Any]]:
    """Yield batches of Paddle's own DataLoader, normalised on the device."""
    import loaders

    files = loaders.image_files(asked.data_dir, asked.num_classes)
    order = loaders.Batches(len(files), asked.batch_size, me.rank, me.world_size, asked.seed)
    source = paddle.io.DataLoader(Folder(files, asked.image_size), batch_sampler=Endless(order), num_workers=asked.workers)
    mean, deviation = (paddle.to_tensor(each).reshape([3, 1, 1]) for each in (loaders.MEAN, loaders.DEVIATION))
    for pixels, labels in source:
        yield (pixels.transpose([0, 3, 1, 2]).astype("float32") - mean) / deviation, labels


def dali(asked: argparse.Namespace, me: Identity) -> Iterator[tuple[Any, Any]]:
    """Yield batches of NVIDIA DALI."""
    import loaders

    loaders.image_files(asked.data_dir, asked.num_classes)  # says what is wrong with the folder in our words
    share = loaders.Share(asked.data_dir, asked.batch_size, asked.image_size, asked.workers, asked.seed, me.rank, me.world_size)
    device_id = dist.ParallelEnv().device_id if asked.device == "cuda" else None
    pipeline = loaders.dali_pipeline(share, asked.loader == "dali-gpu", device_id)
    if asked.loader == "dali-cpu":
        # Not through DALI's iterator for Paddle: that one wants a GPU even where nothing is on it.
        while True:
            images, labels = (paddle.to_tensor(made.as_array()) for made in pipeline.run())
            yield images, labels.astype("int64")
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.paddle import DALIGenericIterator

    source = DALIGenericIterator(
        [pipeline], ["images", "labels"], reader_name="reader", last_batch_policy=LastBatchPolicy.FILL, auto_reset=True
    )
    while True:
        for (batch,) in source:
            yield paddle.to_tensor(batch["images"]), paddle.to_tensor(batch["labels"]).astype("int64")


def batches(asked: argparse.Namespace, me: Identity) -> Iterator[tuple[Any, Any]]:
    """Yield this rank's images and labels, without end."""
    source = {"synthetic": synthetic, "native": native}.get(asked.loader, dali)(asked, me)
    if asked.strategy == "collective" or me.world_size == 1:
        return source
    from paddle.distributed.auto_parallel.api import dtensor_from_local

    whole, parts_of = mesh(), [dist.Shard(0)]
    return (tuple(dtensor_from_local(one, whole, parts_of) for one in pair) for pair in source)  # type: ignore[misc]


def unsharded(model: nn.Layer, images: Any) -> str:
    """Return the first kind of layer that makes whole copies of a sharded batch, or nothing: data parallelism ends there."""
    found: list[str] = []

    def look(layer: nn.Layer, _: Any, output: Any) -> None:
        if not output.placements[0].is_shard(0):
            found.append(type(layer).__name__)

    hooks = [layer.register_forward_post_hook(look) for layer in model.sublayers() if not list(layer.children())]
    with paddle.no_grad():
        model(images)
    for hook in hooks:
        hook.remove()
    return found[0] if found else ""


def take(asked: argparse.Namespace, whole: Parts, images: Any, labels: Any) -> tuple[Any, Any]:
    """Take one step; return its loss, on the device, and the type of the model's output."""
    with whole.cast():
        output = whole.model(images)
        # Without the last axis: of labels that have it, Paddle makes no one-hot ones to smooth.
        loss = nn.functional.cross_entropy(output, labels.squeeze(-1), label_smoothing=asked.label_smoothing)
    if whole.scaler is None:
        loss.backward()
        whole.optimizer.step()
    else:
        whole.scaler.scale(loss).backward()
        whole.scaler.step(whole.optimizer)
        whole.scaler.update()
    whole.optimizer.clear_grad()
    return loss.detach(), output.dtype


# --- time -----------------------------------------------------------------------------------------------------------------


class DeviceClock:
    """Time of steps on a GPU, by events, so that the queue of the device never runs empty for the sake of a line.

    Behind step k the host waits for step k-2. `t` is the host's clock at one synchronised moment plus the device's own
    time since then. The loss travels behind its step into pinned memory.
    """

    def __init__(self) -> None:
        self.queued: deque[tuple[int, Any, Any]] = deque()

    def start(self) -> float:
        """Wait until the device is idle; return the monotonic clock."""
        paddle.device.synchronize()
        self.last = self._event()
        self.last.synchronize()
        self.t = time.monotonic()
        return self.t

    def mark(self, number: int, loss: Any) -> list[Step]:
        """Note the end of a step, to come; return the steps that are over by now."""
        on_host = loss._copy_to(paddle.CUDAPinnedPlace(), False)
        self.queued.append((number, self._event(), on_host))
        return [self._oldest()] if len(self.queued) > 2 else []

    def rest(self) -> list[Step]:
        """Wait for the device; return the steps not yet returned."""
        return [self._oldest() for _ in range(len(self.queued))]

    def _event(self) -> Any:
        event = paddle.device.Event(enable_timing=True)
        event.record()
        return event

    def _oldest(self) -> Step:
        number, event, loss = self.queued.popleft()
        event.synchronize()
        seconds = self.last.elapsed_time(event) / 1000.0
        self.last, self.t = event, self.t + seconds
        return Step(number, self.t, seconds, float(loss))


# --- what is said ---------------------------------------------------------------------------------------------------------


def gather(facts: dict[str, Any], world_size: int) -> list[dict[str, Any]]:
    """Return what every rank says of itself, in order of rank."""
    if world_size == 1:
        return [facts]
    everyone: list[Any] = []
    dist.all_gather(everyone, paddle.to_tensor(trainer.packed(facts), dtype="int64"))
    return [trainer.unpacked(one.tolist()) for one in everyone]


def prove_world(me: Identity) -> None:
    """Add up all ranks. Raises RuntimeError where they are not exactly 0 … world_size-1."""
    total = paddle.to_tensor([me.rank, 1], dtype="int64")
    if me.world_size > 1:
        dist.all_reduce(total)
    trainer.check_ranks(total.tolist(), me.world_size, dist.get_world_size())


def memory_bytes(device: str) -> int:
    """Return the most memory this rank held: of the GPU's, or resident."""
    if device == "cuda":
        return int(paddle.device.cuda.max_memory_allocated())
    return trainer.resident_bytes()


def versions() -> dict[str, Any]:
    """Return the versions that may change the speed; None for what is not there."""
    asked = {name: str(getattr(paddle.version, name, lambda: "False")()) for name in ("cuda", "cudnn", "nccl")}
    found = {name: None if text in ("False", "0", "None") else text for name, text in asked.items()}
    return {"framework": "paddle", "framework_version": paddle.__version__, "python": platform.python_version(), **found}


# --- from top to bottom ---------------------------------------------------------------------------------------------------


def train(asked: argparse.Namespace, me: Identity) -> dict[str, Any]:
    """Take all steps, rank 0 printing them; return what was found out on the way."""
    whole = parts(asked, me.world_size)
    data = batches(asked, me)
    samples = asked.batch_size * me.world_size
    clock = DeviceClock() if asked.device == "cuda" else trainer.HostClock()
    if asked.strategy == "auto" and me.world_size > 1:
        layer = unsharded(whole.model, next(data)[0])
        if layer:
            raise SystemExit(
                f"--strategy: auto is refused: Paddle {paddle.__version__} has no placement rule for {layer} and would copy the"
                " whole global batch to every rank there, each computing all of it. take collective"
            )

    prove_world(me)  # also the barrier before the first step: from here on, all ranks are ready
    start = clock.start()
    if me.rank == 0:
        trainer.say_start(start)
    for number in range(1, asked.steps + 1):
        images, labels = next(data)
        loss, output_dtype = take(asked, whole, images, labels)
        finished = clock.mark(number, loss)
        if me.rank == 0:
            trainer.say_steps(finished, samples)
    finished = clock.rest()
    if me.rank == 0:
        trainer.say_steps(finished, samples)

    # Statistics of BatchNorm are parameters as well, in Paddle; they are not trained.
    parameters = sum(p.size for p in whole.model.parameters() if not p.stop_gradient)
    computed = str(output_dtype).split(".")[-1]
    return {
        "parameters": parameters,
        "gradient_bytes": parameters * (2 if asked.amp_level == "O2" and computed in HALF_TYPES.values() else 4),
        "optimizer": "momentum",
        "output_dtype": computed,
        "loss_scale": float(whole.scaler._scale) if whole.scaler else None,
    }


def main() -> None:
    """Join, train, prove, report."""
    asked = arguments()
    me = identity()
    backend = join(asked, me)
    name, host = device_name(asked.device), socket.gethostname()
    trainer.say_rank(*me, host, name)
    found = train(asked, me)
    prove_world(me)
    ranks = gather({"rank": me.rank, "host": host, "device": name, "memory_bytes": memory_bytes(asked.device)}, me.world_size)
    if me.rank == 0:
        found = {"backend": backend, **versions(), **found}
        trainer.say_done(trainer.closing(asked, ranks, found))


if __name__ == "__main__":
    # Paddle's own handler takes memory: a rank that was taking some itself when it was told to end would hang for ever.
    paddle.disable_signal_handler()
    faulthandler.enable()
    try:
        main()
    except Exception:
        trainer.leave_at_once()
