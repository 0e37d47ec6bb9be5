"""Latent attention in llama.cpp's graph: queries taken into the latent's space, one key head that is the
latent with its rotary part.

ggml-org/llama.cpp 07bede6a src/models/deepseek2.cpp. The cache holds keys alone; values are the same rows
without their rotary part.
"""

from __future__ import annotations

from memsheet.engines.llama_cpp.build import GraphBuilder, Inputs
from memsheet.engines.llama_cpp.ggml import Tensor
from memsheet.plan.model import LatentAttention


def latent_attention(
    b: GraphBuilder, m: LatentAttention, x: Tensor, inputs: Inputs, sizes: dict[str, int], kv: tuple[int, int]
) -> Tensor:
    """One layer's attention, output projection included."""
    n, heads, lora, rope = b.how.ubatch, m.heads, m.kv_lora_rank, m.qk_rope_head_dim
    q = build_latent_queries(b, m, x, sizes)
    joined = b.times(sizes.get("kv_a_proj_with_mqa", 0), x, lora + rope, n)
    q_turned = b.make("rope", [b.view(q, "strided", rope, heads, n), inputs.positions], rope, heads, n)
    k_turned = b.make("rope", [b.view(joined, "strided", rope, 1, n), inputs.positions], rope, 1, n)
    latent = b.norm(b.view(joined, "strided", lora, n))
    absorbed = b.make(
        "mul_mat",
        [b.weight(sizes.get("kv_b_proj", 0)), b.view(q, "permuted", m.qk_nope_head_dim, n, heads)],
        lora,
        n,
        heads,
    )
    query = b.make("concat", [b.view(absorbed, "permuted", lora, heads, n), q_turned], lora + rope, heads, n)
    latent = b.view(latent, "f32", lora, 1, n)
    key = b.make("concat", [latent, k_turned], lora + rope, 1, n)
    for tensor in (query, latent, key):
        b.graph.expand(tensor)
    cache = b.cache_tensor(kv[0])
    b.store(key, cache, inputs, 0)
    made = _over_latents(b, m, query, b.view(cache, "read"), inputs.masks[False], sizes)
    b.graph.expand(made)
    return b.times(sizes.get("o_proj", 0), made, int(x.layout[1]), n)


def build_latent_queries(b: GraphBuilder, m: LatentAttention, x: Tensor, sizes: dict[str, int]) -> Tensor:
    """Queries of all heads, by way of a latent of their own where there is one."""
    n, width = b.how.ubatch, m.heads * (m.qk_nope_head_dim + m.qk_rope_head_dim)
    if m.q_lora_rank is None:
        return b.times(sizes.get("q_proj", 0), x, width, n)
    low = b.norm(b.times(sizes.get("q_a_proj", 0), x, m.q_lora_rank, n))
    return b.times(sizes.get("q_b_proj", 0), low, width, n)


def _over_latents(
    b: GraphBuilder, m: LatentAttention, query: Tensor, cache: Tensor, mask: Tensor, sizes: dict[str, int]
) -> Tensor:
    """Attention in the latent's space, then every head's own values."""
    n, heads, lora = b.how.ubatch, m.heads, m.kv_lora_rank
    if b.how.flash:
        found = b.make("flash_attn", [b.view(query, "permuted"), cache, mask], lora, heads, n)
        found = b.view(found, "permuted", lora, n, heads)
    else:
        cells = int(mask.layout[1])
        scores = b.make("mul_mat_cells", [cache, b.view(query, "permuted")], cells, n, heads)
        values = b.make("cont", [b.view(cache, "turned")], cells, lora)
        found = b.make(
            "mul_mat_cells", [values, b.make("soft_max", [scores, mask], cells, n, heads)], lora, n, heads
        )
    own = b.make("mul_mat", [b.weight(sizes.get("kv_b_proj", 0)), found], m.v_head_dim, n, heads)
    return b.make("cont", [b.view(own, "permuted", m.v_head_dim, heads, n)], m.v_head_dim * heads, n)
