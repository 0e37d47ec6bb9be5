"""bitsandbytes' own 4-bit layers, where it is installed and weights are real ones to be quantized."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from memsheet.plan.plan import Plan, Quantization
from memsheet.run.dtypes import torch_dtype


def can_quantize(model: nn.Module) -> bool:
    """Whether there is something to quantize with, and something to quantize."""
    first = next(model.parameters())
    return find_spec("bitsandbytes") is not None and not isinstance(first, FakeTensor) and not first.is_meta


def four_bit(like: nn.Linear, how: Quantization, plan: Plan) -> nn.Module:
    """A linear layer with the same weights in four bits."""
    from bitsandbytes.nn import Linear4bit, Params4bit

    kind, double = how.weights.name[:3], len(how.weights.scales) > 1
    compute = torch_dtype(plan.precision.compute, "precision.compute")
    made: Any = Linear4bit(
        like.in_features,
        like.out_features,
        bias=like.bias is not None,
        compute_dtype=compute,
        compress_statistics=double,
        quant_type=kind,
        device="meta",
    )
    made.weight = Params4bit(
        like.weight.data, requires_grad=False, compress_statistics=double, quant_type=kind, module=made
    )
    made.bias = like.bias
    made.weight = made.weight.to(like.weight.device)  # which quantizes it
    layer: nn.Module = made
    return layer


def stored_bytes(layer: Any) -> int:
    """Bytes of a layer's weight with its scales, tables left out."""
    state = layer.weight.quant_state
    parts = [layer.weight, state.absmax, *([state.state2.absmax] if state.nested else [])]
    return sum(part.numel() * part.element_size() for part in parts if isinstance(part, torch.Tensor))
