"""Writers of logs in the formats of the published systems, each made so that its published rule
finds a given speed.

They write what real logs hold besides: a slow start, chatter, interleaved ranks, colours, progress
bars. Where a format has a clock of milliseconds the writer searches the window that gives the
speed, and fails where no such window exists; a published speed that is found proves the rule.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import datetime, timedelta

from orchestrator.features.published.run_size import Case

NOISE = "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0\n"


def tensorflow(
    speed: float,
    case: Case,
    start: datetime = datetime(2020, 8, 23, 15, 4, 5, 123456),
    first_speed: float = 0.0,
) -> bytes:
    """Write five lines of 100 steps each that count; ``first_speed``: another speed of the first."""
    moment = start + timedelta(seconds=98.31)
    lines = [NOISE, _time_history(moment, 98.31, case.global_batch * 100 / 98.31, 0)]
    for first in range(100, 600, 100):
        own_speed = first_speed if first_speed and first == 100 else speed
        seconds = case.global_batch * 100 / own_speed
        moment += timedelta(seconds=seconds)
        lines.append(_time_history(moment, seconds, own_speed, first))
    return "".join([*lines, ">>>Finished Test Case 1!<<<\n"]).encode()


def _time_history(moment: datetime, seconds: float, speed: float, first: int) -> str:
    return (
        f"I{moment:%m%d %H:%M:%S.%f} 140213456789248 keras_utils.py:145] TimeHistory: {seconds:.2f} seconds, "
        f"{speed:.2f} examples/second between steps {first} and {first + 100}\n"
    )


def paddle(speed: float, case: Case, prefix: str = "clock") -> bytes:
    """Write 120 batches, those after batch 20 as even as milliseconds allow. ``prefix``: clock,
    module or nothing.
    """
    window_ms = _window(speed, case.global_batch, 99)
    start = datetime(2020, 8, 22, 21, 10, 29, 902000)
    ends = [9812 + 391 * batch for batch in range(21)]
    ends += [ends[20] + round(window_ms * (batch - 20) / 99) for batch in range(21, 120)]
    lines = [NOISE, "+ python3 -m paddle.distributed.launch train.py\n"]
    for batch, end in enumerate(ends):
        elapse = (end - ends[batch - 1] if batch else end) / 1000
        moment = start + timedelta(milliseconds=end)
        stamp = f"{moment:%Y-%m-%d %H:%M:%S},{moment.microsecond // 1000:03d}"
        before = {"clock": f"{stamp}-INFO: ", "module": "INFO:train:", "nothing": ""}[prefix]
        lines.append(
            f"{before}[Pass 0, train batch {batch}] \tloss 6.99871, acc1 0.00195, acc5 0.00684, lr 0.00341, "
            f"elapse {elapse:2.4f} sec\n"
        )
    return "".join(lines).encode()


def oneflow(speed: float, case: Case) -> bytes:
    start, iteration = 1597933942.9863544, case.global_batch / speed
    lines = ["model = resnet50\n", f"batch_size_per_device = {case.batch_size}\n"]
    lines += [f"gpu_num_per_node = {case.gpus}\n", f"num_nodes = {case.nodes}\n"]
    for step in range(20, 140, 20):
        moment = start + (step - 20) * iteration
        lines.append(
            f"train: epoch 0, iter {step}, loss: 7.104512, top_1: 0.000000, top_k: 0.000000, "
            f"samples/s: {speed * 0.97:.3f} {moment!r}\n"
        )
        lines.append("| 0  Tesla V100-SXM2   On | 00000000:00:1E.0 Off |\n")
    return "".join(lines).encode()


def pytorch(speed: float, case: Case, images: int = 1281167) -> bytes:
    """Write one node's ranks, interleaved in any order, stopped by hand a little after the window."""
    shuffled = random.Random(int(speed))
    window_ms = _window(speed, case.global_batch, 100)
    length = images // case.global_batch
    lines = [NOISE * case.gpus, "Use GPU: 6 for training\n", "=> creating model 'resnet50'\n"]
    early = sorted(
        ((step, rank) for step in range(6) for rank in range(case.gpus)),
        key=lambda _: shuffled.random(),
    )
    times = [
        (step, rank, 12054 if step == 0 else 575)
        for step, rank in sorted(early, key=lambda item: item[0])
    ]
    counted = [(step, rank) for step in range(6, length + 1) for rank in range(case.gpus)][:140]
    for number, (step, rank) in enumerate(counted, start=1):
        inside = 20 < number <= 120
        times.append((step, rank, _share(window_ms, 100, number - 21) if inside else 900))
    so_far = [0] * case.gpus
    for step, rank, time_ms in times:
        so_far[rank] += time_ms
        lines.append(iteration(step, length, time_ms, so_far[rank] / (step + 1)))
    return "".join(lines).encode()


