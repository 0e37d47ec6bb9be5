"""How a layer of torchtitan's decoders attends: flash attention, or parts of it over the ranks that share a
sequence.
"""

from __future__ import annotations

from collections.abc import Callable

from memsheet.engines.torchtitan.layers.switches import ALL_GATHER, COMPILED, RING
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Chosen, Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.dtypes import FP32, INT64, DType

HEADS: Shape = ("b", "s", "a", "d")
BOTH: Shape = (2, *HEADS)


def without_storage(x: Tensor) -> Tensor:
    """What has gone, as an input of what was made of it."""
    return Tensor(None, x.shape, x.dtype, x.node, x.port)


def attention_of(how: RunConfig) -> Callable[[Recorder, list[Tensor], str, RunConfig], Tensor]:
    """What attends, of queries, keys and values in a list that is emptied."""
    if RING not in how.options:
        return _flash_attention
    return _compiled_ring_attention if COMPILED in how.options else _ring_attention


def _attention_kernel_outputs(r: Recorder, q: Tensor, path: str) -> tuple[Tensor, Tensor, Tensor]:
    """What an attention kernel makes: the output, a log-sum-exp for each head and position, the generator's
    state.
    """
    made = Chosen.ATTENTION
    out = r.result(path + "/context", q.shape, q.dtype, made)
    return (
        out,
        r.result(path + "/logsumexp", ("b", "a", "s"), FP32, made),
        r.result(path + "/rng", (2,), INT64, made),
    )


FLASH_SCRATCH: tuple[tuple[Shape, DType], ...] = ((HEADS, FP32), (("b", "a", "s"), FP32))


def _flash_attention(r: Recorder, parts: list[Tensor], path: str, how: RunConfig) -> Tensor:
    """Flash attention: q, k, v are laid out by position, and so is the result. Its backward adds into an fp32
    gradient of the queries and has a sum for each row (aten
    native/transformers/cuda/flash_attn/flash_api.cpp, mha_bwd).
    """
    q, k, v = parts
    parts.clear()
    out, *rest = _attention_kernel_outputs(r, q, path)
    return r.custom(path, (q, k, v), out, (q, k, v, out, *rest), scratch=FLASH_SCRATCH)


def _ring_attention(r: Recorder, parts: list[Tensor], path: str, how: RunConfig) -> Tensor:
    """Attention over the ranks that share a sequence (torch distributed/tensor/experimental/_attention.py,
    _templated_ring_attention): keys and values are made contiguous, joined, and gathered from all ranks or
    handed round; partial results are merged in fp32.
    """
    q, k, v = parts
    parts.clear()
    dtype, metas = q.dtype, [(t.shape, t.dtype) for t in (q, k, v)]
    moved: Shape = ("cp", *BOTH) if ALL_GATHER in how.options else BOTH
    own = [r.tensor(path + name, HEADS, dtype) for name in ("/k_contiguous", "/v_contiguous")]
    joined = r.tensor(path + "/kv", BOTH, dtype)
    arrived = r.tensor(path + "/kv_gathered", moved, dtype)
    del joined
    part = r.tensor(path + "/part", HEADS, dtype)
    merged = r.tensor(path + "/merged", HEADS, FP32)
    own.clear()
    other = r.tensor(path + "/part", HEADS, dtype)
    del part
    merged = _merge_ring_part(r, merged, path)
    out, *rest = _attention_kernel_outputs(r, q, path)
    del merged, arrived, other
    out = r.apply(out, (q, k, v), (q, k, v, out, *rest), lambda _: _ring_backward(r, metas, moved, path))
    return r.copy(out, HEADS, path + "/contiguous")  # parts of the first ranks are joined head by head


def _merge_ring_part(r: Recorder, sofar: Tensor, path: str) -> Tensor:
    """``sofar - weight * (sofar - part)`` with the part raised to fp32."""
    wide = r.tensor(path + "/part_fp32", HEADS, FP32)
    difference = r.tensor(path + "/difference", HEADS, FP32)
    scaled = r.tensor(path + "/scaled", HEADS, FP32)
    del difference
    result = r.tensor(path + "/merged", HEADS, FP32)
    del scaled, wide, sofar
    return result


