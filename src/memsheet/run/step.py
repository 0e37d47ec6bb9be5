"""One training step as a person writes it: micro-batches forward and backward, then the optimizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn

from memsheet.run.dtypes import torch_dtype
from memsheet.run.model import layers_of
from memsheet.sheet import Instant
from memsheet.spec.plan import Plan

At = Callable[[Instant], None]


def tokens(config: Any, plan: Plan, device: str) -> dict[str, torch.Tensor]:
    """A micro-batch of token ids with themselves as labels."""
    text = config.get_text_config()
    shape = (int(plan.microbatch), int(plan.seq_len))
    ids = torch.randint(0, text.vocab_size, shape, device=device)
    inputs = {"input_ids": ids, "labels": ids.clone()}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = ids.clone()
    return inputs


def autocast(plan: Plan, device: str) -> AbstractContextManager[Any]:
    """The autocast region of engines that keep fp32 parameters and compute in another dtype; nothing elsewhere."""
    if plan.engine != "transformers" or not plan.precision.casts:
        return nullcontext()
    return torch.autocast(device, dtype=torch_dtype(plan.precision.compute, "precision.compute"))


def mark_loss(model: nn.Module, at: At) -> None:
    """The last layer's end in forward is where the head and the loss begin."""
    layers = layers_of(model)
    if layers is None:
        return

    def hook(*_: Any) -> None:
        if torch.is_grad_enabled() and not torch._C._current_graph_task_id() >= 0:
            at(Instant.LOSS)

    layers[-1].register_forward_hook(hook)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, batch: Mapping[str, torch.Tensor], plan: Plan, at: At, *, device: str, micro: int
) -> None:  # fmt: skip
    """Forward and backward over ``micro`` micro-batches, then the optimizer's step. ``at`` is told where the step is."""
    for _ in range(micro):
        at(Instant.FORWARD)
        with autocast(plan, device):
            loss = model(**batch).loss
        at(Instant.BACKWARD)
        loss.backward()
        del loss
    at(Instant.OPTIMIZER_STEP)
    optimizer.step()
    optimizer.zero_grad()
