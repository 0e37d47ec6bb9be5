"""A few training steps of a model, built and run as a person's script has it: nothing of memsheet's is around them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memsheet.run.adapters import apply_adapter, apply_quantization
from memsheet.run.model import build_config, build_model
from memsheet.run.optimizer import build_optimizer
from memsheet.run.recompute import apply_recompute
from memsheet.run.step import At, mark_loss, tokens, train_step
from memsheet.sheet import Instant
from memsheet.spec.plan import Plan


def trainer(config: Mapping[str, Any], plan: Plan, device: str, at: At, micro: int) -> Callable[[], None]:
    """A step to call, on random tokens. ``at`` is told where each step is; ``micro``: micro-batches before the optimizer's turn."""
    settings = build_config(config, plan)
    model = apply_adapter(apply_quantization(build_model(settings, plan, device), plan), plan)
    apply_recompute(model, plan)
    optimizer = build_optimizer(model.parameters(), plan)
    batch = tokens(settings, plan, device)
    mark_loss(model, at)

    def step() -> None:
        at(Instant.LOAD)
        train_step(model, optimizer, batch, plan, at, device=device, micro=micro)

    return step
