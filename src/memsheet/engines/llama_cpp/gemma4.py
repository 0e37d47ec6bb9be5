"""Gemma 4 in llama.cpp's graph: heads of two sizes, values that are normalised and may be the keys', layers
that read an earlier layer's cache, a dense feed-forward with experts beside it, and vectors of every word for
every layer.

ggml-org/llama.cpp 0c1e5709 src/models/gemma4.cpp; src/llama-graph.cpp (build_attn over a cache with windows).
"""

from __future__ import annotations

from memsheet.engines.llama_cpp.build import GraphBuilder, Inputs
from memsheet.engines.llama_cpp.feed_forward import build_dense_ffn, build_experts, shared_sizes
from memsheet.engines.llama_cpp.ggml import Tensor
from memsheet.engines.llama_cpp.grouped import build_cached_attention, build_rotary_heads
from memsheet.plan.model import Attention, Block, Dense, ModelSpec, Moe

GEMMA_4 = frozenset({"gemma4_text", "gemma4_unified_text"})
Kept = dict[bool, tuple[Tensor, Tensor]]
"""The cache that the last layer with one of its own keeps, by whether it has a window."""


def build_layer_embeddings(
    b: GraphBuilder, spec: ModelSpec, x: Tensor, layers: int, matrix: int
) -> Tensor | None:
    """Every layer's vectors of the batch's words, with what the words' own embeddings are projected to; the
    host looks them up. ``matrix``: bytes of the projection.
    """
    wide, n = spec.embeddings.layer_elements, b.how.ubatch
    if not wide:
        return None
    each, device = wide // layers, b.device
    b.device = b.how.host
    found = b.make("get_rows", [b.weight(), b.input_tensor(n, of="i32")], wide, n)
    found = b.make("scale", [b.view(found, "3d", each, layers, n)], each, layers, n)
    b.graph.expand(found)
    b.device = b.how.layer_devices[0]
    made = b.make("scale", [b.times(matrix, x, wide, n)], wide, n)
    shaped = b.view(made, "f32", each, layers, n)
    shaped.rows = layers
    made = b.make("add", [b.norm(shaped, pinned=False), found], each, layers, n)
    made = b.make("scale", [made], each, layers, n)
    b.device = device
    return b.make("cont", [b.view(made, "permuted", each, n, layers)], each, n, layers)


def build_gemma_layer(
    b: GraphBuilder,
    block: Block,
    x: Tensor,
    inputs: Inputs,
    sizes: dict[str, int],
    kv: tuple[int, int],
    kept: Kept,
    beside: Tensor | None,
) -> Tensor:
    """One layer, over all positions. ``kept``: caches that later layers read; ``beside``: vectors of the
    words for all layers.
    """
    (mixer,) = block.mixers
    assert isinstance(mixer, Attention)
    hidden, n = block.hidden, b.how.ubatch
    mixed = _build_attention_of_layer(b, mixer, b.norm(x), inputs, sizes, kv, kept)
    middle = b.make("add", [b.norm(mixed), x], hidden, n)
    made = b.make("add", [b.norm(_build_both_ffns(b, block, middle, sizes), pinned=False), middle], hidden, n)
    if beside is not None:
        each = int(beside.layout[1])
        opened = b.make("unary", [b.times(sizes.get("per_layer_input_gate", 0), made, each, n)], each, n)
        opened = b.make("mul", [opened, b.view(beside, "slice", each, n)], each, n)
        more = b.norm(b.times(sizes.get("per_layer_projection", 0), opened, hidden, n))
        made = b.make("add", [made, more], hidden, n)
    return b.make("mul", [made, b.weight()], hidden, n)


def _build_attention_of_layer(
    b: GraphBuilder,
    m: Attention,
    x: Tensor,
    inputs: Inputs,
    sizes: dict[str, int],
    kv: tuple[int, int],
    kept: Kept,
) -> Tensor:
    n, d, windowed = b.how.ubatch, m.head_dim, bool(m.window)
    q = build_rotary_heads(b, m, b.times(sizes.get("q_proj", 0), x, d * m.heads, n), m.heads, inputs)
    if m.shares_kv:
        b.graph.expand(q)
    else:
        k = v = b.times(sizes.get("k_proj", 0), x, d * m.kv_heads, n)
        if not m.value_is_key:
            v = b.times(sizes.get("v_proj", 0), x, d * m.kv_heads, n)
        k = build_rotary_heads(b, m, k, m.kv_heads, inputs)
        v = b.unscaled_norm(b.view(v, "f32", d, m.kv_heads, n))
        for tensor in (q, k, v):
            b.graph.expand(tensor)
        kept[windowed] = (b.cache_tensor(kv[0]), b.cache_tensor(kv[1]))
        b.store(k, kept[windowed][0], inputs, 0, windowed=windowed)
        b.store(v, kept[windowed][1], inputs, 1, windowed=windowed)
    made = build_cached_attention(b, m, q, kept[windowed], inputs.masks[windowed])
    return b.times(sizes.get("o_proj", 0), made, int(x.layout[1]), n)


def _build_both_ffns(b: GraphBuilder, block: Block, x: Tensor, sizes: dict[str, int]) -> Tensor:
    """A dense feed-forward; where the layer has experts, their sum beside it, each with norms of its own."""
    ff, hidden, n = block.feed_forward, block.hidden, b.how.ubatch
    if isinstance(ff, Dense):
        return build_dense_ffn(b, ff, b.norm(x), sizes)
    assert isinstance(ff, Moe)
    assert ff.shared is not None
    one = b.norm(build_dense_ffn(b, ff.shared, b.norm(x), shared_sizes(sizes)))
    experts = b.norm(x)
    scaled = b.make("scale", [b.unscaled_norm(x)], hidden, n)
    routed = b.times(0, b.make("mul", [scaled, b.weight()], hidden, n), ff.experts, n)
    other = b.norm(build_experts(b, ff, experts, sizes, routed=routed, joined=True))
    return b.make("add", [one, other], hidden, n)