def iteration(step: int, length: int, time_ms: int, mean_ms: float) -> str:
    width, time, mean = len(str(length)), time_ms / 1000, mean_ms / 1000
    return (
        f"Epoch: [0][{step:{width}d}/{length}]\tTime {time:6.3f} ({mean:6.3f})\tData  0.001 ( 0.001)"
        f"\tLoss 6.9828e+00 (6.9828e+00)\tAcc@1   0.78 (  0.78)\tAcc@5   1.56 (  1.56)\n"
    )


def fleetx(speed: float, case: Case) -> bytes:
    step_s = case.global_batch / speed
    lines = [
        "INFO 2020-10-20 14:02:11,532 launch.py:434] Run collective gpu mode. gpu arguments:['gpus'], cuda count:8\n"
    ]
    for step in range(11, 131):
        total = 0.0123 + (step - 10) * step_s
        lines.append(
            f"epoch id: 0, step{step}, train_loss: 6.951232, total time cost = {total:.6f}, "
            f"step per second: {(step - 10) / total:.6f}, speed: {1 / step_s:.6f}\n"
        )
    return "".join(lines).encode()


def tensorpack(speed: float, case: Case) -> bytes:
    lines = []
    for epoch in range(1, 11):
        bar = "".join(
            f"{done * 2:3d}%|{'#' * done:<50}|{done}/50[00:0{done // 8}<00:00, 5.56it/s]\r"
            for done in range(0, 51, 5)
        )
        prefix = "\x1b[32m[0823 15:04:05 @{}]\x1b[0m "
        value = speed if epoch > 1 else speed / 3
        seconds = case.global_batch * 50 / value
        lines.append(
            bar
            + "\n"
            + prefix.format("base.py:282")
            + f"Epoch {epoch} (global_step {epoch * 50}) finished, time:{seconds:.2f} seconds.\n"
        )
        lines.append(prefix.format("monitor.py:476") + "GPUUtil/0: 98.2\n")
        lines.append(prefix.format("monitor.py:476") + f"Throughput (samples/sec): {value:.5g}\n")
    return "".join(lines).encode()


def tf_cnn(speed: float, case: Case) -> bytes:
    lines = ["Done warm up\n", "Step\tImg/sec\ttotal_loss\n"]
    lines += [
        f"{step}\timages/sec: {speed:.1f} +/- 0.6 (jitter = 4.9)\t7.981\n"
        for step in (1, *range(10, 101, 10))
    ]
    return "".join([*lines, "-" * 64 + "\n", f"total images/sec: {speed:.2f}\n"]).encode()


WRITERS: dict[str, Callable[[float, Case], bytes]] = {
    "tensorflow_official": tensorflow,
    "paddle_models": paddle,
    "oneflow": oneflow,
    "pytorch_examples": pytorch,
    "fleetx": fleetx,
    "tensorpack": tensorpack,
    "tf_cnn_benchmarks": tf_cnn,
}


def _window(speed: float, global_batch: int, steps: int) -> int:
    """Return the milliseconds of ``steps`` steps from which the published arithmetic makes
    ``speed``.
    """
    near = round(steps * global_batch * 1000 / speed)
    for window_ms in sorted(range(near - 3, near + 4), key=lambda ms: abs(ms - near)):
        if round(global_batch / (window_ms / 1000 / steps), 2) == speed:
            return window_ms
    raise ValueError(f"no window of whole milliseconds gives {speed} samples/s")


def pytorch_runs(speed: float, case: Case) -> list[float]:
    """Return speeds of runs whose median is printed as ``speed``: itself, or two others where no
    single log has it.
    """
    near = round(100 * case.global_batch * 1000 / speed)
    possible = [
        round(case.global_batch / (ms / 1000 / 100), 2) for ms in range(near - 400, near + 401)
    ]
    if speed in possible:
        return [speed]
    pairs = [
        (possible[400 - apart], possible[400 + apart + shift])
        for apart in range(399)
        for shift in (0, 1)
    ]
    return next([slow, fast] for fast, slow in pairs if abs((slow + fast) / 2 - speed) <= 0.004)


def _share(total: int, parts: int, index: int) -> int:
    return total * (index + 1) // parts - total * index // parts
