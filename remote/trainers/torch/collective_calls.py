"""The collectives that collectives.py times: their buffers, the call of each form, and the
verification of results.

PyTorch 1.13 or newer, Python 3.8 or newer. Sizes are total bytes: for all_gather of the gathered
buffer, for reduce_scatter of the scattered one, for all_to_all of the data that a rank sends to all
ranks, itself included. They are rounded so that each rank has a multiple of 16 bytes. In send_recv
every rank sends to the next one and receives from the previous one at the same time.

The ranks may be divided into groups, which make the same call at once. Sizes and shares then refer
to one group.

Trainers use the in-place form. torch.distributed has no all-reduce and no broadcast from one buffer
to another; on a GPU these two call NCCL directly, over a separate communicator.
"""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any, Callable, Iterable, NamedTuple, Sequence

import torch
import torch.distributed as dist
from known_values import check, fill
from torch.distributed import P2POp
from torch_ranks import World, settle
from trainer import Identity

COLLECTIVES = ("allreduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "send_recv")
SUMS = ("allreduce", "reduce_scatter")
IN_PARTS = ("reduce_scatter", "all_gather", "all_to_all")
"""Those whose buffer consists of one part for each rank."""
TWO_BUFFERS = ("all_to_all", "send_recv")
"""Those without an in-place form, as in nccl-tests."""
ALIGNED_BYTES = 16


class Group(NamedTuple):
    """The ranks that make a call together, in order, and the place of this one among them;
    ``handle`` is None for all ranks.
    """

    ranks: Sequence[int]
    place: int
    handle: Any = None


def groups_of(world_size: int, ranks: int, distance: int) -> list[list[int]]:
    """Return the groups of ``ranks`` each that are ``distance`` apart, which together are all
    ranks; one group for 0 ranks.

    >>> groups_of(8, 2, 4), groups_of(8, 4, 1)
    ([[0, 4], [1, 5], [2, 6], [3, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]])
    """
    if not ranks:
        return [list(range(world_size))]
    block = ranks * distance
    return [
        list(range(first, first + block, distance))
        for start in range(0, world_size, block)
        for first in range(start, start + distance)
    ]


class Case(NamedTuple):
    """A collective of one size: elements of the whole buffer and of each rank's share, and whether
    it is in place.
    """

    collective: str
    count: int
    share: int
    in_place: bool


def round_size(collective: str, size_bytes: int, item_bytes: int, ranks: int) -> tuple[int, int]:
    """Return the elements of the whole buffer and of one rank's share for a size: multiples of 16
    bytes, at least 16.
    """
    aligned = ALIGNED_BYTES // item_bytes
    parts = ranks if collective in IN_PARTS else 1
    share = max(aligned, size_bytes // item_bytes // parts // aligned * aligned)
    return share * parts, share


# --- values, and the verification of results ------------------------------------------------------


class Values:
    """The values that each rank puts into a buffer, and the expected results: integers that every
    type represents exactly.

    Element i of rank r is (i + r) mod m. bfloat16 represents every integer up to 256, so m is 251.
    For a collective that adds up, m is so small that no sum over all ranks exceeds 256; with more
    than 256 ranks the others contribute zeros.
    """

    def __init__(self, collective: str, ranks: int) -> None:
        self.givers = min(ranks, 256) if collective in SUMS else ranks
        self.modulus = min(97, 256 // self.givers + 1) if collective in SUMS else 251

    def of(self, ranks: Iterable[int]) -> list[int]:
        """Return the table of the sum of some ranks' values."""
        givers = [rank for rank in ranks if rank < self.givers]
        return [
            sum((residue + rank) % self.modulus for rank in givers)
            for residue in range(self.modulus)
        ]


# --- the collectives ------------------------------------------------------------------------------


class Library:
    """NCCL as loaded by PyTorch, for calls that torch.distributed does not offer. Declarations:
    nccl.h, since 2.2.
    """

    _TYPES = {torch.float32: 7, torch.float16: 6, torch.bfloat16: 9}
    _SUM = 0

    class _Id(ctypes.Structure):
        _fields_ = [("internal", ctypes.c_byte * 128)]

    def __init__(self, me: Identity, device: torch.device) -> None:
        self.library = self._find_library()
        unique_id = self._Id()
        if me.rank == 0:
            self._call("ncclGetUniqueId", ctypes.byref(unique_id))
        shared = torch.tensor(list(bytes(unique_id)), dtype=torch.uint8, device=device)
        dist.broadcast(shared, 0)
        ctypes.memmove(ctypes.byref(unique_id), bytes(shared.tolist()), 128)
        self.communicator = ctypes.c_void_p()
        self._call(
            "ncclCommInitRank", ctypes.byref(self.communicator), me.world_size, unique_id, me.rank
        )

    @staticmethod
    def _find_library() -> Any:
        """Return the library that this process has already loaded; raises OSError if NCCL is linked
        into PyTorch.
        """
        with open("/proc/self/maps") as lines:
            paths = sorted(
                {line.rstrip("\n").split(None, 5)[-1] for line in lines if "libnccl.so" in line}
            )
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
        """Sum over all ranks into another buffer, ordered by the current stream."""
        self._call(
            "ncclAllReduce",
            *self._buffers(send, receive),
            self._SUM,
            self.communicator,
            self._stream(),
        )

    def broadcast(self, send: torch.Tensor, receive: torch.Tensor) -> None:
        """Copy rank 0's buffer into another buffer on every rank, ordered by the current stream."""
        self._call(
            "ncclBroadcast", *self._buffers(send, receive), 0, self.communicator, self._stream()
        )


class Calls:
    """Two buffers of ``count`` elements each, and the collectives on them, of the ranks of a group."""

    def __init__(
        self, world: World, group: Group, collective: str, dtype: torch.dtype, count: int
    ) -> None:
        self.me, self.group, self.device, self.backend = (
            world.me,
            group,
            world.device,
            world.backend,
        )
        self.send, self.receive = (
            torch.empty(count, dtype=dtype, device=world.device) for _ in range(2)
        )
        self.values = Values(collective, len(group.ranks))
        self.library: Any = None

    def open_library(self) -> None:
        """Meet the other ranks in NCCL; raises if that is not possible on all of them."""
        if self.backend != "nccl":
            raise RuntimeError(f"{self.backend} has no call from one buffer to another")
        if self.group.handle is not None:
            raise RuntimeError(
                "a call from one buffer to another is made by all ranks, not by groups of them"
            )
        self.library = Library(self.me, self.device)

    def call(self, case: Case) -> Callable[[], Any]:
        """Return a function that makes one call, with its buffers prepared."""
        whole, part, source = self._views(case)
        handle = self.group.handle
        if case.in_place and case.collective in TWO_BUFFERS:
            raise ValueError(f"{case.collective} is from one buffer to another")
        if case.collective in ("allreduce", "broadcast") and not case.in_place:
            if self.library is None:
                self.open_library()
            return partial(getattr(self.library, case.collective), source, whole)
        if case.collective == "allreduce":
            return lambda: dist.all_reduce(whole, group=handle)
        if case.collective == "broadcast":
            return lambda: dist.broadcast(whole, self.group.ranks[0], group=handle)
        if case.collective == "all_to_all":
            return lambda: dist.all_to_all_single(whole, source, group=handle)
        if case.collective == "send_recv":
            return self._ring(source, whole)
        if case.collective == "all_gather":
            return lambda: dist.all_gather_into_tensor(whole, source, group=handle)
        return lambda: dist.reduce_scatter_tensor(part, source, group=handle)

    def _views(self, case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the whole output of a call, this rank's share of it, and this rank's input."""
        whole, start = self.receive[: case.count], self.group.place * case.share
        own = whole[start : start + case.share]
        if case.collective == "all_gather":
            return whole, own, own if case.in_place else self.send[: case.share]
        if case.in_place:
            return whole, own, whole
        return whole, whole[: case.share], self.send[: case.count]

    def _ring(self, send: torch.Tensor, receive: torch.Tensor) -> Callable[[], Any]:
        """Return a function that sends to the next rank and receives from the previous one, both at
        once.
        """
        ranks, place, handle = self.group.ranks, self.group.place, self.group.handle
        following, previous = ranks[(place + 1) % len(ranks)], ranks[place - 1]
        both = [
            P2POp(dist.isend, send, following, handle),
            P2POp(dist.irecv, receive, previous, handle),
        ]

        def call() -> None:
            for work in dist.batch_isend_irecv(both):
                work.wait()

        return call

    def prove(self, case: Case, call: Callable[[], Any]) -> None:
        """Make one call on known values. Raises RuntimeError if the result is wrong."""
        rank, share, values = self.group.place, case.share, self.values
        ranks = range(len(self.group.ranks))
        whole, part, source = self._views(case)
        whole.fill_(-1)
        if case.collective != "broadcast" or rank == 0:
            fill(source, values.of([rank]))
        call()
        settle(self.device)
        label = (
            f"{case.collective}, {case.count * whole.element_size()} bytes, "
            f"in_place={int(case.in_place)}, rank {self.me.rank}"
        )
        if case.collective == "allreduce":
            check(whole, values.of(ranks), 0, label)
        elif case.collective == "broadcast":
            check(whole, values.of([0]), 0, label)
        elif case.collective == "reduce_scatter":
            check(part, values.of(ranks), rank * share, label)
        elif case.collective == "send_recv":
            check(whole, values.of([(rank - 1) % len(ranks)]), 0, label)
        else:
            start = rank * share if case.collective == "all_to_all" else 0
            for other in ranks:
                check(
                    whole[other * share : (other + 1) * share],
                    values.of([other]),
                    start,
                    f"{label}, part {other}",
                )
