"""AdamW, the limit of the gradients' norm and the loss scale, on what each rank holds, without
waiting for the device.

The optimizer gets the local part of each parameter as an ordinary tensor: all kinds of sharding
then are lists of tensors. Clipping and unscaling are no passes over the gradients: the update
divides by a number that is on the device.
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Sequence

import torch
import torch.distributed as dist
from lm_adamw import Compiled, Fused, Updated, squares
from torch import nn

GROWTH_STEPS = 2000
"""Steps without overflow after which the loss scale is doubled."""


class Part(NamedTuple):
    """A parameter, what this rank updates of it, and the process groups over which it is spread.
    ``lowered``: the parameter is a copy of that in a smaller type."""

    parameter: Any
    local: torch.Tensor
    groups: tuple[Any, ...]
    lowered: bool

    def gradient(self) -> torch.Tensor:
        """Return this rank's part of the gradient."""
        if self.lowered or self.local is self.parameter:
            return self.parameter.grad
        return self.parameter.grad.to_local()


def part_of(parameter: nn.Parameter, master: torch.Tensor | None = None) -> Part:
    """Return the local part of a parameter. ``master``: its value in fp32, if it has a smaller
    type.
    """
    from torch.distributed.tensor import DTensor, Replicate

    if master is not None:
        return Part(parameter, master, (), True)
    if not isinstance(parameter, DTensor):
        return Part(parameter, parameter, (), False)
    mesh = parameter.device_mesh
    spread = [
        number
        for number, placement in enumerate(parameter.placements)
        if not isinstance(placement, Replicate)
    ]
    local = parameter.to_local().detach().requires_grad_()
    return Part(parameter, local, tuple(mesh.get_group(number) for number in spread), False)


class Optimizer:
    """AdamW over the parts of a model that this rank holds.

    ``layers``: the parameters of each layer, and those that are in no layer. ``clip``: largest norm
    of all gradients, 0 for any. ``scale``: initial loss scale, 0 without one. ``masters``: values
    in fp32 of parameters that have a smaller type; only with ``compiled``, which makes a few
    kernels of the norm of a layer's gradients and, if no loss is scaled, one of its update.
    """

    def __init__(
        self,
        layers: Sequence[Sequence[nn.Parameter]],
        device: torch.device,
        *,
        learning_rate: float,
        weight_decay: float,
        clip: float,
        scale: float = 0.0,
        masters: Mapping[nn.Parameter, torch.Tensor] | None = None,
        compiled: bool = False,
    ) -> None:
        parts = [
            [part_of(parameter, (masters or {}).get(parameter)) for parameter in layer]
            for layer in layers
        ]
        self.clip = clip
        # Of all parts alike: either every parameter is spread over these ranks, or none is.
        self.groups = parts[0][0].groups
        self.layers = [[part for part in layer if part.local.numel()] for layer in parts]
        self.parts = [part for layer in self.layers for part in layer]
        self.squares = torch.compile(squares, dynamic=False) if compiled else None
        # Matrices decay, norms and biases do not, as in GPT-3.
        rows = [
            [
                Updated(
                    part.local.detach() if compiled and not scale else part.local,
                    part.parameter.detach() if part.lowered else None,
                    weight_decay if part.parameter.dim() > 1 else 0.0,
                )
                for part in layer
            ]
            for layer in self.layers
            if layer
        ]
        self.adamw: Any = (
            Compiled(rows, learning_rate, device)
            if compiled and not scale
            else Fused(rows, learning_rate)
        )
        self.scale = torch.full((), scale, device=device) if scale else None
        self.growth = torch.zeros((), dtype=torch.int32, device=device)
        self.one = torch.ones((), device=device)
        self.last_norm: torch.Tensor | None = None

    def scale_loss(self, loss: torch.Tensor) -> torch.Tensor:
        """Return the loss whose gradients this optimizer expects."""
        return loss if self.scale is None else loss * self.scale

    def norm(self, gradients: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the norm of all gradients, of all ranks, still times the loss scale.
        ``gradients``: this rank's.
        """
        rest = iter(gradients)
        rows = [[next(rest) for _ in layer] for layer in self.layers if layer]
        total = self._squares(rows) if rows else torch.zeros_like(self.one)
        for group in self.groups:
            dist.all_reduce(total, group=group)
        return total.sqrt()

    def _squares(self, rows: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
        """Return the sum of the squares of gradients; ``rows`` has the gradients of each layer."""
        if self.squares is not None:
            return torch.stack([self.squares(list(row)) for row in rows]).sum()
        norms = torch._foreach_norm(
            [gradient for row in rows for gradient in row], 2, dtype=torch.float32
        )
        return torch.stack(norms).square().sum()

    def step(self) -> None:
        """Update the parameters, unless gradients overflowed at this loss scale; drop the
        gradients.
        """
        gradients = [part.gradient() for part in self.parts]
        divisor = self.one if self.scale is None else self.scale
        if self.clip or self.scale is not None:
            norm = self.norm(gradients)
            self.last_norm = norm / divisor
            if self.clip:
                divisor = divisor * ((self.last_norm + 1e-6) / self.clip).clamp(min=1.0)
        if self.scale is None:
            self.adamw.step(gradients, divisor)
        else:
            overflow = (~torch.isfinite(norm)).float()
            self.adamw.step(gradients, divisor, overflow)
            torch._amp_update_scale_(self.scale, self.growth, overflow, 2.0, 0.5, GROWTH_STEPS)
        for part in self.parts:
            part.parameter.grad = None


def scale_now(optimizer: Optimizer) -> Any:
    """Return a copy of the loss scale, on its device; 1 if the loss is not scaled."""
    return 1.0 if optimizer.scale is None else optimizer.scale.clone()
