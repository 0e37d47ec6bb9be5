"""Attention of grouped heads over a cache in llama.cpp's graph, and what gates it (src/llama-graph.cpp,
build_attn; src/models/*.cpp).
"""

from __future__ import annotations

from memsheet.engines.llama_cpp.build import GraphBuilder, Inputs
from memsheet.engines.llama_cpp.ggml import Tensor
from memsheet.plan.model import Attention


def build_grouped_attention(
    b: GraphBuilder,
    m: Attention,
    x: Tensor,
    inputs: Inputs,
    sizes: dict[str, int],
    kv: tuple[int, int],
    *,
    turned: bool = True,
) -> Tensor:
    """Attention and its output projection. ``turned``: queries and keys have positions."""
    n, d, heads, kept = b.how.ubatch, m.head_dim, m.heads, m.kv_heads
    biased = {w.path.split(".")[-2] for w in m.weights if w.path.endswith(".bias")}
    asked = 2 * heads if m.gated_output else heads
    q, k, v = (
        build_projection(b, name, x, width, sizes, biased)
        for name, width in (("q_proj", d * asked), ("k_proj", d * kept), ("v_proj", d * kept))
    )
    gate = b.view(q, "strided", d * heads, n) if m.gated_output else None
    if turned:
        q, k = build_rotary_heads(b, m, q, heads, inputs), build_rotary_heads(b, m, k, kept, inputs)
    else:
        q, k = b.view(q, "3d", d, heads, n), b.view(k, "3d", d, kept, n)
    if not b.how.fused:
        v = b.view(v, "3d", d, kept, n)
    for tensor in (q, k, v) if b.how.fused else (q, v, k):
        b.graph.expand(tensor)
    keys, values = b.cache_tensor(kv[0]), b.cache_tensor(kv[1])
    windowed = bool(m.window or m.chunk)
    b.store(k, keys, inputs, 0, windowed=windowed)
    b.store(v, values, inputs, 1, windowed=windowed)
    made = build_cached_attention(b, m, q, (keys, values), inputs.masks[windowed])
    hidden = int(x.layout[1])
    if gate is not None:
        opened = b.make("unary", [b.make("cont", [gate], d * heads, n)], d * heads, n)
        made = b.make("mul", [made, opened], d * heads, n)
    out = b.times(sizes.get("o_proj", 0), made, hidden, n)
    return b.make("add", [out, b.weight()], hidden, n) if "o_proj" in biased else out


def build_projection(
    b: GraphBuilder, name: str, x: Tensor, width: int, sizes: dict[str, int], biased: set[str]
) -> Tensor:
    found = b.times(sizes.get(name, 0), x, width, b.how.ubatch)
    return b.make("add", [found, b.weight()], width, b.how.ubatch) if name in biased else found


def build_rotary_heads(b: GraphBuilder, m: Attention, x: Tensor, heads: int, inputs: Inputs) -> Tensor:
    """Heads apart, normalised where the family does, and rotated."""
    shaped = b.view(x, "f32", m.head_dim, heads, b.how.ubatch)
    shaped.rows = b.how.ubatch
    if m.qk_norm is not None:
        shaped = b.norm(shaped)
    return b.make("rope", [shaped, inputs.positions], m.head_dim, heads, b.how.ubatch)


def build_cached_attention(
    b: GraphBuilder, m: Attention, q: Tensor, cache: tuple[Tensor, Tensor], mask: Tensor
) -> Tensor:
    """Attention of queries, (head, heads, tokens), over a layer's cache, expanded: fused, or scores of every
    head over every cell.
    """
    n, d, heads = b.how.ubatch, m.head_dim, m.heads
    asked, keys, values = b.view(q, "permuted", d, n, heads), *(b.view(held, "read") for held in cache)
    if b.how.flash:
        made = b.view(b.make("flash_attn", [asked, keys, values, mask], d, heads, n), "f32", d * heads, n)
    else:
        cells = int(mask.layout[1])
        scores = b.make("mul_mat_cells", [keys, asked], cells, n, heads)
        soft = b.make("soft_max", [scores, mask], cells, n, heads)
        summed = b.make("mul_mat_cells", [values, soft], d, n, heads)
        made = b.make("cont", [b.view(summed, "permuted", d, heads, n)], d * heads, n)
        made.device = b.how.host if b.how.host_cache else made.device  # pinned, where it is not fused
    b.graph.expand(made)
    return made
