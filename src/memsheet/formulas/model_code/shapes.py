"""Axes of a decoder's tensors where one rank has them whole: what model codes without tensor parallelism
share.
"""

from __future__ import annotations

from memsheet.arith import Count
from memsheet.formulas.tapes.evaluate import with_products
from memsheet.plan.model import Attention, Block, Dense, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.plan.workload import PassShape
from memsheet.references import TRANSFORMER, formula


@formula(cites=TRANSFORMER, at="sections 3.2-3.3: heads of a width, a feed-forward layer of another")
def whole_axes(block: Block, plan: Plan, shape: PassShape) -> dict[str, Count]:
    """Sizes of a dense layer's axes; ``r``: the rank of its adapters."""
    at, ff = block.mixers[0], block.feed_forward
    assert isinstance(at, Attention)
    assert isinstance(ff, Dense)
    return with_products({
        "b": shape.sequences, "s": shape.tokens, "h": block.hidden, "a": at.heads, "k": at.kv_heads, "d": at.head_dim, "f": ff.intermediate,
        "r": plan.adapter.rank if plan.adapter else 0,
    })  # fmt: skip


@formula(cites=TRANSFORMER, at="section 3.4: logits of every position over the whole vocabulary")
def whole_ends(spec: ModelSpec, _: Plan, shape: PassShape) -> dict[str, Count]:
    """Sizes of the axes of embeddings, head and loss."""
    return {
        "b": shape.sequences,
        "s": shape.tokens,
        "h": spec.hidden,
        "V": spec.vocab,
        "V0": spec.vocab,
    }
