"""The optimizer a plan names, as its own library makes it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from memsheet.errors import refuse
from memsheet.run.dtypes import torch_dtype
from memsheet.run.in_backward import InBackward
from memsheet.run.master import MasterWeights
from memsheet.spec.plan import Implementation, OptimizerName, Plan

RATE = 1e-4
MOMENTUM = 0.9
_SWITCHES: dict[Implementation, dict[str, bool]] = {
    Implementation.FOREACH: {"foreach": True}, Implementation.FUSED: {"fused": True}, Implementation.LOOP: {"foreach": False},
}  # fmt: skip


def build_optimizer(parameters: Iterable[nn.Parameter], plan: Plan, model: nn.Module | None = None) -> torch.optim.Optimizer:
    """What steps the parameters that train: the plan's optimizer, one by one in backward or over copies in higher precision if it says so.

    ``model``: whose embeddings an 8-bit optimizer leaves alone. Raises InputError where its library is not installed.
    """
    trained = [p for p in parameters if p.requires_grad]
    make = partial(_made, plan=plan, embeddings=_embeddings(model))
    if plan.optimizer_in_backward:
        return InBackward(trained, make)
    master = plan.precision.master_weights
    return make(trained) if master is None else MasterWeights(trained, torch_dtype(master, "precision.master_weights"), make)


def _embeddings(model: nn.Module | None) -> list[torch.Tensor]:
    return [module.weight for module in model.modules() if isinstance(module, nn.Embedding)] if model else []


def _made(trained: list[nn.Parameter], *, plan: Plan, embeddings: list[torch.Tensor]) -> torch.optim.Optimizer:
    assert plan.optimizer is not None
    switches: dict[str, Any] = dict(_SWITCHES.get(plan.optimizer.implementation, {}))
    match plan.optimizer.name:
        case OptimizerName.ADAMW:
            return torch.optim.AdamW(trained, lr=RATE, **switches)
        case OptimizerName.SGD:
            return torch.optim.SGD(trained, lr=RATE, **switches)
        case OptimizerName.SGD_MOMENTUM:
            return torch.optim.SGD(trained, lr=RATE, momentum=MOMENTUM, **switches)
        case OptimizerName.ADAMW_8BIT:
            return _torchao(trained) if plan.optimizer.implementation is Implementation.TORCHAO else _eight_bit(trained, embeddings)
        case OptimizerName.LION:
            raise refuse("optimizer", "lion", "is in no library that is run here")


def _eight_bit(trained: list[nn.Parameter], embeddings: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Embeddings keep states in 32 bits, as the Trainer of transformers has it (5.23.0 trainer.py:1338)."""
    with _disable_current_modes():  # it works its quantization tables out from values when it is made
        try:
            from bitsandbytes.optim import AdamW8bit, GlobalOptimManager
        except ImportError:
            raise refuse("optimizer", "adamw_8bit", "is bitsandbytes', which is not installed", "pip install bitsandbytes") from None
        manager = GlobalOptimManager.get_instance()
        manager.initialize()  # one for the whole process, which still knows the parameters of models before
        manager.override_config(embeddings, "optim_bits", 32)
        manager.register_parameters(trained)
        made: torch.optim.Optimizer = AdamW8bit(trained, lr=RATE)
    return made


def _torchao(trained: list[nn.Parameter]) -> torch.optim.Optimizer:
    """Its step is compiled for a GPU; a processor, which may have no compiler, takes it operation by operation."""
    try:
        from torchao.optim import AdamW8bit
    except ImportError:
        raise refuse("optimizer.implementation", "torchao", "is not installed", "pip install torchao") from None
    made: torch.optim.Optimizer = AdamW8bit(trained, lr=RATE)
    if trained[0].device.type != "cuda":
        made.step = partial(_eagerly, made.step)  # type: ignore[method-assign]
    return made


def _eagerly(step: Callable[..., Any], *args: Any) -> Any:
    with torch.compiler.set_stance("force_eager"):
        return step(*args)
