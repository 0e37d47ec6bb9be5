"""A stand-in for mamba-ssm's kernel of a whole Mamba 2 mixer: the tensors it keeps and makes, none of its
arithmetic.

mamba at e9594ce1, ops/triton/ssd_combined.py:820-980 and the functions it calls. Work that is split over a
GPU's processors to fill it is taken as one part, as it is where sequences are long.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's own abbreviation
from torch import Tensor

from memsheet.trace.convolution import conv_backward

TILE = 32  # ssd_chunk_scan.py:1709: rows of a chunk whose sums of decays are written apart


class SplitScan(torch.autograd.Function):
    """Convolution, scan by chunks, gated norm and output projection of one joint projection."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def forward(
        ctx: Any,
        joint: Tensor,
        conv: Tensor,
        conv_bias: Tensor | None,
        a: Tensor,
        d: Tensor,
        dt_bias: Tensor,
        norm: Tensor,
        matrix: Tensor,
        out_bias: Tensor | None,
        sizes: tuple[int, int, int],
    ) -> Tensor:
        headdim, groups, chunk = sizes
        ctx.sizes, ctx.matrix_dtype = (d.size(0), headdim, groups, chunk), matrix.dtype
        x, b = _split_heads_and_b(_convolution_output(joint, conv, ctx.sizes), conv, ctx.sizes)
        decays = _chunk_decay_sums(joint, ctx.sizes)
        states = _chunk_states(b, ctx.sizes)
        states, final = (
            torch.empty_like(states, dtype=b.dtype),
            states.new_empty(states.size(0), *states.shape[2:]),
        )
        scores = _chunk_cb_products(b, ctx.sizes)
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        del scores
        normed, deviation = (
            torch.empty_like(out),
            out.new_empty(groups * out.size(0) * out.size(1), dtype=torch.float32),
        )
        if torch.is_autocast_enabled("cuda"):
            low = torch.get_autocast_dtype("cuda")
            normed, matrix = normed.to(low), matrix.to(low)
        ctx.save_for_backward(joint, conv, conv_bias, out, a, d, dt_bias, norm, deviation, matrix, out_bias)
        result = F.linear(normed.flatten(2), matrix, out_bias)
        del decays, states, final
        return result

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        joint, conv, conv_bias, out, a, d, dt_bias, norm, deviation, matrix, out_bias = ctx.saved_tensors
        (gradient,) = gradients
        again = torch.empty_like(out)
        x, b = _split_heads_and_b(_convolution_output(joint, conv, ctx.sizes), conv, ctx.sizes)
        djoint = torch.empty_like(joint)
        dx = joint.new_empty(*joint.shape[:2], conv.size(0))
        dout = F.linear(gradient, matrix.t())
        dnormed = torch.empty_like(out)
        da = _scanned_back(joint, x, b, a, ctx.sizes)
        dmatrix = gradient.flatten(0, 1).t() @ again.flatten(0, 1).flatten(1)
        dbias = None if out_bias is None else gradient.sum(dim=(0, 1))
        _, dconv, dconv_bias = conv_backward(dx.transpose(1, 2), conv, conv_bias, dx.transpose(1, 2), dx)
        del dout, dnormed, deviation
        return (
            djoint,
            dconv,
            dconv_bias,
            da,
            torch.empty_like(d),
            torch.empty_like(dt_bias),
            torch.empty_like(norm),
            dmatrix,
            dbias,
            None,
        )


def _convolution_output(joint: Tensor, conv: Tensor, sizes: tuple[int, int, int, int]) -> Tensor:
    """The convolution's output, channels last; its input is copied where its rows are not aligned
    (ssd_combined.py:59-75).
    """
    rows = joint.new_empty(*joint.shape[:2], conv.size(0)) if joint.size(2) % 8 else None
    made = joint.new_empty(*joint.shape[:2], conv.size(0))
    del rows, sizes
    return made


