"""A stand-in for causal-conv1d's kernel: the tensors it keeps and makes (causal-conv1d at 0d2252d1)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Gradients = tuple[Tensor | None, ...]


class CausalConv(torch.autograd.Function):
    """causal-conv1d causal_conv1d_interface.py:9-94, cpp_functions.py:94-160: its input is kept, its output
    made.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if 1 not in (x.stride(1), x.stride(2)):
            x = x.contiguous()
        ctx.save_for_backward(x, weight, bias)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        x, weight, bias = ctx.saved_tensors
        (gradient,) = gradients
        if 1 not in (gradient.stride(1), gradient.stride(2)):
            gradient = gradient.contiguous()
        return conv_backward(x, weight, bias, gradient, torch.empty_like(x))


def conv_backward(
    x: Tensor, weight: Tensor, bias: Tensor | None, gradient: Tensor, into: Tensor
) -> Gradients:
    """The weights' gradients are summed in fp32 and cast (cpp_functions.py:134-159); the incoming one gets
    the input's layout (csrc/causal_conv1d.cpp:297-298).
    """
    weights = torch.zeros_like(weight, dtype=torch.float32)
    biases = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
    channels_last = x.stride(1) == 1 and x.stride(2) > 1
    if channels_last and gradient.stride(1) != 1:
        gradient.transpose(1, 2).contiguous()
    elif not channels_last and gradient.stride(2) != 1:
        gradient.contiguous()
    return into, weights.type_as(weight), None if bias is None or biases is None else biases.type_as(bias)
