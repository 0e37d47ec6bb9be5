"""The gated delta net in llama.cpp's graph, as one fused operation: Qwen3-Next's, whose keys are repeated for
every value head, and that of Qwen3.5 and 3.6.

ggml-org/llama.cpp 0c1e5709 src/models/qwen3next.cpp, qwen35.cpp, qwen35moe.cpp (build_layer_attn_linear) and
delta-net-base.cpp (build_delta_net_fused, which all backends with the operation take;
build_delta_net_chunking is how it was written out before).
"""

from __future__ import annotations

from memsheet.arith import round_up
from memsheet.engines.llama_cpp.build import GraphBuilder, Inputs
from memsheet.engines.llama_cpp.ggml import Tensor
from memsheet.engines.llama_cpp.states import build_convolution, read_state_rows, write_state_rows
from memsheet.plan.dtypes import FP32
from memsheet.plan.model import LinearAttention
from memsheet.references import LLAMA_CPP, formula

JOINED = frozenset({"qwen3_next"})
"""Families whose two gates are one projection, and whose keys and queries are repeated."""
DELTA_NETS = JOINED | {"qwen3_5_text", "qwen3_5_moe_text"}


def build_delta_net(
    b: GraphBuilder,
    m: LinearAttention,
    x: Tensor,
    inputs: Inputs,
    sizes: dict[str, int],
    held: tuple[int, int],
    *,
    joined: bool,
) -> Tensor:
    """One layer's mixer, output projection included. ``held``: bytes of its two kinds of states."""
    n, heads, d, sequences = b.how.ubatch, m.value_heads, m.value_head_dim, b.how.sequences
    keys, values = m.key_heads * m.key_head_dim, heads * d
    whole = sizes.get("in_proj_qkvz", 0)
    mixed = b.times(
        sizes.get("in_proj_qkv", whole * (2 * keys + values) // (2 * (keys + values))),
        x,
        2 * keys + values,
        n,
    )
    z = b.times(sizes.get("in_proj_z", whole * values // (2 * (keys + values))), x, values, n)
    beta, gate = _build_gates(b, m, x, sizes, joined=joined)
    convolved, carried = b.cache_tensor(held[0]), b.cache_tensor(held[1])
    seen, channels = build_convolution(b, m, b.view(mixed, "turned"), convolved, inputs)
    state = read_state_rows(b, carried, inputs, d * d * heads)
    made = b.make("ssm_conv", [seen, b.weight()], channels, n // sequences, sequences)
    made = b.make("unary", [made], channels, n // sequences, sequences)
    q, k = (_build_unit_keys(b, m, made, joined=joined) for _ in range(2))
    value = b.view(made, "strided", d, heads, n)
    out = b.make(
        "gated_delta_net",
        [q, k, value, gate, beta, b.view(state, "4d")],
        values * n + d * d * heads * sequences,
    )
    write_state_rows(b, b.view(out, "state"), carried)
    found = b.view(out, "f32", d, heads, n)
    found.rows = n
    opened = b.make("unary", [b.view(z, "4d")], d, heads, n)
    found = b.make("mul", [b.norm(found), opened], d, heads, n)
    return b.view(b.times(sizes.get("out_proj", 0), b.view(found, "3d"), int(x.layout[1]), n), "2d")


def _build_gates(
    b: GraphBuilder, m: LinearAttention, x: Tensor, sizes: dict[str, int], *, joined: bool
) -> tuple[Tensor, Tensor]:
    """How much of a new value is written, and how much of the state stays."""
    n, heads = b.how.ubatch, m.value_heads
    if joined:
        both = b.times(sizes.get("in_proj_ba", 0), x, 2 * heads, n)
        write, stay = (b.make("cont", [b.view(both, "strided", heads, n)], heads, n) for _ in range(2))
    else:
        write = b.view(b.times(sizes.get("in_proj_b", 0), x, heads, n), "4d")
        stay = b.view(b.times(sizes.get("in_proj_a", 0), x, heads, n), "3d")
    beta = b.make("unary", [write], heads, n)
    stay = b.make("unary", [b.make("add", [stay, b.weight()], heads, n)], heads, n)
    return b.view(beta, "4d"), b.view(b.make("mul", [stay, b.weight()], heads, n), "4d")


def _build_unit_keys(b: GraphBuilder, m: LinearAttention, made: Tensor, *, joined: bool) -> Tensor:
    """Queries or keys of length one, in every value head where the family repeats them."""
    n, d = b.how.ubatch, m.key_head_dim
    found = b.make("l2_norm", [b.view(made, "strided", d, m.key_heads, n)], d, m.key_heads, n)
    if not joined or m.key_heads == m.value_heads:
        return found
    return b.view(b.make("repeat", [b.view(found, "4d")], d, m.value_heads, n), "4d")


CHUNK = 64
WIDE, SQUARE = 14, 10
"""Tensors of a head's width and of a chunk's square that a layer makes where the operation is written out."""


@formula(
    cites=LLAMA_CPP,
    at=(
        "delta-net-base.cpp build_delta_net_chunking: padded queries, keys and values, their products with "
        "gates, turned copies; masks, products and the triangular solve of every chunk; all at once"
    ),
    counts="int",
)
def written_out_bytes(m: LinearAttention, ubatch: int, sequences: int) -> int:
    """Bytes that the operation's parts have together in builds that write it out, at the most."""
    tokens = sequences * round_up(-(-ubatch // sequences), CHUNK)
    wide = max(m.key_head_dim, m.value_head_dim)
    return int(FP32.nbytes(tokens * m.value_heads * (WIDE * wide + SQUARE * CHUNK)))
