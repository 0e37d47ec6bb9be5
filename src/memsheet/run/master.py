"""fp32 copies of low-precision parameters, which the optimizer steps in their place.

As Megatron-LM's Float16OptimizerWithFloat16Params does it (71371b4, megatron/core/optimizer/optimizer.py,
_copy_model_grads_to_main_grads): each gradient is cast and then let go, all are stepped at once, and the
results are copied back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

Build = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


class MasterWeights(torch.optim.Optimizer):
    """An optimizer over copies of ``parameters`` in ``dtype``; ``build`` makes the one that steps them."""

    def __init__(self, parameters: Sequence[nn.Parameter], dtype: torch.dtype, build: Build) -> None:
        super().__init__(parameters, {})
        self.masters = {
            parameter: nn.Parameter(parameter.detach().to(dtype, copy=True)) for parameter in parameters
        }
        self.inner = build(list(self.masters.values()))

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Each state is filed under the parameter whose copy it is of."""
        for parameter, master in self.masters.items():
            if parameter.grad is not None:
                master.grad = parameter.grad.to(master.dtype)
                parameter.grad = None
        self.inner.step(closure)
        self.inner.zero_grad()
        with torch.no_grad():
            torch._foreach_copy_(list(self.masters), list(self.masters.values()))
        for parameter, master in self.masters.items():
            self.state[parameter] = self.inner.state[master]
