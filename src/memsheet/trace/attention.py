"""Which kernel scaled_dot_product_attention runs on a GPU, decided without one.

Without CUDA kernels torch's own choice falls to plain mathematics. This one follows the GPU's order (aten
native/transformers/cuda/sdp_utils.cpp: flash, memory-efficient, math) and runs the chosen kernel's operation,
whose fake outputs torch knows. cuDNN's kernel, which recent torch may prefer on some cards, keeps what flash
keeps.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's own abbreviation
from torch import Tensor

FLASH_MAX_HEAD = 256  # sdp_utils.cpp check_head_dim_size_flash
HALF = (torch.float16, torch.bfloat16)
_original = F.scaled_dot_product_attention


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """As ``torch.nn.functional.scaled_dot_product_attention``: (batch, heads, length, head dim) in, the same
    out.
    """
    if query.device.type != "cuda":
        return _original(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
    query, key, value, attn_mask = _autocast_operands(query, key, value, attn_mask)
    grouped = enable_gqa or query.size(1) == key.size(1)
    if _takes_flash(query, value, attn_mask) and grouped:
        return _flash_attention_output(query, key, value, dropout_p, is_causal, scale)
    if attn_mask is not None and attn_mask.dtype is torch.bool:
        attn_mask = _additive_mask(attn_mask, query.dtype)
    if attn_mask is not None and _takes_efficient(query, key):
        attn_mask = _aligned_bias(attn_mask)
    if _takes_efficient(query, key):
        return _efficient_attention_output(query, key, value, attn_mask, dropout_p, is_causal, scale)
    return plain_attention_output(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)


def plain_attention_output(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> Tensor:
    """Plain operations, of operands that autocast's wrapper has cast; it is left meanwhile (aten
    autocast_mode.h, WrapFunction_ with CastPolicy lower_precision_fp: an ExcludeDispatchKeyGuard).
    """
    with torch.autocast(query.device.type, enabled=False):
        result: Tensor = torch.ops.aten._scaled_dot_product_attention_math(
            query, key, value, mask, dropout_p, is_causal, None, scale=scale, enable_gqa=enable_gqa
        )[0]
    return result


def _autocast_operands(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """What autocast's wrapper does: float operands in its dtype, from the last to the first."""
    if not torch.is_autocast_enabled("cuda"):
        return query, key, value, mask
    dtype = torch.get_autocast_dtype("cuda")

    def low(x: Any) -> Any:
        return x.to(dtype) if x is not None and x.dtype is torch.float32 else x

    mask = low(mask)
    value = low(value)
    key = low(key)
    return low(query), key, value, mask


def _takes_flash(query: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    sizes = query.size(-1) == value.size(-1) and query.size(-1) <= FLASH_MAX_HEAD
    return query.dtype in HALF and mask is None and sizes


def _flash_attention_output(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float, is_causal: bool, scale: float | None
) -> Tensor:
    width = query.size(-1)
    scale = scale if scale is not None else 1 / math.sqrt(width)
    query, key, value = (_pad_head_dim(x) for x in (query, key, value))
    out: Tensor = torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, dropout_p, is_causal, False, scale=scale
    )[0]
    return out if width % 8 == 0 else out[..., :width]


def _pad_head_dim(x: Tensor) -> Tensor:
    """Flash takes head dims that are multiples of 8 (sdp_utils.cpp pad_last_dim)."""
    rest = x.size(-1) % 8
    return x if rest == 0 else F.pad(x, (0, 8 - rest))


def _additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """A boolean mask as a bias (attention.cpp convert_boolean_attn_mask): zeros filled in place."""
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask.logical_not(), float("-inf"))


def _takes_efficient(query: Tensor, key: Tensor) -> bool:
    return query.size(1) == key.size(1) and query.size(-1) % (8 if query.dtype in HALF else 4) == 0


def _aligned_bias(bias: Tensor) -> Tensor:
    """Rows of a multiple of eight values, of which a part is shown (attention.cpp preprocess_mask)."""
    if all(step % 8 == 0 for step in bias.stride()[:-1]):
        return bias
    keys = bias.size(-1)
    return F.pad(bias, (0, 8 - keys % 8))[..., :keys]


def _efficient_attention_output(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    statistics = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
    if bias is not None:
        bias = bias.expand(query.size(0), query.size(1), query.size(2), key.size(2))
    out: Tensor = torch.ops.aten._scaled_dot_product_efficient_attention(
        query, key, value, bias, statistics, dropout_p, is_causal, scale=scale
    )[0]
    return out
