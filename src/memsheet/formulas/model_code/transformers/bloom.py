"""What Bloom's blocks do in their own way (transformers 5.23, modeling_bloom.py): scores with their linear
bias in one product, and a gelu with a backward of its own. Written over shape-only tensors.
"""

from __future__ import annotations

from memsheet.formulas.model_code.transformers.families import FamilyTraits
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Shape
from memsheet.plan.dtypes import FP32, DType
from memsheet.plan.model import Attention

HEADS: Shape = ("b", "a", "s", "d")
SCORES: Shape = ("b", "a", "s", "s")


def bloom_attention(
    r: Recorder, q: Tensor, k: Tensor, v: Tensor, at: Attention, how: RunConfig, _: FamilyTraits
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores, their sum with the mask and the probabilities all go by names until the end
    (modeling_bloom.py:237-300).
    """
    path = at.path
    # a cache hands keys and values back contiguous
    copied = ("q",) if how.kept_keys is k.dtype else ("q", "k", "v")
    q, k, v = (
        r.copy(x, HEADS, f"{path}/{name}") if how.several and name in copied else r.view(x, HEADS)
        for x, name in ((q, "q"), (k, "k"), (v, "v"))
    )
    scores = _alibi_scores(r, q, k, path)
    weights = r.add(scores, Tensor(None, ("b", 1, "s", "s"), how.stream), path + "/masked")
    wide = r.cast(weights, FP32, path + "/scores")
    probabilities = r.unary(wide, path + "/softmax", saves="output")
    del wide
    probabilities = r.cast(probabilities, q.dtype, path + "/probabilities")
    probabilities = r.dropout(probabilities, path + "/dropout", active=how.dropout)
    context = r.product(probabilities, v, HEADS, path + "/context")
    context = r.copy(context, ("b", "s", "a", "d"), path + "/context")
    return context, probabilities, weights, scores


def _alibi_scores(r: Recorder, q: Tensor, k: Tensor, path: str) -> Tensor:
    """The bias plus the product times a constant: each gradient is a product and then that times the
    constant.
    """
    saved = [x for x, other in ((q, k), (k, q)) if other.needs_grad]
    metas = [(x.shape, x.dtype, x.needs_grad) for x in (q, k)]

    def backward(_: Grad) -> list[Grad | None]:
        return [
            _scaled_product_grad(r, shape, dtype) if need else None for shape, dtype, need in reversed(metas)
        ][::-1]

    return r.apply(r.tensor(path + "/scores", SCORES, q.dtype), (q, k), saved, backward, terms=q.shape[-1])


def _scaled_product_grad(r: Recorder, shape: Shape, dtype: DType) -> Grad:
    product = r.grad(shape, dtype)
    result = r.grad(shape, dtype)
    del product
    return result


def bloom_gelu(r: Recorder, x: Tensor, path: str) -> Tensor:
    """GeLUFunction (modeling_bloom.py:111-160): saves its input, and works out the rest again, operation by
    operation.
    """
    shape, dtype = x.shape, x.dtype
    half = r.tensor(path, shape, dtype)
    inner = _tanh_of(r, shape, dtype)
    inner = _replace_grad(r, inner, shape, dtype)  # 1 + tanh
    out = r.tensor(path, shape, dtype)
    del half, inner

    def backward(_: Grad) -> list[Grad | None]:
        tanh = _tanh_of(r, shape, dtype)
        first = r.grad(shape, dtype)
        left = _replace_grad(r, r.grad(shape, dtype), shape, dtype)  # 1 - tanh²
        right = _replace_grad(r, _replace_grad(r, r.grad(shape, dtype), shape, dtype), shape, dtype)
        product = r.grad(shape, dtype)
        del left, right
        product = _replace_grad(r, product, shape, dtype)
        del first
        rest = _replace_grad(r, r.grad(shape, dtype), shape, dtype)
        slope = r.grad(shape, dtype)
        del product, rest, tanh
        return [_replace_grad(r, slope, shape, dtype)]

    return r.apply(out, (x,), (x,), backward)


def _tanh_of(r: Recorder, shape: Shape, dtype: DType) -> Grad:
    """``tanh(c * x * (1 + d * x * x))``, from left to right."""
    outer = r.grad(shape, dtype)
    square = _replace_grad(r, _replace_grad(r, r.grad(shape, dtype), shape, dtype), shape, dtype)
    inner = r.grad(shape, dtype)
    del outer, square
    return _replace_grad(r, inner, shape, dtype)


def _replace_grad(r: Recorder, before: Grad, shape: Shape, dtype: DType) -> Grad:
    """A new tensor made of one that is then let go of by who made it."""
    after = r.grad(shape, dtype)
    before.storage = None
    return after