def _split_heads_and_b(
    convolved: Tensor, conv: Tensor, sizes: tuple[int, int, int, int]
) -> tuple[Tensor, Tensor]:
    """Inputs by head, and B's columns by group."""
    heads, width, groups, _ = sizes
    inner, state = heads * width, (conv.size(0) - heads * width) // groups // 2
    return convolved[..., :inner].unflatten(2, (heads, width)), convolved[
        ..., inner : inner + groups * state
    ].unflatten(2, (groups, state))


def _by_chunk(like: Tensor, sizes: tuple[int, int, int, int], *more: int) -> Tensor:
    """A number for each head and position, in whole chunks, in fp32."""
    heads, _, _, chunk = sizes
    return like.new_empty(like.size(0), heads, -(-like.size(1) // chunk), *more, chunk, dtype=torch.float32)


def _chunk_decay_sums(joint: Tensor, sizes: tuple[int, int, int, int]) -> tuple[Tensor, Tensor]:
    """ssd_chunk_state.py:724-725: time steps and their decays' sums."""
    return _by_chunk(joint, sizes), _by_chunk(joint, sizes)


def _chunk_states(b: Tensor, sizes: tuple[int, int, int, int]) -> Tensor:
    """ssd_chunk_state.py:826: what each chunk adds to each head's state."""
    heads, width, _, chunk = sizes
    return b.new_empty(b.size(0), -(-b.size(1) // chunk), heads, width, b.size(3), dtype=torch.float32)


def _chunk_cb_products(b: Tensor, sizes: tuple[int, int, int, int]) -> Tensor:
    """ssd_bmm.py:192: products of C and B within each chunk."""
    _, _, groups, chunk = sizes
    return b.new_empty(b.size(0), -(-b.size(1) // chunk), groups, chunk, chunk, dtype=torch.float32)


def _scanned_back(joint: Tensor, x: Tensor, b: Tensor, a: Tensor, sizes: tuple[int, int, int, int]) -> Tensor:
    """ssd_combined.py:397-516."""
    heads = sizes[0]
    steps = joint[..., -heads:].clone()
    decays = _chunk_decay_sums(joint, sizes)
    scores = _chunk_cb_products(b, sizes)
    states = _chunk_states(b, sizes)
    states, final = torch.empty_like(states), states.new_empty(states.size(0), *states.shape[2:])
    dstates = torch.empty_like(states)
    dstates, states = (
        torch.empty_like(dstates, dtype=x.dtype),
        states if x.dtype is states.dtype else torch.empty_like(states, dtype=x.dtype),
    )
    dsteps = _by_chunk(joint, sizes)
    db, after = (
        torch.empty_like(b, dtype=torch.float32, memory_format=torch.contiguous_format).unsqueeze(2).sum(2),
        _by_chunk(joint, sizes),
    )
    dc, before = (
        torch.empty_like(b, dtype=torch.float32, memory_format=torch.contiguous_format).unsqueeze(2).sum(2),
        _by_chunk(joint, sizes),
    )
    dscores = torch.empty_like(scores).unsqueeze(2).sum(2)
    before = before.flip([-1]).cumsum(dim=-1).flip([-1])
    total = _by_chunk(joint, sizes, -(-sizes[3] // TILE)).sum(dim=3)
    del steps, decays, final, dstates, dsteps, db, dc, after, before, dscores, total
    return torch.empty_like(a, dtype=torch.float32)


def split_conv1d_scan_combined(
    joint: Tensor,
    conv: Tensor,
    conv_bias: Tensor | None,
    dt_bias: Tensor,
    a: Tensor,
    D: Tensor,  # noqa: N803
    chunk_size: int,
    *,
    rmsnorm_weight: Tensor,
    outproj_weight: Tensor,
    outproj_bias: Tensor | None = None,
    headdim: int,
    ngroups: int = 1,
    **_: Any,
) -> Any:
    sizes = headdim, ngroups, chunk_size
    return SplitScan.apply(
        joint, conv, conv_bias, a, D, dt_bias, rmsnorm_weight, outproj_weight, outproj_bias, sizes
    )
