"""Micro-batches of one optimizer step, and each one's share of the loss.

The last one is smaller where the global batch is no multiple (``Plan.accumulation`` rounds up). A
micro-batch's loss is a mean over its own tokens, so it counts by how many of the step's rows it has: then
gradients are those of the whole batch at once. The Trainer of transformers reaches the same by handing the
step's number of tokens down to the loss (5.23.0 trainer.py get_batch_samples and compute_loss,
``num_items_in_batch``). Rows are equally long, and every token of them is a label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from memsheet.plan.plan import Plan

Batch = Mapping[str, Tensor]


def micro_batches(batch: Batch, plan: Plan, micro: int) -> Iterator[tuple[Batch, float]]:
    """``micro`` micro-batches and their shares, which add up to 1. A batch of the whole step is cut up; one
    micro-batch serves again.
    """
    rows, size = _batch_row_count(batch), min(int(plan.training.microbatch), _batch_row_count(batch))
    sizes = [*[size] * (micro - 1), _last_microbatch_rows(plan, micro, rows, size)]
    start = 0
    for count in sizes:
        if start + count > rows:
            start = 0
        yield (
            {name: _slice_batch_rows(tensor, rows, start, count) for name, tensor in batch.items()},
            count / sum(sizes),
        )
        start += count


def _slice_batch_rows(tensor: Tensor, rows: int, start: int, count: int) -> Tensor:
    """What belongs to ``count`` rows; a picture's patches are several of a tensor's for each row of
    tokens.
    """
    each = tensor.shape[0] // rows
    return tensor[start * each : (start + count) * each]


def _batch_row_count(batch: Batch) -> int:
    return next(iter(batch.values())).shape[0]


def _last_microbatch_rows(plan: Plan, micro: int, rows: int, size: int) -> int:
    """Rows of the last micro-batch: what is left of a step that is run whole."""
    if rows > size:  # a whole step was given
        return rows - size * (micro - 1)
    return min(size, int(plan.last_microbatch)) if micro == int(plan.accumulation) else size
