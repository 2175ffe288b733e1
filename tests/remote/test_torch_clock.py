"""Which steps are said to be those in which a GPU waits for its program.

No GPU is needed: events are those of a device that works off a queue, one kernel after the other,
beside a host with a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.remote.torch_in_process import neighbour
from tests.support.trainers import FLAT, module, needs

Kernels = Sequence[tuple[float, float]]
"""Seconds in which the host launches each kernel, and in which the device runs it."""


class Device:
    """A device that begins with a kernel when it is launched and those before it have ended.
    ``depth``: as many kernels may be queued before the host has to wait."""

    def __init__(self, depth: int = 1000) -> None:
        self.now, self.depth = 100.0, depth
        self.ends = [self.now]

    def launch(self, kernels: Kernels) -> None:
        """Launch kernels, waiting for room in the queue as the driver does."""
        for host_s, device_s in kernels:
            self.now += host_s
            if len(self.ends) > self.depth:
                self.now = max(self.now, self.ends[-self.depth])
            self.ends.append(max(self.now, self.ends[-1]) + device_s)

    def event(self, *, enable_timing: bool) -> Event:
        """Return a new event."""
        assert enable_timing
        return Event(self)


class Event:
    """A moment of the device, after all that was launched before it."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self) -> None:
        self.at = max(self.device.now, self.device.ends[-1])

    def query(self) -> bool:
        return self.at <= self.device.now

    def synchronize(self) -> None:
        self.device.now = max(self.device.now, self.at)

    def elapsed_time(self, end: Event) -> float:
        return 1000.0 * (end.at - self.at)


@pytest.fixture(name="torch_clock")
def _torch_clock() -> ModuleType:
    needs("torch")
    return module(FLAT / "torch_clock.py")


def clock_on(device: Device, torch_clock: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The clock of the trainers, started on a device."""
    torch = torch_clock.torch
    cuda = SimpleNamespace(Event=device.event, synchronize=lambda: None)
    zeros, ones = (
        (lambda size, pin_memory=False: torch.zeros(size)),
        (lambda size, pin_memory: torch.ones(size)),
    )
    monkeypatch.setattr(
        torch_clock,
        "torch",
        SimpleNamespace(cuda=cuda, Tensor=torch.Tensor, zeros=zeros, ones=ones),
    )
    times = SimpleNamespace(monotonic=lambda: device.now, perf_counter=lambda: device.now)
    monkeypatch.setattr(neighbour("trainer"), "time", times)
    clock = torch_clock.DeviceClock(20)
    clock.start()
    return clock


LAUNCHED = [(100e-6, 50e-6)] * 90
"""Kernels that end before the next one is launched."""
OUTPUT = [(100e-6, 1.5e-3)] * 2
"""The kernels of an output layer and its loss, during which the program is ahead."""
LARGE = [(100e-6, 300e-6)] * 90
GRAPH = [(50e-6, 10e-3)]

CASES: dict[str, tuple[Kernels, Kernels, bool, bool]] = {
    "launches": (LAUNCHED, [], False, True),
    "launches, then an output layer": ([*LAUNCHED, *OUTPUT], LAUNCHED, False, True),
    "launches behind another rank's all-reduce": (
        [*LAUNCHED, *OUTPUT],
        [(100e-6, 30e-3)],
        False,
        False,
    ),
    "large kernels": (LARGE, LARGE, False, False),
    "large kernels, and a wait for the GPU in each step": (LARGE, LARGE, True, False),
    "a replayed graph": (GRAPH, GRAPH, False, False),
    "a replayed graph, and a wait for the GPU in each step": (GRAPH, GRAPH, True, False),
}
"""Kernels of the forward pass and of the rest of a step, whether the program then waits for the
device, and whether the device waits for the program."""


@pytest.mark.parametrize(
    ("forward", "rest", "is_awaited", "waits"), CASES.values(), ids=CASES.keys()
)
def test_a_gpu_waits_for_its_program_where_launches_take_longer_than_kernels(
    forward: Kernels,
    rest: Kernels,
    is_awaited: bool,
    waits: bool,
    torch_clock: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Device()
    clock, steps = clock_on(device, torch_clock, monkeypatch), []
    for number in range(1, 17):
        clock.begin()
        device.launch(forward)
        clock.stamp("forward")
        device.launch(rest)
        if is_awaited:
            device.now = max(device.now, device.ends[-1])
        steps += clock.mark(number, torch_clock.torch.zeros(1)[0], 1.0)
    steps += clock.rest()
    assert [step.gpu_waits for step in steps[2:]] == [waits] * 14
    least = sum(device_s for _, device_s in forward)
    assert all(step.compute_s >= least - 1e-9 for step in steps)


def test_a_full_queue_in_which_the_program_waits_is_not_a_gpu_that_waits(
    torch_clock: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device(depth=100)
    clock, steps = clock_on(device, torch_clock, monkeypatch), []
    for number in range(1, 17):
        clock.begin()
        device.launch(LARGE)
        clock.stamp("forward")
        device.launch(LARGE * 2)
        steps += clock.mark(number, torch_clock.torch.zeros(1)[0], 1.0)
    steps += clock.rest()
    assert [step.gpu_waits for step in steps[2:]] == [False] * 14


def test_a_step_whose_forward_pass_is_not_stamped_tells_nothing(
    torch_clock: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device()
    clock = clock_on(device, torch_clock, monkeypatch)
    clock.begin()
    device.launch(GRAPH)
    clock.mark(1, torch_clock.torch.zeros(1)[0], 1.0)
    (step,) = clock.rest()
    assert (step.compute_s, step.gpu_waits) == (None, None)
