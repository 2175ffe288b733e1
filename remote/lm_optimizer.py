"""AdamW, the limit of the gradients' norm and the loss scale, on what each rank holds, without waiting for the device.

The optimizer gets the local part of each parameter as an ordinary tensor: all kinds of sharding then are one fused kernel over
one list. Clipping and unscaling are no passes over the gradients: the kernel divides by a number that is on the device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

BETAS = (0.9, 0.95)
"""Moments of AdamW, as GPT-3 and Llama were trained with."""
GROWTH_STEPS = 2000
"""Steps without overflow after which the loss scale is doubled."""


class Part(NamedTuple):
    """A parameter, this rank's part of it, and the process groups over which it is spread."""

    parameter: Any
    local: torch.Tensor
    groups: tuple[Any, ...]
    counts: bool


def part_of(parameter: nn.Parameter, counts: bool) -> Part:
    """Return the local part of a parameter. ``counts``: its gradient is part of the norm."""
    from torch.distributed.tensor import DTensor, Replicate

    if not isinstance(parameter, DTensor):
        return Part(parameter, parameter, (), counts)
    mesh = parameter.device_mesh
    spread = [number for number, placement in enumerate(parameter.placements) if not isinstance(placement, Replicate)]
    local = parameter.to_local().detach().requires_grad_()
    return Part(parameter, local, tuple(mesh.get_group(number) for number in spread), counts)


def as_held(parameter: Any) -> Any:
    """Return the gradient of a parameter, spread over ranks as the parameter is.

    An embedding that is split by rows has its gradient whole on each rank.
    """
    gradient = parameter.grad
    if not hasattr(parameter, "placements") or gradient.placements == parameter.placements:
        return gradient
    return gradient.redistribute(placements=parameter.placements)


class Optimizer:
    """AdamW over the parts of a model that this rank holds.

    ``clip``: largest norm of all gradients, 0 for any. ``scale``: initial loss scale, 0 without one. ``stages``: the group of
    ranks that have the other stages of this pipeline. ``copy``: a parameter that counts on another stage.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device,
        *,
        learning_rate: float,
        weight_decay: float,
        clip: float,
        scale: float = 0.0,
        stages: Any = None,
        copy: nn.Parameter | None = None,
    ) -> None:
        parts = [part_of(parameter, parameter is not copy) for parameter in model.parameters()]
        self.parts = [part for part in parts if part.local.numel()]
        self.clip, self.stages = clip, stages
        self.groups: dict[tuple[Any, ...], list[Part]] = {}
        for part in parts:  # also the empty ones: all ranks take part in the same collectives
            self.groups.setdefault(part.groups, []).append(part)
        # Matrices decay, norms and biases do not, as in GPT-3.
        matrices = [part.local for part in self.parts if part.parameter.dim() > 1]
        others = [part.local for part in self.parts if part.parameter.dim() < 2]
        rows = [{"params": matrices, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
        self.adamw: Any = torch.optim.AdamW([row for row in rows if row["params"]], lr=learning_rate, betas=BETAS, fused=True)
        self.scale = torch.full((), scale, device=device) if scale else None
        self.growth = torch.zeros((), dtype=torch.int32, device=device)
        self.one = torch.ones((), device=device)
        self.last_norm: torch.Tensor | None = None

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss whose gradients this optimizer expects."""
        return loss if self.scale is None else loss * self.scale

    def norm(self) -> torch.Tensor:
        """Return the norm of all gradients of the model, of all ranks, still times the loss scale."""
        total = torch.zeros_like(self.one)
        for groups, parts in self.groups.items():
            gradients = [part.local.grad for part in parts if part.counts and part.local.numel()]
            squares = torch.zeros_like(self.one)
            if gradients:
                squares = torch.stack(torch._foreach_norm(gradients, 2, dtype=torch.float32)).square().sum()
            for group in groups:
                dist.all_reduce(squares, group=group)
            total += squares
        if self.stages is not None:
            dist.all_reduce(total, group=self.stages)
        return total.sqrt()

    def step(self) -> None:
        """Update the parameters, unless gradients overflowed at this loss scale; drop the gradients."""
        for part in self.parts:
            if part.local is not part.parameter:
                part.local.grad = as_held(part.parameter).to_local()
        if self.clip or self.scale is not None:
            self.last_norm = self._limited(self.norm())
        self.adamw.step()
        for part in self.parts:
            part.parameter.grad = part.local.grad = None
        if self.scale is not None:
            torch._amp_update_scale_(self.scale, self.growth, self.adamw.found_inf, 2.0, 0.5, GROWTH_STEPS)

    def _limited(self, norm: torch.Tensor) -> torch.Tensor:
        """Have the fused kernel clip and unscale; return the norm without the loss scale."""
        # It divides gradients by grad_scale, and changes nothing where found_inf is 1: made for GradScaler.
        divisor = self.one if self.scale is None else self.scale
        if self.scale is not None:
            self.adamw.found_inf = (~torch.isfinite(norm)).float()
        norm = norm / divisor
        self.adamw.grad_scale = divisor * ((norm + 1e-6) / self.clip).clamp(min=1.0) if self.clip else divisor
        return norm


def scale_now(optimizer: Optimizer) -> Any:
    """Return a copy of the loss scale, on its device; 1 if the loss is not scaled."""
    return 1.0 if optimizer.scale is None else optimizer.scale.clone()
