"""The optimizer's step inside backward: each parameter is stepped as soon as its gradient is whole, and the
gradient is let go at once.

As in PyTorch's tutorial on fusing the optimizer step into the backward pass and in torchtune
(torchtune/training/memory.py, register_optim_in_bwd_hooks): one optimizer a parameter, called from a hook
behind the accumulation of its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class InBackward(torch.optim.Optimizer):
    """An optimizer whose own step has nothing left to do. ``build`` makes the one of a single parameter."""

    def __init__(
        self, parameters: Sequence[nn.Parameter], build: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    ) -> None:
        super().__init__(parameters, {})
        self.each: dict[Tensor, torch.optim.Optimizer] = {
            parameter: build([parameter]) for parameter in parameters
        }
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(self._arrived)

    def _arrived(self, parameter: Tensor) -> None:
        own = self.each[parameter]
        own.step()
        own.zero_grad()
        self.state[parameter] = own.state[parameter]

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Every parameter has been stepped."""
