"""Multi-head latent attention as torchtitan's DeepSeek runs it (b5bcd76, models/deepseek_v3/model.py:88-148).

Axes besides those of the layers: ``n`` and ``p`` a head's elements without and with positions (``d`` both),
``v`` those of a value, ``y`` and ``z`` the ranks of the latents of queries and of keys and values.
"""

from __future__ import annotations

from memsheet.engines.torchtitan.layers.rotations import table_rows, turned_by
from memsheet.formulas.numerics import RunConfig
from memsheet.formulas.tapes.graph import Chosen, Grad, Tensor
from memsheet.formulas.tapes.recorder import Recorder
from memsheet.formulas.tapes.tape import Axis, Shape
from memsheet.frozen import replace
from memsheet.plan.dtypes import FP32, INT64
from memsheet.plan.model import LatentAttention

NAMES = {
    "q_proj": "wq", "q_a_proj": "wq_a", "q_a_layernorm": "q_norm", "q_b_proj": "wq_b", "kv_a_proj_with_mqa": "wkv_a", "kv_a_layernorm": "kv_norm",
    "kv_b_proj": "wkv_b", "o_proj": "wo",
}  # fmt: skip
PATH = "attention"
HEADS: Shape = ("b", "s", "a", "d")
VALUES: Shape = ("b", "s", "a", "v")
TURNED: Shape = ("b", "s", "a", "p")
KEYS_TURNED: Shape = ("b", "s", 1, "p")


def torchtitan_latent_attention(at: LatentAttention) -> LatentAttention:
    """Latent attention under torchtitan's module names."""
    weights = (
        replace(w, path=f"{PATH}.{NAMES[module.rpartition('.')[2]]}.{last}")
        for w in at.weights
        for module, _, last in (w.path.rpartition("."),)
    )
    return replace(at, path=PATH, weights=tuple(weights))


def latent_attention_forward(r: Recorder, x: Tensor, at: LatentAttention, how: RunConfig) -> Tensor:
    """Latents and their norms, rotations of what has positions, attention over whole heads, the output."""
    if at.q_lora_rank:
        queries = _latent_norm(
            r, _latent_product(r, x, "wq_a", "y", "h", how), "q_norm", "y", at.q_lora_rank, how
        )
        queries = _latent_product(r, queries, "wq_b", "a·d", "y", how)
    else:
        queries = _latent_product(r, x, "wq", "a·d", "h", how)
    still, turning = r.split(r.view(queries, HEADS), (("b", "s", "a", "n"), TURNED))
    del queries
    both = _latent_product(r, x, "wkv_a", "z+p", "h", how)
    latent, key_turning = r.split(both, (("b", "s", "z"), ("b", "s", "p")))
    del both
    turning, key_turning = _rotated_parts(r, turning, r.view(key_turning, KEYS_TURNED), how)
    q = r.cat((still, turning), HEADS, f"{PATH}/q")
    expanded = _latent_norm(r, latent, "kv_norm", "z", at.kv_lora_rank, how)
    expanded = r.view(_latent_product(r, expanded, "wkv_b", "a·(n+v)", "z", how), ("b", "s", "a", "n+v"))
    key_still, v = r.split(expanded, (("b", "s", "a", "n"), VALUES))
    k = r.cat((key_still, _for_all_heads(r, key_turning)), HEADS, f"{PATH}/k")
    out = _attended_values(r, q, k, v)
    del q, k, v
    made = _latent_product(r, r.view(out, ("b", "s", "a·v")), "wo", "h", "a·v", how)
    del still, turning, latent, key_turning, expanded, key_still, out
    return made


def _latent_product(r: Recorder, x: Tensor, name: str, out: Axis, width: Axis, how: RunConfig) -> Tensor:
    path = f"{PATH}.{name}"
    return r.linear(x, r.parameter(path, (out, width), how.parameters), out, path)


def _latent_norm(r: Recorder, x: Tensor, name: str, axis: Axis, size: int, how: RunConfig) -> Tensor:
    path, shape = f"{PATH}.{name}", (*x.shape[:-1], axis)
    weight = r.parameter(path, (size,), how.parameters)
    out = r.tensor(path + "/output", shape, x.dtype)
    rstd = r.tensor(path + "/rstd", (*x.shape[:-1], 1), FP32)
    return r.custom(path, (x, weight), out, (x, weight, rstd))


def _rotated_parts(r: Recorder, q: Tensor, k: Tensor, how: RunConfig) -> tuple[Tensor, Tensor]:
    """Complex numbers in fp32 (models/common/rope.py:248-258), lowered again."""
    dtype = q.dtype
    rows = table_rows(r, PATH, how, "p")
    wide = r.cast(q, FP32, f"{PATH}/q_fp32"), r.cast(k, FP32, f"{PATH}/k_fp32")
    turned = [turned_by(r, one, rows, f"{PATH}/{name}", how) for one, name in zip(wide, "qk", strict=True)]
    return r.cast(turned[0], dtype, f"{PATH}/q_rotary"), r.cast(turned[1], dtype, f"{PATH}/k_rotary")


def _for_all_heads(r: Recorder, k: Tensor) -> Tensor:
    """The one rotated key seen by every head; their gradients are added."""
    back, dtype = k.shape, k.dtype
    return r.apply(Tensor(k.storage, TURNED, dtype), (k,), (), lambda _: [r.grad(back, dtype)])


def _attended_values(r: Recorder, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention whose values have a width of their own, and lie in what made them."""
    out = r.result(f"{PATH}/context", VALUES, q.dtype, Chosen.ATTENTION)
    sums = r.result(f"{PATH}/logsumexp", ("b", "a", "s"), FP32, Chosen.ATTENTION)
    state = r.result(f"{PATH}/rng", (2,), INT64, Chosen.ATTENTION)
    metas = [(t.shape, t.dtype) for t in (q, k, v)]

    def backward(_: Grad) -> list[Grad | None]:
        scratch = [r.grad(HEADS, FP32), r.grad(("b", "a", "s"), FP32)]
        grads: list[Grad | None] = [r.grad(*meta) for meta in metas]
        del scratch
        return grads

    return r.apply(out, (q, k, v), (q, k, v, out, sums, state), backward)
