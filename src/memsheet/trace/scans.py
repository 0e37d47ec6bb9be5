"""Stand-ins for kernels of other packages that a state-space layer calls: the tensors they keep and make,
none of their arithmetic.

transformers calls them where their packages are installed, and otherwise runs Python over the tokens one by
one (integrations/hub_kernels.py use_kernel_func_from_hub_with_fallback), which nobody trains with and no
trace can wait for. What each allocates is read off its source: causal-conv1d at 0d2252d1 and mamba at
e9594ce1. An answer names the ones it used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - the field's own abbreviation
from torch import Tensor

from memsheet.errors import input_error
from memsheet.trace.convolution import CausalConv, Gradients, conv_backward
from memsheet.trace.patches import Patch, apply_patches

CHUNK = 2048  # mamba csrc/selective_scan/selective_scan.cpp:307: tokens between two states that are kept


def _selective_scan_outputs(
    u: Tensor, delta: Tensor, a: Tensor, z: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """selective_scan.cpp:294-313: gated output, output, two states every CHUNK tokens."""
    gated = None if z is None else torch.empty_like(z)
    chunks = -(-u.size(2) // CHUNK)
    return torch.empty_like(delta), a.new_empty(u.size(0), u.size(1), chunks, 2 * a.size(1)), gated


def _scan_backward(
    kept: tuple[Tensor, ...], vectors: tuple[Tensor | None, ...], recompute: Tensor | None
) -> Gradients:
    """selective_scan.cpp:440-500: gradients of u, delta, A, B, C, D and delta's bias; those of B and C are
    summed in fp32 and cast.
    """
    u, delta, a, b, c = kept
    again = None if recompute is None else torch.empty_like(recompute)
    du, ddelta, da = torch.empty_like(u), torch.empty_like(delta), torch.zeros_like(a)
    db, dc = (torch.zeros_like(x, dtype=torch.float32) for x in (b, c))
    rest = tuple(None if x is None else torch.zeros_like(x) for x in vectors)
    return du, ddelta, da, db.to(b.dtype), dc.to(c.dtype), *rest, again


class SelectiveScan(torch.autograd.Function):
    """mamba ops/selective_scan_interface.py:34-95."""

    @staticmethod
    def forward(
        ctx: Any,
        u: Tensor,
        delta: Tensor,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        d: Tensor | None,
        z: Tensor | None,
        bias: Tensor | None,
        last: bool,
    ) -> Any:
        u, delta = _contiguous_rows(u), _contiguous_rows(delta)
        b, c = _contiguous_rows(b), _contiguous_rows(c)
        z = None if z is None else _contiguous_rows(z)
        out, states, gated = _selective_scan_outputs(u, delta, a, z)
        ctx.save_for_backward(u, delta, a, b, c, d, z, bias, states, *(() if z is None else (out,)))
        made = out if gated is None else gated
        return (made, states[:, :, -1, 1::2]) if last else made

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Gradients:
        u, delta, a, b, c, d, z, bias, *_ = ctx.saved_tensors
        _gradient = _contiguous_rows(gradients[0])
        gate = None if z is None else torch.empty_like(z)
        du, ddelta, da, db, dc, dd, dbias, _ = _scan_backward((u, delta, a, b, c), (d, bias), None)
        return du, ddelta, da, db, dc, dd, gate, dbias, None


def _contiguous_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


class MambaInner(torch.autograd.Function):
    """mamba ops/selective_scan_interface.py:196-383 at its default checkpoint_lvl of 1: convolution,
    projections, scan and gate as one, of which the convolution's output and the time steps are made again in
    backward.
    """

    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def forward(
        ctx: Any,
        xz: Tensor,
        conv: tuple[Tensor, Tensor | None],
        projections: tuple[Tensor, ...],
        vectors: tuple[Any, ...],
        norms: tuple[Any, ...],
        *leaves: Any,
    ) -> Tensor:
        del leaves  # the same tensors one by one, for autograd
        x_weight, dt_weight, out_weight, out_bias = (_autocast_weight(w) for w in projections)
        a, d, dt_bias = vectors
        xz = _contiguous_rows(xz)
        x, z = xz.chunk(2, dim=1)
        convolved = torch.empty_like(x)
        projected = F.linear(_flatten_to_tokens(convolved), x_weight)
        delta = _time_steps(projected, dt_weight, xz)
        b, c = (_state_major_layout(part, xz) for part in _b_and_c_columns(projected, dt_weight, a))
        b, c, delta = (_normalize_scan_input(t, norm) for t, norm in zip((b, c, delta), norms, strict=True))
        out, states, gated = _selective_scan_outputs(convolved, delta, a, z)
        del convolved, delta
        ctx.norms = norms
        ctx.save_for_backward(
            xz, *conv, projected, x_weight, dt_weight, out_weight, out_bias, a, b, c, d, dt_bias, states, out
        )
        assert gated is not None
        return F.linear(gated.transpose(1, 2), out_weight, out_bias)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Any, ...]:
        (
            xz,
            conv,
            conv_bias,
            projected,
            x_weight,
            dt_weight,
            out_weight,
            out_bias,
            a,
            b,
            c,
            d,
            dt_bias,
            _states,
            out,
        ) = ctx.saved_tensors
        x, _ = xz.chunk(2, dim=1)
        gradient = gradients[0].contiguous()
        convolved = torch.empty_like(x)
        delta = _time_steps(projected, dt_weight, xz)
        b, c, delta = (
            _normalize_scan_input(t, norm) for t, norm in zip((b, c, delta), ctx.norms, strict=True)
        )
        dxz = torch.empty_like(xz)
        dx, _ = dxz.chunk(2, dim=1)
        flat = gradient.flatten(0, 1).t()
        dy = _by_sequence(out_weight.t() @ flat, xz)
        du, ddelta, da, db, dc, dd, dbias, gated = _scan_backward(
            (convolved, delta, a, b, c), (d, dt_bias), out
        )
        assert du is not None
        assert ddelta is not None
        assert gated is not None
        dout_weight = flat @ _flatten_to_tokens(gated)
        dout_bias = None if out_bias is None else gradient.sum(dim=(0, 1))
        dprojected = torch.empty_like(projected)
        for part, made in zip(_b_and_c_columns(dprojected, dt_weight, a), (db, dc), strict=True):
            assert made is not None
            part.copy_(made.squeeze(1).transpose(1, 2).reshape(-1, made.size(2)).contiguous())
        del db, dc, made
        rank, steps = dt_weight.size(1), _flatten_to_tokens(ddelta)
        ddt_weight = steps.t() @ projected[:, :rank]
        dprojected[:, :rank].copy_(steps @ dt_weight)
        dconvolved = _flatten_to_tokens(du).t()
        dx_weight = dprojected.t() @ _flatten_to_tokens(convolved)
        torch.addmm(dconvolved, x_weight.t(), dprojected.t(), out=dconvolved)
        _, dconv, dconv_bias = conv_backward(x, conv.squeeze(1), conv_bias, _by_sequence(dconvolved, xz), dx)
        del dy
        assert dconv is not None
        leaves = (
            dconv.unsqueeze(1),
            dconv_bias,
            dx_weight,
            ddt_weight,
            dout_weight,
            dout_bias,
            da,
            dd,
            dbias,
        )
        return dxz, None, None, None, None, *leaves


def _autocast_weight(weight: Tensor | None) -> Any:
    """selective_scan_interface.py:209-214: projections are cast for as long as they are saved, apart from
    autocast's own cache.
    """
    return (
        weight.to(torch.get_autocast_dtype("cuda"))
        if weight is not None and torch.is_autocast_enabled("cuda")
        else weight
    )


def _flatten_to_tokens(x: Tensor) -> Tensor:
    """(batch, channels, length) → (batch · length, channels)"""
    return x.transpose(1, 2).reshape(-1, x.size(1))


def _by_sequence(x: Tensor, xz: Tensor) -> Tensor:
    """(channels, batch · length) → (batch, channels, length)"""
    return x.view(-1, xz.size(0), xz.size(2)).transpose(0, 1)


def _time_steps(projected: Tensor, weight: Tensor, xz: Tensor) -> Tensor:
    return _by_sequence(weight @ projected[:, : weight.size(1)].t(), xz)


def _b_and_c_columns(projected: Tensor, dt_weight: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """B's and C's columns of what x_proj makes."""
    rank, width = dt_weight.size(1), a.size(1)
    return projected[:, rank : rank + width], projected[:, -width:]


def _state_major_layout(part: Tensor, xz: Tensor) -> Tensor:
    """(batch · length, state) → (batch, 1, state, length)"""
    return part.view(xz.size(0), xz.size(2), -1).transpose(1, 2).unsqueeze(1).contiguous()


def _normalize_scan_input(x: Tensor, weight: Tensor | None) -> Tensor:
    """Falcon-Mamba's norms of B, C and the time steps: to tokens, through Triton's norm, and back (:98-115,
    :263-274).
    """
    if weight is None:
        return x
    single = x.squeeze(1) if x.dim() == 4 else x
    rows = _flatten_to_tokens(single).contiguous()
    made = torch.empty_like(rows)
    rows.new_empty(
        rows.size(0), dtype=torch.float32
    )  # the reciprocal deviations, dropped with the kernel's other results
    back = made.view(single.size(0), single.size(2), -1).transpose(1, 2).contiguous()
    return back.unsqueeze(1) if x.dim() == 4 else back


# ---- as transformers calls them ----------------------------------------------------------------------------


def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Tensor | None = None, **_: Any) -> Any:
    return CausalConv.apply(x, weight, bias)


def selective_scan_fn(
    u: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    D: Tensor | None = None,  # noqa: N803
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    *,
    return_last_state: bool = False,
    **_: Any,
) -> Any:
    return SelectiveScan.apply(u, dt, a, b, c, D, z, delta_bias, return_last_state)


def causal_conv1d_update(x: Tensor, *_: Any, **__: Any) -> Tensor:
    """One token: the state changes in place, the output is new."""
    return torch.empty_like(x)


def selective_state_update(_state: Tensor, x: Tensor, *_: Any, **__: Any) -> Tensor:
    """As above (mamba ops/triton/selective_state_update.py:189)."""
    return torch.empty_like(x)


def mamba_inner_fn(
    xz: Tensor,
    conv: Tensor,
    conv_bias: Tensor | None,
    x_proj: Tensor,
    dt_proj: Tensor,
    out_proj: Tensor,
    out_bias: Tensor | None,
    a: Tensor,
    _b: None = None,
    _c: None = None,
    d: Tensor | None = None,
    *,
    delta_bias: Tensor | None = None,
    **norms: Any,
) -> Any:
    weights = tuple(norms.get(f"{name}_rms_weight") for name in ("b", "c", "dt"))
    leaves = (conv, conv_bias, x_proj, dt_proj, out_proj, out_bias, a, d, delta_bias)
    return MambaInner.apply(xz, leaves[:2], leaves[2:6], leaves[6:], weights, *leaves)


_STAND_INS: dict[str, tuple[Callable[..., Any], str]] = {
    "causal_conv1d_fn": (causal_conv1d_fn, "causal-conv1d: causal_conv1d_fn"),
    "mamba_selective_scan": (selective_scan_fn, "mamba-ssm: selective_scan_fn"),
    "mamba_inner_fn": (mamba_inner_fn, "mamba-ssm: mamba_inner_fn"),
    "causal_conv1d_update": (causal_conv1d_update, "causal-conv1d: causal_conv1d_update"),
    "mamba_selective_state_update": (selective_state_update, "mamba-ssm: selective_state_update"),
}
_LOOP = "mamba_selective_scan"  # the function whose own version runs over tokens
_TORCH_INSTEAD = {
    "causal_conv1d_fn": "causal-conv1d", "mamba2_chunk_scan": "mamba-ssm", "torch_chunk_gated_delta_rule": "flash-linear-attention",
    "chunk_kimi_delta_attention": "flash-linear-attention",
}  # fmt: skip
"""Functions of other packages in whose place torch's own operations run in bounded time: the trace is of a
machine without them.
"""

_SPLIT = ("mamba2", "bamba")
"""Families whose Mamba 2 mixer is one kernel in training."""

_PER_TOKEN = {
    "rwkv": "its own CUDA kernel", "recurrent_gemma": "none: that is how it runs", "xlstm": "xlstm's kernels",
}  # fmt: skip
"""Families that run Python over the tokens and have no stand-in here → what would not."""


@contextmanager
def stand_ins(config: Mapping[str, Any], device: str) -> Iterator[dict[str, list[str]]]:
    """While this is entered a model of ``config`` runs with stand-ins. What it yields names those that were
    called, and packages that torch's own operations stand for. Raises InputError for a model that would run
    Python over the tokens.
    """
    kind = str(config.get("model_type"))
    if kind in _PER_TOKEN:
        reason = (
            "runs Python over the tokens one by one, and no trace waits for that; what would not: "
            f"{_PER_TOKEN[kind]}"
        )
        raise input_error("model_type", kind, reason, "memsheet train predicts it, if it knows the family")
    found = _modeling_module(kind)
    if kind in _SPLIT and device == "cuda":
        from memsheet.trace.split_scans import split_conv1d_scan_combined

        called = list[str]()
        whole = _note_kernel_use(
            split_conv1d_scan_combined, "mamba-ssm: mamba_split_conv1d_scan_combined", called
        )
        with apply_patches(
            [
                Patch(
                    found.__name__,
                    "mamba2_split_conv1d_scan_combined",
                    whole,
                    "torch's own operations would run",
                )
            ]
        ):
            yield {"stand_ins": called, "without": []}
        return
    if not hasattr(found, _LOOP):
        yield {
            "stand_ins": [],
            "without": [package for name, package in _TORCH_INSTEAD.items() if hasattr(found, name)],
        }
        return
    if device != "cuda":
        raise input_error(
            "device",
            device,
            "has no kernel for a selective scan, and Python over the tokens takes too long",
            "--device cuda",
        )
    used = list[str]()
    rows = [
        Patch(found.__name__, name, _note_kernel_use(*made, used), "Python would run", optional=name != _LOOP)
        for name, made in _STAND_INS.items()
    ]
    with apply_patches(rows):
        yield {"stand_ins": used, "without": []}


def kernel_stand_ins(config: Mapping[str, Any]) -> AbstractContextManager[object]:
    """As ``stand_ins`` on a card; nothing for code that runs over the tokens whatever is installed."""
    return nullcontext() if str(config.get("model_type")) in _PER_TOKEN else stand_ins(config, "cuda")


def _modeling_module(kind: str) -> Any:
    """The module of transformers that has a family's layers, where it is called as its family is."""
    name = f"transformers.models.{kind}.modeling_{kind}"
    try:
        return import_module(name) if find_spec(name) else None
    except ModuleNotFoundError:
        return None


def _note_kernel_use(function: Callable[..., Any], name: str, used: list[str]) -> Callable[..., Any]:
    @wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        if name not in used:
            used.append(name)
        return function(*args, **kwargs)

    return called
