"""Nemotron-H and Nemotron 3 in llama.cpp's graph: layers of one part each, Mamba-2, attention without
positions, or a feed-forward, whose experts may see a narrower vector than the layer.

ggml-org/llama.cpp 0c1e5709 src/models/nemotron-h.cpp.
"""

from __future__ import annotations

from memsheet.engines.llama_cpp.build import GraphBuilder, Inputs
from memsheet.engines.llama_cpp.feed_forward import build_dense_ffn, build_experts, shared_sizes
from memsheet.engines.llama_cpp.ggml import Tensor
from memsheet.engines.llama_cpp.grouped import build_grouped_attention
from memsheet.engines.llama_cpp.mamba2 import build_mamba2
from memsheet.plan.model import Attention, Block, Dense, Moe, StateSpace

NEMOTRONS = frozenset({"nemotron_h"})


def build_nemotron_layer(
    b: GraphBuilder, block: Block, x: Tensor, inputs: Inputs, sizes: dict[str, int], kv: tuple[int, int]
) -> Tensor:
    """One layer, over all positions."""
    normed, ff = b.norm(x), block.feed_forward
    match block.mixers:
        case (StateSpace() as mixer,):
            made = build_mamba2(b, mixer, normed, inputs, sizes, kv)
        case (Attention() as mixer,):
            made = build_grouped_attention(b, mixer, normed, inputs, sizes, kv, turned=False)
        case _ if isinstance(ff, Moe):
            made = _build_narrow_experts(b, ff, normed, sizes)
        case _:
            assert isinstance(ff, Dense)
            made = build_dense_ffn(b, ff, normed, sizes)
    return b.make("add", [made, x], block.hidden, b.how.ubatch)


def _build_narrow_experts(b: GraphBuilder, ff: Moe, x: Tensor, sizes: dict[str, int]) -> Tensor:
    """Experts over a projection of the layer's input where there is one, and one that sees the whole."""
    hidden, n = int(x.layout[1]), b.how.ubatch
    width = next(w.shape[-1] for w in ff.routed if w.path.endswith("up_proj"))
    seen = x if width == hidden else b.times(sizes.get("fc1_latent_proj", 0), x, width, n)
    routed = b.times(0, x, ff.experts, n)
    found = build_experts(b, ff, seen, sizes, routed=routed, biased=True)
    if width != hidden:
        found = b.times(sizes.get("fc2_latent_proj", 0), found, hidden, n)
    if ff.shared is None:
        return found
    return b.make("add", [found, build_dense_ffn(b, ff.shared, x, shared_sizes(sizes))], hidden, n)
