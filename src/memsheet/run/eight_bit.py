"""A stand-in for bitsandbytes' layer of int8 rows, whose library needs real weights: the same tensors, the
same temporaries.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from memsheet.plan.defaults import OUTLIER_COLUMNS
from memsheet.plan.plan import Plan


class _Product(torch.autograd.Function):
    """As bitsandbytes' MatMul8bitLt (95f9af3, autograd/_functions.py:101-242) over frozen rows. How many
    columns have an outlier is up to the data, of which fake tensors have none.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, codes: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        quantized = _quantize_rows_int8(rows.to(torch.float16))
        outliers = rows.new_empty((rows.shape[0], OUTLIER_COLUMNS))
        scaled = _dequantize_product(rows, codes, bias)
        result = torch.empty_like(scaled)
        del quantized, scaled
        if any(ctx.needs_input_grad[:2]):
            ctx.tensors = (outliers, rows)
        ctx.codes, ctx.shape, ctx.dtype = codes, x.shape, x.dtype
        return result.reshape(*x.shape[:-1], codes.shape[0])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        flat = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        weight = ctx.codes.to(ctx.dtype, copy=True)
        return torch.matmul(flat.to(ctx.dtype), weight).view(ctx.shape), None, None


def _quantize_rows_int8(half: Tensor) -> tuple[Tensor, Tensor]:
    """backends/cuda/ops.py:213-254: what is 6 and above is looked for beside the codes."""
    scales = half.new_empty(half.shape[0], dtype=torch.float32)
    codes = torch.empty_like(half, dtype=torch.int8)
    marks = half.abs() >= 6.0
    del marks
    return codes, scales


def _dequantize_product(rows: Tensor, codes: Tensor, bias: Tensor | None) -> Tensor:
    """backends/cuda/ops.py:78-81, 171-210: int32, then fp16, then the input's dtype."""
    product = rows.new_empty((rows.shape[0], codes.shape[0]), dtype=torch.int32)
    scaled = torch.empty_like(product, dtype=torch.float16)
    if bias is not None:
        scaled.add_(bias)
    return scaled.to(rows.dtype)


class LinearInt8(nn.Linear):
    """Linear8bitLt (nn/modules.py:1018-1194): the rows, and a scale each."""

    def __init__(self, like: nn.Linear, _: Plan) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = like.in_features, like.out_features
        codes = torch.empty(
            (like.out_features, like.in_features), dtype=torch.int8, device=like.weight.device
        )
        self.weight = nn.Parameter(codes, requires_grad=False)
        self.bias = like.bias
        self.register_buffer("scales", torch.empty(like.out_features, device=codes.device))

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        result: Tensor = _Product.apply(x, self.weight.data, bias)
        return result


def lora_of_int8() -> type:
    """The adapter that peft puts on bitsandbytes' layer (0.21.2, tuners/lora/bnb.py:237-282): the branch is
    added in the base's dtype.
    """
    from peft.tuners.lora.layer import Linear

    class LoraInt8(Linear):
        def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
            result = self.base_layer(x, *args, **kwargs)
            for name in self.active_adapters:
                plain = torch.is_autocast_enabled()
                x = x if plain else self._cast_input_dtype(x, next(self.lora_A[name].parameters()).dtype)
                branch = self.lora_B[name](self.lora_A[name](self.lora_dropout[name](x))) * self.scaling[name]
                branch = branch if plain else branch.to(result.dtype)
                result = result + branch
            return result

    return LoraInt8
