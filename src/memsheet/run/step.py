"""One training step as a person writes it: micro-batches forward and backward, then the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule

from memsheet.errors import input_error
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.plan import GradientSync, Plan
from memsheet.run.accumulate import Batch, micro_batches
from memsheet.run.dtypes import torch_dtype
from memsheet.run.model import layers_of, text_config_of
from memsheet.run.offload import activation_offload_context
from memsheet.run.pictures import with_pictures
from memsheet.run.scaler import build_scaler
from memsheet.run.standard_inputs import STANDARD, with_standard_inputs
from memsheet.sheet import Instant

At = Callable[[Instant], None]
Seen = Callable[[torch.Tensor], None]


def random_token_batch(config: Any, plan: Plan, device: str) -> dict[str, torch.Tensor]:
    """A micro-batch of token ids with themselves as labels; beside them, or instead, the pictures or sounds
    that the model takes.

    Raises InputError for a model of which it is not known what it takes.
    """
    batch, text = int(plan.training.microbatch), text_config_of(config)
    if getattr(text, "vocab_size", None) is None:
        return _pixel_batch(config, plan, device)
    ids = torch.randint(0, text.vocab_size, (batch, int(plan.training.seq_len)), device=device)
    if plan.training.image_tokens:
        return with_pictures(ids, config, plan)
    if "ForSequenceClassification" in str(config.architectures):  # one kind a sequence
        return {"input_ids": ids, "labels": torch.randint(0, config.num_labels, (batch,), device=device)}
    if config.model_type in STANDARD:
        dtype = torch_dtype(plan.precision.parameters, "precision.parameters")
        return with_standard_inputs({"input_ids": ids, "labels": ids.clone()}, config, dtype)
    if not config.is_encoder_decoder:
        return {"input_ids": ids, "labels": ids.clone()}
    heard = getattr(config, "num_mel_bins", None)
    source = (
        {"input_ids": ids}
        if heard is None
        else {"input_features": _zero_inputs(plan, device, heard, 2 * config.max_source_positions)}
    )
    return {**source, "labels": ids.clone(), "decoder_input_ids": ids.clone()}


def _pixel_batch(config: Any, plan: Plan, device: str) -> dict[str, torch.Tensor]:
    """Pictures of the size that the config says, each of one kind."""
    side, channels = getattr(config, "image_size", None), getattr(config, "num_channels", None)
    if side is None or channels is None:
        raise input_error(
            "model_type",
            config.model_type,
            "takes neither tokens nor pictures of one size: its step is not known here",
        )
    height, width = (side, side) if isinstance(side, int) else side
    kinds = torch.randint(0, config.num_labels, (int(plan.training.microbatch),), device=device)
    return {"pixel_values": _zero_inputs(plan, device, channels, height, width), "labels": kinds}


def _zero_inputs(plan: Plan, device: str, *shape: int) -> torch.Tensor:
    dtype = torch_dtype(plan.precision.parameters, "precision.parameters")
    return torch.zeros(int(plan.training.microbatch), *shape, dtype=dtype, device=device)


def autocast_region(plan: Plan, device: str) -> AbstractContextManager[Any]:
    """The autocast region of engines that keep fp32 parameters and compute in another dtype; nothing
    elsewhere.
    """
    if not (engine_of(plan).autocast and plan.precision.casts):
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
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    plan: Plan,
    at: At,
    *,
    device: str,
    micro: int,
    scaler: torch.amp.GradScaler | None = None,
    seen: Seen | None = None,
) -> None:
    """Forward and backward over ``micro`` micro-batches, then the optimizer's step.

    ``at`` is told where the step is, ``seen`` each micro-batch's share of the step's loss. ``scaler``: of
    fp16, for all steps.
    """
    scaler = scaler or build_scaler(plan, device)
    for number, (part, share) in enumerate(micro_batches(batch, plan, micro), 1):
        if plan.gradient_sync is GradientSync.LAST and isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(number == micro)
        at(Instant.FORWARD)
        with activation_offload_context(model, plan), autocast_region(plan, device):
            loss = model(**part).loss
        if micro > 1:
            loss = loss * share
        if seen is not None:
            seen(loss.detach())
        at(Instant.BACKWARD)
        loss = scaler.scale(loss)
        loss.backward()
        del loss
    at(Instant.OPTIMIZER_STEP)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