def _ring_backward(
    r: Recorder, metas: list[tuple[Shape, DType]], moved: Shape, path: str
) -> list[Grad | None]:
    """Gradients of all parts are added in fp32; those of keys and values travel on with them, the next rank's
    arrive.
    """
    dtype = metas[0][1]
    sums = [r.grad(HEADS, FP32) for _ in metas]
    own = [r.grad(HEADS, dtype, path + name) for name in ("/k_contiguous", "/v_contiguous")]
    joined, arrived = r.grad(BOTH, dtype, path + "/kv"), r.grad(moved, dtype, path + "/kv_gathered")
    part = [r.grad(HEADS, dtype) for _ in metas]
    flat = [r.grad(HEADS, FP32, path + "/flat") for _ in range(2)]
    sent = r.grad(BOTH, FP32, path + "/kv_gradients")
    flat.clear()
    got = r.grad(BOTH, FP32, path + "/kv_gradients")
    own.clear()
    other = [r.grad(HEADS, dtype) for _ in metas]
    part.clear()
    del sent, sums[1:]
    last = [r.grad(BOTH, FP32, path + "/kv_gradients") for _ in range(2)]
    grads: list[Grad | None] = [r.grad(*metas[0])]
    sums.clear()
    grads += [r.grad(*meta) for meta in metas[1:]]
    last.clear()
    other.clear()
    del joined, arrived, got
    return grads


def _compiled_ring_attention(r: Recorder, parts: list[Tensor], path: str, how: RunConfig) -> Tensor:
    """The same as torch.compile writes it (the buffers of inductor's two functions for this layer, torch
    2.13.0): keys and values are made contiguous as they are repeated, and joined when the first part is
    done; parts are merged in one kernel, without a copy in fp32. Backward has what forward gathered. Of more
    than two ranks the compiler keeps every part until they are merged, and some sums in fp32 between, which
    is not counted.
    """
    dtype, metas = parts[0].dtype, [(t.shape, t.dtype) for t in parts]
    moved: Shape = ("cp", *BOTH) if ALL_GATHER in how.options else BOTH
    saved, inputs = tuple(parts) if r.saves else (), tuple(without_storage(t) for t in parts)
    first = r.tensor(path + "/part", HEADS, dtype)
    parts.clear()
    joined = r.tensor(path + "/kv", BOTH, dtype)
    arrived = r.tensor(path + "/kv_gathered", moved, dtype)
    del joined
    other = r.tensor(path + "/part", HEADS, dtype)
    gathered = [arrived] if r.saves else []
    del arrived
    out, *rest = _attention_kernel_outputs(r, inputs[0], path)
    del first, other
    return r.apply(
        out, inputs, (*saved, *gathered, out, *rest), lambda _: _compiled_ring_backward(r, metas, path)
    )


def _compiled_ring_backward(r: Recorder, metas: list[tuple[Shape, DType]], path: str) -> list[Grad | None]:
    """Gradients of a part's keys and values are raised to fp32 where they are joined, and what arrives is
    added to in its place; those of the queries are added where they are read.
    """
    part = _part_gradients(r, metas, path)
    sent = r.grad(BOTH, FP32, path + "/kv_gradients")
    got = r.grad(BOTH, FP32, path + "/kv_gradients")
    del part[1:]
    other = _part_gradients(r, metas, path)
    del sent
    last = r.grad(BOTH, FP32, path + "/kv_gradients")
    del got, other[1:]
    grads: list[Grad | None] = [r.grad(*metas[0])]
    part.clear()
    other.clear()
    return [*grads, *(Grad(last.storage, shape, low) for shape, low in metas[1:])]


def _part_gradients(r: Recorder, metas: list[tuple[Shape, DType]], path: str) -> list[Grad]:
    """What flash attention's backward makes of one part."""
    scratch = [r.grad(*one, f"{path}/scratch") for one in FLASH_SCRATCH]
    made = [r.grad(*meta) for meta in metas]
    scratch.clear()
    return made
