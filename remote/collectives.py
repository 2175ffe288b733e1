"""Time a collective over a range of sizes, and print one line per size: in place and out of place, each proven right first.

Needs PyTorch 1.13 or newer and Python 3.8 or newer; what it shares with its like is in trainer.py and torchranks.py beside this
file. One process per device, who reads from the environment who it is, as torchrun sets it:

    torchrun --standalone --nproc_per_node 8 collectives.py --collective allreduce --device cuda --dtype fp32

A line tells time and size and no bandwidth: bandwidths are computed from these. The method is that of nccl-tests: a barrier,
some calls that are not timed, then many between two marks; a rank's time is the mean of its calls, `time_s` the mean of all
ranks (its default, `-a 1`), `max_time_s` that of the slowest. Sizes are total bytes, for all_gather of what is gathered and for
reduce_scatter of what is scattered, rounded so that each rank has whole multiples of 16 bytes.

In place is what trainers call. torch.distributed has no all-reduce and no broadcast from one buffer to another; on a GPU these
go to NCCL itself, over a communicator of their own. Where a form does not exist, that is said and the others are measured.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import time
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import torch
import torch.distributed as dist
import trainer
from torchranks import claim, identity, join, leave_after, memory_bytes, prove_world
from trainer import Identity

TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
COLLECTIVES = ("allreduce", "reduce_scatter", "all_gather", "broadcast")
FORMS = {"both": (0, 1), "out": (0,), "in": (1,)}
ALIGNED_BYTES = 16
TILE = 1 << 20
"""Elements that are filled and compared at once, about."""
SPARE_BYTES = 1 << 30
"""Of a device's memory, for NCCL's buffers and ours."""


class Case(NamedTuple):
    """A collective of one size: its whole buffer and what each rank has of it, in elements; whether it is in place."""

    collective: str
    count: int
    share: int
    in_place: bool


# --- what is asked for ----------------------------------------------------------------------------------------------------


def arguments() -> argparse.Namespace:
    """Return the command line, checked."""
    parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--collective", choices=COLLECTIVES, default="allreduce")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--dtype", choices=sorted(TYPES), default="fp32")
    parser.add_argument("--min-bytes", type=int, default=1 << 10, help="smallest size")
    parser.add_argument("--max-bytes", type=int, default=4 << 30, help="largest size")
    parser.add_argument("--factor", type=int, default=2, help="from one size to the next")
    parser.add_argument("--sizes", default="", help="sizes in bytes instead, with commas")
    parser.add_argument("--in-place", choices=sorted(FORMS), default="both")
    parser.add_argument("--steps", type=int, default=25, help="calls of each size, warm-up included")
    parser.add_argument("--warmup-steps", type=int, default=5, help="calls that are not timed")
    parser.add_argument(
        "--size-seconds", type=float, default=4.0, help="where a size takes longer, fewer calls are made, at least 2"
    )
    parser.add_argument("--backend", choices=["auto", "nccl", "gloo"], default="auto", help="auto: nccl on cuda, gloo on cpu")
    parser.add_argument("--threads", type=int, default=1, help="threads of one rank on cpu")
    parser.add_argument("--timeout-s", type=float, default=120.0, help="longest wait for other ranks")
    return trainer.parsed(parser, unusable)


def unusable(asked: argparse.Namespace) -> str:
    """Return why these arguments cannot be run, or nothing."""
    if not all(word.isdigit() and int(word) for word in asked.sizes.split(",") if asked.sizes):
        return f"--sizes: expected whole numbers of bytes with commas, got {asked.sizes}"
    if not 0 < asked.min_bytes <= asked.max_bytes:
        return f"--min-bytes: expected 1 to {asked.max_bytes}, got {asked.min_bytes}"
    if asked.factor < 2:
        return f"--factor: expected 2 or more, got {asked.factor}"
    if not 0 <= asked.warmup_steps < asked.steps:
        return f"--warmup-steps: expected less than the {asked.steps} steps, got {asked.warmup_steps}"
    if asked.size_seconds <= 0 or asked.timeout_s <= 0:
        return "--size-seconds, --timeout-s: expected more than 0"
    if asked.device == "cuda" and not torch.cuda.is_available():
        return f"--device: expected a usable GPU, PyTorch {torch.__version__} finds none"
    if asked.device == "cpu" and asked.backend == "nccl":
        return "--backend: expected gloo on cpu, got nccl"
    return ""


def wanted_sizes(asked: argparse.Namespace) -> list[int]:
    """Return the sizes asked for, in bytes."""
    if asked.sizes:
        return [int(word) for word in asked.sizes.split(",")]
    sizes = [asked.min_bytes]
    while sizes[-1] * asked.factor <= asked.max_bytes:
        sizes.append(sizes[-1] * asked.factor)
    return sizes


def rounded(collective: str, size_bytes: int, item_bytes: int, ranks: int) -> tuple[int, int]:
    """Return the elements of the whole, and of one rank's share of it, for a size: 16 bytes at least, and multiples of them."""
    aligned = ALIGNED_BYTES // item_bytes
    parts = ranks if collective in ("reduce_scatter", "all_gather") else 1
    share = max(aligned, size_bytes // item_bytes // parts // aligned * aligned)
    return share * parts, share


def free_bytes(device: torch.device) -> int:
    """Return the memory that this rank may take."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    with open("/proc/meminfo") as lines:
        available = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable"))
    return available // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))


# --- values, and how a result is proven -----------------------------------------------------------------------------------


class Values:
    """What each rank puts into a buffer, and what has to come out: whole numbers that every type holds exactly.

    Element i of rank r is (i + r) mod m. With so small an m no sum of all ranks is above 256, up to which bfloat16 has every
    whole number; beyond 256 ranks the others put in zeros.
    """

    def __init__(self, ranks: int, dtype: torch.dtype, device: torch.device) -> None:
        self.ranks, self.dtype, self.device = ranks, dtype, device
        self.givers = min(ranks, 256)
        self.modulus = min(97, 256 // self.givers + 1)

    def _tile(self, ranks: Sequence[int], start: int) -> torch.Tensor:
        """Return the sum over some ranks for the elements from ``start`` on, as many as are handled at once."""
        index = torch.arange(TILE // self.modulus * self.modulus, device=self.device) + start
        table = [
            sum((residue + rank) % self.modulus for rank in ranks if rank < self.givers) for residue in range(self.modulus)
        ]
        return torch.tensor(table, dtype=self.dtype, device=self.device)[index % self.modulus]

    def fill(self, buffer: torch.Tensor, rank: int) -> None:
        """Put a rank's own values into a buffer."""
        tile = self._tile([rank], 0)
        for start in range(0, len(buffer), len(tile)):
            part = buffer[start : start + len(tile)]
            part.copy_(tile[: len(part)])

    def check(self, buffer: torch.Tensor, ranks: Sequence[int], start: int, what: str) -> None:
        """Raise RuntimeError where a buffer is not the sum of these ranks' values from element ``start`` on."""
        tile = self._tile(ranks, start)
        for place in range(0, len(buffer), len(tile)):
            part = buffer[place : place + len(tile)]
            right = part == tile[: len(part)]
            if not bool(right.all()):
                at = int((~right).nonzero()[0])
                got, expected = float(part[at]), float(tile[at])
                raise RuntimeError(f"wrong result: {what}: element {place + at}: expected {expected:g}, got {got:g}")


# --- the collectives ------------------------------------------------------------------------------------------------------


class Library:
    """NCCL itself, as PyTorch has loaded it, for what torch.distributed cannot ask of it. Declarations: nccl.h, since 2.2."""

    _TYPES = {torch.float32: 7, torch.float16: 6, torch.bfloat16: 9}
    _SUM = 0

    class _Id(ctypes.Structure):
        _fields_ = [("internal", ctypes.c_byte * 128)]

    def __init__(self, me: Identity, device: torch.device) -> None:
        self.library = self._loaded()
        mine = self._Id()
        if me.rank == 0:
            self._call("ncclGetUniqueId", ctypes.byref(mine))
        shared = torch.tensor(list(bytes(mine)), dtype=torch.uint8, device=device)
        dist.broadcast(shared, 0)
        ctypes.memmove(ctypes.byref(mine), bytes(shared.tolist()), 128)
        self.communicator = ctypes.c_void_p()
        self._call("ncclCommInitRank", ctypes.byref(self.communicator), me.world_size, mine, me.rank)

    @staticmethod
    def _loaded() -> Any:
        """Return the library that this process has mapped already; raises OSError where NCCL is linked into PyTorch."""
        with open("/proc/self/maps") as lines:
            paths = sorted({line.rstrip("\n").split(None, 5)[-1] for line in lines if "libnccl.so" in line})
        return ctypes.CDLL(paths[0] if paths else "libnccl.so.2")

    def _call(self, name: str, *values: Any) -> None:
        code = getattr(self.library, name)(*values)
        if code:
            raise RuntimeError(f"{name}: NCCL returned {code}")

    def _buffers(self, send: torch.Tensor, receive: torch.Tensor) -> tuple[Any, ...]:
        counts = (ctypes.c_size_t(send.numel()), self._TYPES[send.dtype])
        return (ctypes.c_void_p(send.data_ptr()), ctypes.c_void_p(receive.data_ptr()), *counts)

    def _stream(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def allreduce(self, send: torch.Tensor, receive: torch.Tensor) -> None:
        """Sum over all ranks, into another buffer, in the order of the current stream."""
        self._call("ncclAllReduce", *self._buffers(send, receive), self._SUM, self.communicator, self._stream())

    def broadcast(self, send: torch.Tensor, receive: torch.Tensor) -> None:
        """Copy rank 0's buffer into another one of every rank, in the order of the current stream."""
        self._call("ncclBroadcast", *self._buffers(send, receive), 0, self.communicator, self._stream())


class Bench:
    """Buffers of the largest size, and all that is done with them."""

    def __init__(self, asked: argparse.Namespace, me: Identity, device: torch.device, backend: str) -> None:
        self.asked, self.me, self.device, self.backend = asked, me, device, backend
        self.dtype = TYPES[asked.dtype]
        self.values = Values(me.world_size, self.dtype, device)
        self.library: Any = None

    def allocate(self, count: int) -> None:
        """Take the memory of both buffers, of so many elements each."""
        self.send, self.receive = (torch.empty(count, dtype=self.dtype, device=self.device) for _ in range(2))

    def open_library(self) -> None:
        """Meet the other ranks in NCCL itself; raises where that is not to be had on all of them."""
        if self.backend != "nccl":
            raise RuntimeError(f"{self.backend} has no call from one buffer to another")
        self.library = Library(self.me, self.device)

    def call(self, case: Case) -> Callable[[], Any]:
        """Return what makes one call, its buffers at hand."""
        send, receive, share, rank = self.send[: case.count], self.receive[: case.count], case.share, self.me.rank
        if case.collective in ("allreduce", "broadcast"):
            if not case.in_place:
                if self.library is None:
                    self.open_library()
                ours = getattr(self.library, case.collective)
                return lambda: ours(send, receive)
            if case.collective == "allreduce":
                return lambda: dist.all_reduce(receive)
            return lambda: dist.broadcast(receive, 0)
        own = receive[rank * share : (rank + 1) * share]
        if case.collective == "all_gather":
            source = own if case.in_place else send[:share]
            return lambda: dist.all_gather_into_tensor(receive, source)
        if case.in_place:
            return lambda: dist.reduce_scatter_tensor(own, receive)
        return lambda: dist.reduce_scatter_tensor(receive[:share], send)

    def prove(self, case: Case, call: Callable[[], Any]) -> None:
        """Make one call on known values. Raises RuntimeError where the result is not what it must be."""
        rank, share, ranks = self.me.rank, case.share, range(self.me.world_size)
        whole = self.receive[: case.count]
        whole.fill_(-1)
        own = whole[rank * share : (rank + 1) * share]
        source = whole if case.in_place else self.send[: case.count]
        if case.collective == "all_gather":
            source = own if case.in_place else self.send[:share]
        if case.collective != "broadcast" or rank == 0:
            self.values.fill(source, rank)
        call()
        self.settle()
        what = f"{case.collective}, {case.count * whole.element_size()} bytes, in_place={int(case.in_place)}, rank {rank}"
        if case.collective == "allreduce":
            self.values.check(whole, ranks, 0, what)
        elif case.collective == "broadcast":
            self.values.check(whole, [0], 0, what)
        elif case.collective == "reduce_scatter":
            self.values.check(own if case.in_place else whole[:share], ranks, rank * share, what)
        else:
            for other in ranks:
                self.values.check(whole[other * share : (other + 1) * share], [other], 0, f"{what}, part {other}")

    def settle(self) -> None:
        """Wait until the device is idle."""
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def all_ranks(self, value: float, how: str = "max") -> float:
        """Return the largest, the least or the sum of a number over all ranks; it is a barrier as well."""
        number = torch.tensor([value], dtype=torch.float64, device=self.device)
        operations: Any = dist.ReduceOp
        dist.all_reduce(number, {"max": operations.MAX, "min": operations.MIN, "sum": operations.SUM}[how])
        return float(number)

    def seconds(self, call: Callable[[], Any], times: int) -> float:
        """Return the seconds of so many calls, one after the other, on this rank."""
        self.all_ranks(0.0)
        self.settle()
        if self.device.type == "cpu":
            start = time.perf_counter()
            for _ in range(times):
                call()
            return time.perf_counter() - start
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(times):
            call()
        last.record()
        last.synchronize()
        return float(first.elapsed_time(last)) / 1000.0

    def measure(self, case: Case, call: Callable[[], Any]) -> tuple[int, float, float]:
        """Return how many calls were timed, and the mean seconds of one: of all ranks, and of the slowest."""
        asked = self.asked
        once = max(self.all_ranks(self.seconds(call, 1)), 1e-9)
        iterations = max(2, min(asked.steps - asked.warmup_steps, int(asked.size_seconds / once)))
        # The call that proves and the one above are warm-up as well.
        self.seconds(call, max(0, min(asked.warmup_steps - 2, int(asked.size_seconds / once / 4))))
        mine = self.seconds(call, iterations) / iterations
        return iterations, self.all_ranks(mine, "sum") / self.me.world_size, self.all_ranks(mine)


# --- from top to bottom ---------------------------------------------------------------------------------------------------


def usable(bench: Bench, collective: str, in_place: bool) -> str:
    """Return why a form cannot be measured, or nothing. The smallest size is tried."""
    count, share = rounded(collective, 1, bench.send.element_size(), bench.me.world_size)
    why = ""
    try:
        bench.call(Case(collective, count, share, in_place))()
        bench.settle()
    except (RuntimeError, ValueError, NotImplementedError, AttributeError, OSError) as error:
        why = str(error).strip().partition("\n")[0][:200] or type(error).__name__
    elsewhere = bench.all_ranks(float(bool(why)))
    return why or "not on every rank" * bool(elsewhere)


def run(asked: argparse.Namespace, me: Identity, device: torch.device, backend: str) -> dict[str, Any]:
    """Measure every size in every form, rank 0 printing; return what was found out on the way."""
    bench = Bench(asked, me, device, backend)
    item = torch.empty(0, dtype=bench.dtype).element_size()
    room = int(bench.all_ranks(float(free_bytes(device)), "min")) - SPARE_BYTES
    shapes = list(dict.fromkeys(rounded(asked.collective, size, item, me.world_size) for size in wanted_sizes(asked)))
    fitting = [shape for shape in shapes if 2 * shape[0] * item <= room]
    left_out = [shape[0] * item for shape in shapes if shape not in fitting]
    if not fitting:
        raise SystemExit(f"memory: expected room for two buffers of {shapes[0][0] * item} bytes, {max(0, room)} bytes are left")
    bench.allocate(max(count for count, _ in fitting))
    unsupported = {}
    for in_place in FORMS[asked.in_place]:
        why = usable(bench, asked.collective, bool(in_place))
        if why:
            unsupported[in_place] = why
    for count, share in fitting:
        for in_place in FORMS[asked.in_place]:
            if in_place in unsupported:
                continue
            case = Case(asked.collective, count, share, bool(in_place))
            call = bench.call(case)
            bench.prove(case, call)
            iterations, mean, slowest = bench.measure(case, call)
            if me.rank == 0:
                trainer.say(
                    f"collective={asked.collective} size_bytes={count * item} in_place={in_place}"
                    f" iterations={iterations} time_s={mean:.9f} max_time_s={slowest:.9f}"
                )
    return {
        "sizes_bytes": [count * item for count, _ in fitting],
        "left_out_bytes": left_out,
        "unsupported": [{"in_place": in_place, "why": why} for in_place, why in unsupported.items()],
        "remarks": remarks(unsupported, left_out, room),
    }


def remarks(unsupported: Mapping[int, str], left_out: Sequence[int], room: int) -> list[str]:
    """Return in words what was not measured, and why."""
    names = ("out of place", "in place")
    found = [f"{names[in_place]} was not measured: {why}" for in_place, why in unsupported.items()]
    if left_out:
        sizes = f"{min(left_out)} bytes and more were left out"
        found.append(f"{sizes}: two buffers have to fit into {room} bytes, what the fullest device had free less {SPARE_BYTES}")
    return found


def main() -> None:
    """Join, measure, prove, report."""
    asked = arguments()
    me = identity()
    device = claim(asked, me.local_rank)
    world = join(asked, me, device)
    prove_world(me, device)
    found = run(asked, me, device, world.backend)
    prove_world(me, device)
    world.report(asked, {"memory_bytes": memory_bytes(device)}, {"model": asked.collective, **found})


if __name__ == "__main__":
    leave_after(main)
