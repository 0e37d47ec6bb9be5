"""Cross-entropy over chunks of tokens, each with its own logits, which backward computes again.

Eight chunks as in torchtune (torchtune/modules/loss/ce_chunked_output_loss.py at ce5433b0,
num_output_chunks), but with the output projection inside, under a checkpoint: neither the logits nor their
gradients exist for more than one chunk.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

CHUNKS = 8


def chunked_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    """The mean over labelled tokens, as of all logits at once."""
    sums = [
        checkpoint(_summed_cross_entropy, x, weight, y, use_reentrant=False, preserve_rng_state=False)
        for x, y in zip(hidden.chunk(CHUNKS), labels.chunk(CHUNKS), strict=True)
    ]
    return torch.stack(sums).sum() / (labels != -100).sum()


def _summed_cross_entropy(hidden: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(functional.linear(hidden, weight).float(), labels, reduction="sum")
