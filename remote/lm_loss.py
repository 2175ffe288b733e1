"""The output layer and the loss of a language model: mean cross entropy of the next token, in fp32."""

from __future__ import annotations

from typing import Any, Callable

import torch
from torch import nn
from torch.nn import functional

Loss = Callable[[torch.Tensor, nn.Module, torch.Tensor], torch.Tensor]


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of logits (batch, tokens, vocabulary) for targets (batch, tokens)."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def projected(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of what the last norm gave, (batch, tokens, width)."""
    return cross_entropy(functional.linear(hidden, weight.to(hidden.dtype)), targets)


def _part(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the summed loss of some tokens, and its gradient by the logits, of the type of ``hidden``."""
    logits = (hidden @ weight.t()).float()
    surprise = logits.logsumexp(dim=-1, keepdim=True)
    total = (surprise - logits.gather(1, targets.unsqueeze(1))).sum()
    hits = targets.unsqueeze(1) == torch.arange(weight.shape[0], device=weight.device)
    return total, ((logits - surprise).exp() - hits.float()).to(hidden.dtype)


class _Chunked(torch.autograd.Function):
    """The loss by parts of the tokens, with all gradients in the forward pass: only one part's logits exist at a time, and no
    matrix product is computed twice (as in Hsu et al., "Liger Kernel", 2024)."""

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, chunks: int, part: Any) -> Any:
        of_hidden, of_weight = torch.empty_like(hidden), torch.zeros(weight.shape, device=weight.device)
        total = torch.zeros((), device=hidden.device)
        for rows, goals, gradient in zip(hidden.chunk(chunks), targets.chunk(chunks), of_hidden.chunk(chunks)):
            loss, of_logits = part(rows, weight, goals)
            total += loss
            torch.mm(of_logits, weight, out=gradient)
            of_weight += of_logits.t() @ rows
        ctx.save_for_backward(of_hidden, of_weight)
        return total / len(hidden)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        of_hidden, of_weight = ctx.saved_tensors
        share = gradients[0] / len(of_hidden)
        return (of_hidden * share).to(of_hidden.dtype), (of_weight * share).to(of_hidden.dtype), None, None, None


def loss_function(chunks: int, compiled: bool) -> Loss:
    """Return the function from hidden states, the output layer and targets to the loss. ``chunks``: parts of the tokens, each
    with logits of its own; more need less memory."""
    options: dict[str, Any] = {"dynamic": False}
    whole = torch.compile(projected, **options) if compiled else projected
    part = torch.compile(_part, **options) if compiled else _part

    def loss(hidden: torch.Tensor, head: nn.Module, targets: torch.Tensor) -> torch.Tensor:
        weight: Any = head.weight
        if chunks == 1:
            return whole(hidden, weight, targets)
        with torch.autocast(hidden.device.type, enabled=False):
            return _Chunked.apply(hidden.flatten(0, 1), weight.to(hidden.dtype), targets.flatten(), chunks, part)

    return loss


def loss_over_ranks(hidden: torch.Tensor, head: nn.Module, targets: torch.Tensor) -> torch.Tensor:
    """Return the loss with an output layer that is spread over ranks; neither logits nor softmax are gathered.

    Forward and backward pass need `torch.distributed.tensor.parallel.loss_parallel` around them.
    """
    loss: Any = cross_entropy(head(hidden), targets)
    return loss.to_local()
