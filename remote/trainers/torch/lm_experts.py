"""A mixture of experts: each token passes the few experts that a router prefers. PyTorch 2.8 or
newer.

No token is dropped, and the host never waits for the router: rows are sorted by expert into a
buffer whose size does not depend on the routing, and each matrix product of all experts is one
grouped kernel.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

ALIGNED = 16
"""Rows of an expert are filled up to a multiple of this: grouped kernels load aligned parts of
them.
"""


def multiply_groups(rows: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Return the product of each group of rows with its matrix. ``weights``: (experts, in, out);
    ``ends``: of each group.
    """
    product: Any = getattr(functional, "grouped_mm", None) or torch._grouped_mm
    return product(rows, weights.to(rows.dtype), offs=ends)


class Experts(nn.Module):
    """MLPs side by side; each token passes ``active_experts`` of them, weighted by a softmax over
    those (Jiang et al., "Mixtral of Experts", 2024).
    """

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.experts, self.active = shape.experts, shape.active_experts
        self.router = nn.Linear(shape.width, shape.experts, bias=False)
        self.up = nn.Parameter(torch.empty(shape.experts, shape.width, shape.mlp))
        self.gate = (
            nn.Parameter(torch.empty(shape.experts, shape.width, shape.mlp))
            if shape.gated
            else None
        )
        self.down = nn.Parameter(torch.empty(shape.experts, shape.mlp, shape.width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (batch, tokens, width)."""
        tokens = x.flatten(0, 1)
        scores, chosen = self.router(tokens).float().topk(self.active, dim=-1)
        shares = scores.softmax(dim=-1).to(x.dtype)
        places, ends, size = self._places(chosen.flatten())
        # Each token once for each of its experts, at its place; rows between the experts stay zero.
        buffer = tokens.new_zeros(size, tokens.shape[1]).index_copy(
            0, places, tokens.repeat_interleave(self.active, dim=0)
        )
        hidden = multiply_groups(buffer, self.up, ends)
        if self.gate is None:
            hidden = functional.gelu(hidden, approximate="tanh")
        else:
            hidden = functional.silu(multiply_groups(buffer, self.gate, ends)) * hidden
        results = multiply_groups(hidden, self.down, ends)[places].view(
            -1, self.active, tokens.shape[1]
        )
        return (results * shares.unsqueeze(-1)).sum(dim=1).view_as(x)

    def _places(self, chosen: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
        """Return the row of each choice in the buffer, the end of each expert's rows, and the
        number of rows.
        """
        size = -(-(chosen.numel() + self.experts * ALIGNED) // ALIGNED) * ALIGNED
        of_expert = (chosen.unsqueeze(1) == torch.arange(self.experts, device=chosen.device)).long()
        counts = of_expert.sum(dim=0)
        ends = ((counts + ALIGNED - 1) // ALIGNED * ALIGNED).cumsum(0)
        starts = functional.pad(ends[:-1], (1, 0))
        before = of_expert.cumsum(dim=0).gather(1, chosen.unsqueeze(1)).squeeze(1) - 1
        # The last expert also multiplies the rest of the buffer, zeros, so no result stays unset.
        ends = torch.cat((ends[:-1], ends.new_full((1,), size)))
        return starts[chosen] + before, ends.to(torch.int32), size
