"""The parts of a step of a language model, timed after the last one: computing alone, and what
ranks would have sent meanwhile.

A step is taken as always, by all ranks at once, while `Silence` stands in for torch.distributed:
nothing is sent, and each collective is noted with its bytes, its ranks, and two moments of the
computation: from when on it may run, and when the computation first waits for it. The result's keys
are listed in train_lm.py. PyTorch 2.6 or newer.
"""

from __future__ import annotations

import argparse
from contextlib import contextmanager
from functools import partial
from typing import Any, Callable, Iterator, NamedTuple

import torch
import torch.distributed as dist
from lm_steps import Learner, Tokens, take_step
from step_timestamps import BESIDE, Stamps, time_beside
from torch_packed import buckets
from torch_ranks import all_ranks

STAND_INS = {
    "all_reduce": "allreduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_gather_single": "all_gather",
    "reduce_scatter_single": "reduce_scatter",
}
"""The collective of collectives.py that each function of torch.distributed is; the last two have
these names since 2.13.
"""


class Call(NamedTuple):
    """A collective that a step makes: its size as collectives.py counts it, in elements of a type,
    and its ranks.
    """

    collective: str
    count: int
    dtype: torch.dtype
    group: Any

    @property
    def size_bytes(self) -> int:
        """Bytes of the reduced, gathered or scattered data."""
        return self.count * torch.empty(0, dtype=self.dtype).element_size()

    @property
    def ranks(self) -> tuple[int, int]:
        """Number of ranks, and the distance from one to the next."""
        ranks = dist.get_process_group_ranks(self.group or dist.group.WORLD)
        return len(ranks), ranks[1] - ranks[0] if len(ranks) > 1 else 1


class Silence:
    """Stands in for collectives in steps without communication. ``stamps``: the stamps of these
    steps.

    On a CPU a collective begins and is waited for at once. On a GPU it begins when its stream has
    come to it. In the forward pass and after the backward pass it is waited for at once. In a
    backward pass, gathered parameters are waited for at the next collective, because layers are
    gathered one ahead, scattered gradients when the next ones are scattered, and all else at the
    end.
    """

    def __init__(self, stamps: Stamps) -> None:
        self.stamps = stamps
        self.calls: list[Call] = []
        self.overlapping: list[Call] = []
        self.in_backward = False
        self.waited_for: dict[str, list[int]] = {}
        self.main = torch.cuda.current_stream() if stamps.device.type == "cuda" else None

    def begin(self) -> None:
        """Begin a step."""
        self.calls = []
        self.stamps.begin()

    def stamp(self, name: str) -> None:
        """Record a moment of a step, as `lm_steps.take_step` names it."""
        self.stamps(name)
        if name == "micro_batch":
            self.overlapping = []
        self.in_backward = name == "forward"
        if name == "backward":
            for collective in list(self.waited_for):
                self._waits(collective, self.stamps.steps[-1][name])

    @contextmanager
    def standing_in(self) -> Iterator[None]:
        """Stand in for torch.distributed."""
        own = {name: getattr(dist, name) for name in STAND_INS if hasattr(dist, name)}
        try:
            for name in own:
                setattr(dist, name, partial(self._record_call, STAND_INS[name]))
            yield
        finally:
            for name, function in own.items():
                setattr(dist, name, function)

    def moments(self) -> list[list[Any]]:
        """Return collective, bytes, number and distance of its ranks, and when it may begin and is
        waited for, in seconds from the start of a step, of each call of the last step."""
        return [
            [
                call.collective,
                call.size_bytes,
                *call.ranks,
                *(
                    self.stamps.between("start", f"{moment} {number}")
                    for moment in ("begins", "needed")
                ),
            ]
            for number, call in enumerate(self.calls)
            if call.ranks[0] > 1
        ]

    def _record_call(self, collective: str, *given: Any, **named: Any) -> None:
        tensors = [value for value in (*given, *named.values()) if isinstance(value, torch.Tensor)]
        call = Call(
            collective, max(map(torch.Tensor.numel, tensors)), tensors[0].dtype, named.get("group")
        )
        number = len(self.calls)
        self.calls.append(call)
        here = self.stamps.now(self.main)
        self.stamps.steps[-1][f"begins {number}"] = here if self.main is None else self.stamps.now()
        self._waits("all_gather", here)
        if collective == "reduce_scatter":
            self._waits(collective, here)
        if self.in_backward and self.main is not None:
            self.waited_for.setdefault(collective, []).append(number)
            self.overlapping.append(call)
        else:
            self.stamps.steps[-1][f"needed {number}"] = here
        if len(tensors) > 1:
            stay_here(collective, tensors[0], tensors[1], dist.get_rank(call.group), call.ranks[0])

    def _waits(self, collective: str, moment: Any) -> None:
        for number in self.waited_for.pop(collective, ()):
            self.stamps.steps[-1][f"needed {number}"] = moment


def stay_here(
    collective: str, output: torch.Tensor, given: torch.Tensor, rank: int, ranks: int
) -> None:
    """Fill the output of a collective with this rank's own values, which stand for the other
    ranks'.

    Leftover values of that memory could be NaN, with which a GPU at its power limit computes
    faster.
    """
    if collective == "reduce_scatter":
        output.copy_(given.reshape(ranks, *output.shape)[rank])
        return
    shares = output.view(ranks, given.numel())
    shares[:rank].copy_(given.view(1, -1))  # in place, the given ones lie between the two
    shares[rank + 1 :].copy_(given.view(1, -1))


