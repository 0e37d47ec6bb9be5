"""A few training steps of a model, built and run as a person's script has it: nothing of memsheet's is around
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from memsheet.frozen import dataclass
from memsheet.plan.engine_registry import runs_on_ranks
from memsheet.plan.plan import Plan
from memsheet.run.accumulate import Batch
from memsheet.run.adapters import apply_adapter, apply_quantization
from memsheet.run.loss import apply_loss
from memsheet.run.model import build_config, build_model, initialize_model_weights
from memsheet.run.optimizer import build_optimizer
from memsheet.run.recompute import apply_recompute
from memsheet.run.scaler import build_scaler
from memsheet.run.step import At, Seen, mark_loss, random_token_batch, train_step
from memsheet.sheet import Instant

if TYPE_CHECKING:
    from memsheet.run.ranks import RankTrainer


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Trainer:
    """What it takes to train: called, it takes one optimizer step.

    ``at`` is told where each step is, ``seen`` each micro-batch's share of the loss; ``micro``: micro-batches
    before the optimizer's turn.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    tokens: Batch
    plan: Plan
    at: At
    device: str
    micro: int
    scaler: torch.amp.GradScaler
    seen: Seen | None = None

    def __call__(self, batch: Batch | None = None) -> None:
        """On the trainer's own tokens or on another batch: one micro-batch that serves again, or the whole
        step's rows.
        """
        self.at(Instant.LOAD)
        train_step(
            self.model,
            self.optimizer,
            self.tokens if batch is None else batch,
            self.plan,
            self.at,
            device=self.device,
            micro=self.micro,
            scaler=self.scaler,
            seen=self.seen,
        )


def build_trainer(
    config: Mapping[str, Any], plan: Plan, device: str, at: At, micro: int, seen: Seen | None = None
) -> Trainer | RankTrainer:
    """The model with random weights, its optimizer, and random tokens of a micro-batch."""
    if runs_on_ranks(plan):
        from memsheet.run.ranks import rank_trainer

        return rank_trainer(config, plan, device, at, micro, seen)
    settings = build_config(config, plan)
    model = initialize_model_weights(build_model(settings, plan, device))
    apply_loss(model, plan)
    model = apply_adapter(apply_quantization(model, plan), plan)
    apply_recompute(model, plan)
    optimizer = build_optimizer(model.parameters(), plan, model)
    own = random_token_batch(settings, plan, device)
    mark_loss(model, at)
    return Trainer(
        model=model,
        optimizer=optimizer,
        tokens=own,
        plan=plan,
        at=at,
        device=device,
        micro=micro,
        scaler=build_scaler(plan, device),
        seen=seen,
    )
