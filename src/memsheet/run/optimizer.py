"""The optimizer a plan names, as its own library makes it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from memsheet.errors import refuse
from memsheet.spec.plan import Implementation, OptimizerName, Plan

RATE = 1e-4
MOMENTUM = 0.9
_SWITCHES: dict[Implementation, dict[str, bool]] = {
    Implementation.FOREACH: {"foreach": True}, Implementation.FUSED: {"fused": True}, Implementation.LOOP: {"foreach": False},
}  # fmt: skip


def build_optimizer(parameters: Iterable[torch.nn.Parameter], plan: Plan) -> torch.optim.Optimizer:
    """The plan's optimizer over what trains. Raises InputError where its library is not installed."""
    assert plan.optimizer is not None
    trained = [p for p in parameters if p.requires_grad]
    switches: dict[str, Any] = dict(_SWITCHES.get(plan.optimizer.implementation, {}))
    match plan.optimizer.name:
        case OptimizerName.ADAMW:
            return torch.optim.AdamW(trained, lr=RATE, **switches)
        case OptimizerName.SGD:
            return torch.optim.SGD(trained, lr=RATE, **switches)
        case OptimizerName.SGD_MOMENTUM:
            return torch.optim.SGD(trained, lr=RATE, momentum=MOMENTUM, **switches)
        case OptimizerName.ADAMW_8BIT:
            return _eight_bit(trained)
        case OptimizerName.LION:
            raise refuse("optimizer", "lion", "is in no library that is run here")


def _eight_bit(trained: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    with _disable_current_modes():  # it works its quantization tables out from values when it is made
        try:
            from bitsandbytes.optim import AdamW8bit
        except ImportError:
            raise refuse("optimizer", "adamw_8bit", "is bitsandbytes', which is not installed", "pip install bitsandbytes") from None
        made: torch.optim.Optimizer = AdamW8bit(trained, lr=RATE)
    return made