# --- measurements ---------------------------------------------------------------------------------


def alone(
    args: argparse.Namespace, learner: Learner, batches: Tokens, device: torch.device
) -> tuple[dict[str, Any], list[Call], list[list[Any]]]:
    """Take steps without communication; return their times, the collectives that may run during the
    last backward pass, and all collectives of a step, as `Silence.moments` does. Without memory for
    such steps there are none.
    """
    silence = Silence(Stamps(device))
    stamps, hooked = silence.stamps, []
    reduced = of_ddp(learner) if learner.layout.kind == "ddp" else []
    for at, (_, last) in enumerate(reduced):
        hooked.append(
            last.register_post_accumulate_grad_hook(lambda _, at=at: stamps(f"begins bucket {at}"))
        )
    bare = learner._replace(model=learner.decoder)
    try:
        with silence.standing_in():
            for number in range(args.solo_steps):
                silence.begin()
                take_step(bare, *batches[number], stamp=silence.stamp)
                stamps("end")
    except torch.cuda.OutOfMemoryError:
        stamps.steps.clear()
    for hook in hooked:
        hook.remove()
    times = {
        "solo_step_s": stamps.between("start", "end"),
        "solo_forward_s": stamps.between("micro_batch", "forward"),
        "solo_backward_s": stamps.between("forward", "backward"),
    }
    end_s = stamps.between("start", "backward")
    buckets = [
        [
            "allreduce",
            call.size_bytes,
            *call.ranks,
            stamps.between("start", f"begins bucket {at}"),
            end_s,
        ]
        for at, (call, _) in enumerate(reduced)
    ]
    return (
        times,
        [call for call, _ in reduced] or silence.overlapping,
        [*buckets, *silence.moments()],
    )


def of_ddp(learner: Learner) -> list[tuple[Call, torch.nn.Parameter]]:
    """Return the all-reduce of each of DDP's buckets, and the parameter whose gradient completes
    it.
    """
    parameters = [
        parameter for parameter in learner.decoder.parameters() if parameter.requires_grad
    ]
    sizes, orders = buckets(learner.model)
    first = parameters[0]
    return [
        (Call("allreduce", size // first.element_size(), first.dtype, None), parameters[order[-1]])
        for size, order in zip(sizes, orders)
    ]


def prepare_calls(calls: list[Call], device: torch.device) -> list[Callable[[], Any]]:
    """Return functions that begin these collectives, on buffers that all of them share."""
    space: dict[torch.dtype, torch.Tensor] = {}
    for call in calls:
        # Scattered data and a rank's share of them; gathered data contain the share.
        whole = call.count + call.count // call.ranks[0]
        if call.dtype not in space or space[call.dtype].numel() < whole:
            space[call.dtype] = torch.zeros(whole, dtype=call.dtype, device=device)
    functions: list[Callable[[], Any]] = []
    for call in calls:
        ranks, rank = call.ranks[0], dist.get_rank(call.group)
        whole, share = space[call.dtype][: call.count], call.count // ranks
        options = {"group": call.group, "async_op": True}
        if call.collective == "allreduce":
            functions.append(partial(dist.all_reduce, whole, **options))
        elif call.collective == "all_gather":
            functions.append(
                partial(
                    dist.all_gather_into_tensor,
                    whole,
                    whole[rank * share : (rank + 1) * share],
                    **options,
                )
            )
        else:
            after = space[call.dtype][call.count : call.count + share]
            functions.append(partial(dist.reduce_scatter_tensor, after, whole, **options))
    return functions


def parts(
    args: argparse.Namespace, learner: Learner, batches: Tokens, device: torch.device
) -> tuple[dict[str, Any], list[list[Any]] | None]:
    """Return the times of this rank's steps without communication, of collectives alone and of both
    at once, and all collectives of a step.

    After this, the models of ranks differ. All ranks call it together.
    """
    times: dict[str, Any] = dict.fromkeys(
        ("solo_step_s", "solo_forward_s", "solo_backward_s", *BESIDE)
    )
    if not args.solo_steps:
        return times, None
    own, overlapping, collectives = alone(args, learner, batches, device)
    times.update(own)
    try:
        begin = prepare_calls(overlapping, device)
    except torch.cuda.OutOfMemoryError:
        begin = []
    ready = all_ranks(device, bool(begin) and times["solo_step_s"] is not None, "min")
    if ready and dist.get_world_size() > 1:
        silence = Silence(Stamps(device))

        def take(number: int, stamp: Callable[[str], None]) -> None:
            def both(name: str) -> None:
                silence.stamp(name)
                stamp(name)

            silence.begin()
            take_step(learner._replace(model=learner.decoder), *batches[number], stamp=both)

        with silence.standing_in():
            how = (args.solo_steps, take, "micro_batch", args.accumulation)
            times.update(time_beside(begin, silence.stamps, *how))
    return times, collectives if times["solo_step_s"] is not None else None
