"""Experts that are one parameter a layer in four bits: a stand-in for what bitsandbytes makes of such
parameters (0.50.2 nn/parametrize.py), which cannot wrap a fake tensor: the same tensors, made whole where
they are read and kept until their module's forward is done.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from memsheet.errors import input_error
from memsheet.plan.plan import Plan

STACKED = 3
"""Dimensions of a parameter that is taken for experts, in a module that is called so."""
BLOCK, NESTED_BLOCK, CODES, NESTED_CODES = 64, 256, 16, 256


class _Dequantized(nn.Module):
    """Memory for all matrices; nobody reads their values."""

    def __init__(self, like: Tensor, *, double: bool) -> None:
        super().__init__()
        self.shape, self.dtype = like.shape, like.dtype
        blocks, device = -(-like.numel() // BLOCK), like.device
        self.register_buffer(
            "absmax", torch.empty(blocks, dtype=torch.uint8 if double else torch.float32, device=device)
        )
        self.register_buffer("code", torch.empty(CODES, device=device))
        if double:
            self.register_buffer("nested_absmax", torch.empty(-(-blocks // NESTED_BLOCK), device=device))
            self.register_buffer("nested_code", torch.empty(NESTED_CODES, device=device))

    @torch.no_grad()
    def forward(self, packed: Tensor) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=packed.device)


def quantize_stacked_experts(model: nn.Module, plan: Plan) -> None:
    """In place, all of a model's. Raises InputError for formats that are not of four bits."""
    how = plan.quantization
    assert how is not None
    if how.weights.bits != CODES.bit_length() - 1:
        raise input_error("quantization.experts", how.weights.name, "has no stand-in of experts", "nf4")
    double = len(how.weights.scales) > 1
    for path, module in list(model.named_modules()):
        stacked = [name for name, one in module.named_parameters(recurse=False) if one.dim() == STACKED]
        for name in stacked if "experts" in path.rpartition(".")[2] else ():
            _quantize_parameter(module, name, double=double)


def _quantize_parameter(module: nn.Module, name: str, *, double: bool) -> None:
    whole = getattr(module, name)
    packed = torch.empty(((whole.numel() + 1) // 2, 1), dtype=torch.uint8, device=whole.device)
    setattr(module, name, nn.Parameter(packed, requires_grad=False))
    parametrize.register_parametrization(module, name, _Dequantized(whole, double=double), unsafe=True)
    module.register_forward_pre_hook(_cache_from_here)
    module.register_forward_hook(_cache_to_here, always_call=True)


def _cache_from_here(*_: Any) -> None:
    parametrize._cache_enabled += 1


def _cache_to_here(*_: Any) -> None:
    parametrize._cache_enabled = max(0, parametrize._cache_enabled - 1)
    if not parametrize._cache_enabled:
        parametrize._cache = {}
