"""Cross-entropy that makes its gradients in forward, chunk by chunk, and keeps them in place of logits.

The algorithm and its sizes are Liger's (linkedin/Liger-Kernel 00eba634,
src/liger_kernel/ops/fused_linear_cross_entropy.py): chunks of as many tokens as have logits of about the size
of all hidden states; logits that become their own gradient in place; gradients of the hidden states and of
the weight in the dtypes of these, added to in place; and in backward no more than a factor. Its kernels need
Triton and a GPU. This is plain torch, which takes an eighth of a chunk in fp32 besides, where a kernel has
registers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

Parts = Callable[[Sequence[Any]], Sequence[Any]]
"""Which of a loop's parts are run."""

TILES = 8
IGNORED = -100


def fused_cross_entropy(
    hidden: Tensor, weight: Tensor, labels: Tensor, *, unlike_parts_only: bool = False
) -> Tensor:
    """The mean over labelled tokens, as of all logits at once. ``unlike_parts_only``: of tensors without
    values, no more chunks than differ in what they allocate.
    """
    loss: Tensor = _Fused.apply(hidden, weight, labels, _unlike_parts if unlike_parts_only else tuple)
    return loss


def chunk_tokens(tokens: int, width: int, vocabulary: int) -> int:
    """Tokens whose logits exist at once."""
    share = -(-tokens // -(-vocabulary // width))
    return min(tokens, 1 << (share - 1).bit_length())


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, run: Parts) -> Tensor:
        device = hidden.device.type
        low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype
        losses = torch.zeros(len(hidden), dtype=torch.float32, device=hidden.device)
        grad_hidden = torch.zeros_like(hidden)
        grad_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        labelled = (labels != IGNORED).sum()
        size = chunk_tokens(len(hidden), *reversed(weight.shape))
        with torch.autocast(device, enabled=False):
            for start in run(range(0, len(hidden), size)):
                rows = slice(start, start + size)
                x = hidden[rows].to(low)
                logits = x @ weight.to(low).t()
                _become_gradient(logits, labels[rows], losses[rows], labelled, run)
                grad_hidden[rows] = logits @ weight.to(low)
                if grad_weight is not None:
                    _add_product(grad_weight, logits, x, run)
                del logits, x  # before the next chunk's
        ctx.save_for_backward(grad_hidden, grad_weight)
        return losses.sum()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        made = [None if grad is None else grad.mul_(gradients[0]) for grad in ctx.saved_tensors]
        return (*made, None, None)


def _unlike_parts(parts: Sequence[Any]) -> Sequence[Any]:
    """The first, the second and the last: those between are of the second's size, made where it has let
    go.
    """
    return (*parts[:2], *parts[2:][-1:])


def _become_gradient(logits: Tensor, labels: Tensor, losses: Tensor, labelled: Tensor, run: Parts) -> None:
    """The mean loss' gradient in the place of ``logits``, each token's share of the loss in ``losses``."""
    tiles = tuple(zip(logits.chunk(TILES), labels.chunk(TILES), losses.chunk(TILES), strict=True))
    for part, label, loss in run(tiles):
        share = (label != IGNORED).unsqueeze(1) / labelled
        picked = label.clamp(min=0).unsqueeze(1)
        wide = part.to(torch.float32, copy=True)
        wide.sub_(wide.amax(1, keepdim=True))
        named = wide.gather(1, picked)
        total = wide.exp_().sum(1, keepdim=True)
        loss.copy_(((total.log() - named) * share).squeeze(1))
        wide.div_(total).scatter_add_(1, picked, torch.full_like(total, -1))
        part.copy_(wide.mul_(share))
        del wide  # before the next tile's


def _add_product(into: Tensor, left: Tensor, right: Tensor, run: Parts) -> None:
    """``into += leftᵀ @ right``, in the dtype of ``into``."""
    if into.dtype is left.dtype:
        into.addmm_(left.t(), right)
        return
    wide = right.to(into.dtype)
    for part, columns in run(tuple(zip(into.chunk(TILES), left.t().chunk(TILES), strict=True))):
        part.addmm_(columns.to(into.dtype), wide)
