"""The output layer and the loss of a language model: mean cross entropy of the next token, in fp32."""

from __future__ import annotations

from typing import Any, Callable, Mapping

import torch
from torch import nn
from torch.nn import functional

Loss = Callable[[torch.Tensor, nn.Module, torch.Tensor], torch.Tensor]


def cross_entropy(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of logits (batch, tokens, vocabulary) for targets (batch, tokens)."""
    return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


def compute_loss(hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean loss of what the last norm gave, (batch, tokens, width)."""
    return cross_entropy(functional.linear(hidden, weight.to(hidden.dtype)), targets)


def _part(
    hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, share: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the loss of some tokens, each times ``share``, and its gradient by the logits, of the
    type of ``hidden``.
    """
    logits = (hidden @ weight.t()).float()
    surprise = logits.logsumexp(dim=-1, keepdim=True)
    total = (surprise - logits.gather(1, targets.unsqueeze(1))).sum()
    hits = targets.unsqueeze(1) == torch.arange(weight.shape[0], device=weight.device)
    return total * share, (((logits - surprise).exp() - hits.float()) * share).to(hidden.dtype)


class _Early(torch.autograd.Function):
    """The loss by parts of the tokens, with all gradients in the forward pass (as in Hsu et al.,
    "Liger Kernel", 2024).

    One kernel reads logits and writes their gradients; only one part's logits exist at a time, and
    no matrix product is computed twice. The backward pass returns the stored gradients: this loss
    must not be multiplied before it is differentiated.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, targets: torch.Tensor, how: Any
    ) -> Any:
        chunks, share, part = how
        table = weight.to(hidden.dtype)
        of_hidden, of_weight = torch.empty_like(hidden), None
        total = torch.zeros((), device=hidden.device)
        for rows, goals, gradient in zip(
            hidden.chunk(chunks), targets.chunk(chunks), of_hidden.chunk(chunks)
        ):
            loss, of_logits = part(rows, table, goals, share / len(hidden))
            total += loss
            torch.mm(of_logits, table, out=gradient)
            product = of_logits.t() @ rows
            if chunks > 1:
                product = product.float()
            of_weight = product if of_weight is None else of_weight.add_(product)
        ctx.save_for_backward(of_hidden, of_weight.to(weight.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden, of_weight, None, None


def loss_function(chunks: int, options: Mapping[str, Any] | None, share: float) -> Loss:
    """Return the function from hidden states, the output layer and targets to the mean loss, times
    ``share``.

    ``chunks``: parts of the tokens, each with logits of its own; more need less memory.
    ``options``: of torch.compile; None: not compiled. ``share``: the share of a micro-batch in the
    loss of a step.
    """
    whole = compute_loss if options is None else torch.compile(compute_loss, **options)
    part = _part if options is None else torch.compile(_part, **options)

    def loss(hidden: torch.Tensor, head: nn.Module, targets: torch.Tensor) -> torch.Tensor:
        weight: Any = head.weight
        if hidden.dtype is torch.float16:  # gradients that no scale multiplies yet would vanish
            return whole(hidden, weight, targets) * share
        with torch.autocast(hidden.device.type, enabled=False):
            return _Early.apply(
                hidden.flatten(0, 1), weight, targets.flatten(), (chunks, share, part)
            )

    return loss
