"""Latent attention in ik_llama.cpp's graph (-mla 1 to 3): a batch over keys and values that are unpacked for
it, or in the latent's space.

ikawrakow/ik_llama.cpp 8db70379 src/llama.cpp:14770, build_deepseek2. The cache holds latents with their
rotary part alone.
"""

from __future__ import annotations

from memsheet.arith import Count, at_least, where
from memsheet.engines.llama_cpp.build import GraphBuilder, Inputs
from memsheet.engines.llama_cpp.ggml import Tensor
from memsheet.engines.llama_cpp.latent import build_latent_queries
from memsheet.errors import input_error
from memsheet.plan.dtypes import FP16, FP32
from memsheet.plan.model import LatentAttention
from memsheet.references import LLAMA_CPP, formula
from memsheet.units import MIB

UNPACKED = 2
"""The first mode in which a long batch is read over unpacked keys and values; in the first none is."""
LONG = 128
"""Tokens from which a batch is long (llama.cpp:14805, pp_opt)."""


def fork_attention(
    b: GraphBuilder, m: LatentAttention, x: Tensor, inputs: Inputs, sizes: dict[str, int], kv: tuple[int, int]
) -> Tensor:
    """One layer's attention, output projection included.

    Raises InputError for the ways that were not written out: without -mla, or without flash attention.
    """
    if not b.how.mla_mode or not b.how.flash:
        way = "without flash attention" if b.how.mla_mode else "without --mla-mode"
        raise input_error(
            "engine",
            "llama.cpp",
            f"has no list of operations here for latent attention in the fork {way}",
            "--mla-mode 3",
        )
    n, heads, lora, rope = b.how.ubatch, m.heads, m.kv_lora_rank, m.qk_rope_head_dim
    q = build_latent_queries(b, m, x, sizes)
    turned = b.make("rope", [b.view(q, "strided", rope, heads, n), inputs.positions], rope, heads, n)
    joined = b.times(sizes.get("kv_a_proj_with_mqa", 0), x, lora + rope, n)
    k_turned = b.make("rope", [b.view(joined, "strided", rope, 1, n), inputs.positions], rope, 1, n)
    latent = b.norm(b.view(joined, "strided", lora, n))
    cache = b.cache_tensor(kv[0])
    b.store(b.make("concat", [latent, b.view(k_turned, "permuted")], lora + rope, n), cache, inputs, 0)
    long = b.how.mla_mode >= UNPACKED and n >= LONG
    made = (_build_unpacked_attention if long else _build_absorbed_attention)(
        b, m, (q, turned), cache, inputs.masks[False], sizes
    )
    b.graph.expand(made)
    return b.times(sizes.get("o_proj", 0), made, int(x.layout[1]), n)


@formula(
    cites=LLAMA_CPP,
    at=(
        "ik_llama.cpp 8db70379 src/llama.cpp:14921: heads are halved until their fp32 keys and values are "
        "as small as -amb"
    ),
    counts="int",
)
def heads_at_once(m: LatentAttention, cells: int, limit_mib: int) -> int:
    """Heads whose keys and values are unpacked together; all of them where nobody sets a limit."""
    heads, size = m.heads, FP32.nbytes(m.heads * (m.qk_nope_head_dim + m.v_head_dim) * cells) // MIB
    while limit_mib and heads % 2 == 0 and size > limit_mib:
        heads, size = heads // 2, size // 2
    return heads


@formula(
    cites=LLAMA_CPP,
    at=(
        "ik_llama.cpp 8db70379 src/llama.cpp:14921: keys and values of all heads; high: without a limit "
        "their parts too"
    ),
)
def cell_bytes(m: LatentAttention, mla_mode: int, ubatch: Count, limit_mib: int) -> Count:
    """Bytes that the compute buffer grows by with each cell of a context, at the most; a limit bounds what is
    fp32.
    """
    if mla_mode < UNPACKED:
        return 0
    nope, rope, v = m.qk_nope_head_dim, m.qk_rope_head_dim, m.v_head_dim
    parts = 0 if limit_mib else FP16.nbytes(nope + rope) + FP32.nbytes(nope + v)
    return where(at_least(ubatch, LONG), m.heads * (FP16.nbytes(nope + rope + v) + parts), 0)


Queries = tuple[Tensor, Tensor]


def _build_unpacked_attention(
    b: GraphBuilder, m: LatentAttention, q: Queries, cache: Tensor, mask: Tensor, sizes: dict[str, int]
) -> Tensor:
    """Some heads after others. Their keys and values are all made first: what reads them is added to the
    graph after the last.
    """
    n, cells, nope, rope, v = b.how.ubatch, b.how.cells, m.qk_nope_head_dim, m.qk_rope_head_dim, m.v_head_dim
    heads = heads_at_once(m, cells, b.how.attn_max_batch)
    rows = b.view(cache, "strided", rope, cells)
    rows = b.make("cpy", [rows], rope, cells, of="f16") if b.how.quantized_cache else rows
    repeated = b.make("repeat", [rows], rope, cells, heads, of="f16")
    query = b.view(
        b.make("concat", [b.view(q[0], "strided", nope, m.heads, n), q[1]], nope + rope, m.heads, n),
        "permuted",
    )
    b.graph.expand(query)
    parts: list[Tensor] = []
    for _ in range(m.heads // heads):
        both = b.make(
            "mul_mat", [b.weight(sizes.get("kv_b_proj", 0)), b.view(cache, "read")], heads * (nope + v), cells
        )
        values = b.make("cpy", [b.view(both, "values")], v, cells, heads, of="f16")
        keys = b.make("cpy", [b.view(both, "keys")], nope, cells, heads, of="f16")
        for tensor in (keys, values):
            b.graph.expand(tensor)
        keys = b.make("concat", [keys, repeated], nope + rope, cells, heads, of="f16")
        b.graph.expand(keys)
        parts.append(
            b.view(
                b.make("flash_attn", [b.view(query, "part"), keys, values, mask], v, heads, n),
                "f32",
                v * heads,
                n,
            )
        )
    made = parts[0]
    for number, part in enumerate(parts[1:], start=2):
        made = b.make("concat", [made, part], v * heads * number, n)
    return made


def _build_absorbed_attention(
    b: GraphBuilder, m: LatentAttention, q: Queries, cache: Tensor, mask: Tensor, sizes: dict[str, int]
) -> Tensor:
    """Queries taken into the latent's space, and what attention makes there taken back out of it."""
    n, heads, lora, rope = b.how.ubatch, m.heads, m.kv_lora_rank, m.qk_rope_head_dim
    matrix = sizes.get("kv_b_proj", 0) // 2
    taken = b.make(
        "mul_mat", [b.weight(matrix), b.view(q[0], "strided", m.qk_nope_head_dim, n, heads)], lora, n, heads
    )
    query = b.make("concat", [taken, b.view(q[1], "permuted")], lora + rope, n, heads)
    found = b.make(
        "flash_attn", [query, b.view(cache, "read"), b.view(cache, "latents"), mask], lora, heads, n
    )
    own = b.make(
        "mul_mat", [b.weight(matrix), b.view(found, "permuted", lora, n, heads)], m.v_head_dim, n, heads
    )
    return b.view(
        b.make("cont", [b.view(own, "permuted", m.v_head_dim, heads, n)], m.v_head_dim * heads, n),
        "f32",
        m.v_head_dim * heads,
        n,
    )
