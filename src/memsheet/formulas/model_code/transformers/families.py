"""Where the modeling code of a family differs from Llama's in what its layers allocate, as data (transformers
5.23).
"""

from __future__ import annotations

from enum import Enum

from memsheet.frozen import dataclass

LLAMA4, DELTA, XIELU = "llama4_text", "gated_delta_net", "xielu"
"""A family, a mixer and an activation that have code of their own."""
RING = "ring"
"""In ``RunConfig.options``: sequences are shared."""
EXCHANGED = "heads for positions"
"""In ``RunConfig.options``: sequences are shared, and attention is computed by heads."""
T5 = frozenset({"t5", "mt5"})
LAST, BRIDGE = "_last", "_bridge"
"""A stack's last layer, where gradients of what all layers share come first and stay; and what lies between
the stacks.
"""


class FusedQkvLayout(Enum):
    """How queries, keys and values come out of one projection."""

    SPLIT = "split"  # views of one split: their gradients are joined once
    # queries are a slice, keys and values picked by lists of indices, and repeated for groups of queries
    PICKED = "picked"
    SELECTED = "selected"  # one of three of every head: gradients as of slices
    SLICES = "slices"  # a slice each: every gradient is a full-size tensor of zeros around its part


class PartialRotary(Enum):
    """What becomes of the part of a head that rotary positions leave alone."""

    NONE = "none"  # the whole head is turned
    AT_ONCE = "at once"  # queries are turned and joined to their rest, then keys
    IN_TURN = "in turn"  # both are turned, then each is joined
    TOGETHER = "together"  # the same, and what was turned lives until both are joined
    TO_THE_END = "to the end"  # the same, and all parts live until attention is done


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTraits:
    """What a family's layer does in its own way."""

    joint: FusedQkvLayout = FusedQkvLayout.SPLIT
    rest: PartialRotary = PartialRotary.NONE
    own_tables: bool = False  # each layer repeats the rotary tables for itself
    table_buffer: bool = False  # from a buffer of the layer, for queries and keys each, in their dtype
    tables_each: bool = False  # rotary tables are made for each sequence, whose positions may differ
    wide_tables: bool = False  # the tables stay in fp32; what they widen is lowered again
    wide_rotary: bool = False  # queries and keys are turned in fp32
    rotary_kernel: bool = False  # beside the flash-attn package, whose kernel turns them in one operation
    wide_scores: bool = False  # queries and keys are raised to fp32 for their product
    wide_softmax: bool = True  # softmax is asked for in fp32
    lowered_softmax: bool = True  # what softmax made is cast to the dtype of the values or queries at once
    named_mix: bool = False  # what attention adds to the stream has a name to the layer's end
    # the model's loop names what a block returns, its probabilities too, until the next one has returned
    named_outputs: bool = False
    named_qkv: bool = True  # the joint projection of queries, keys and values goes by a name of its own
    transposed: bool = False  # linear layers are written out, with a transposed view of the weight
    batched_bias: bool = False  # scores with their linear bias come out of one product
    summed_bias: bool = (
        False  # the scores' linear bias is an fp32 sum, and the mask is filled in where it holds
    )
    drops_scores: bool = True  # attention drops probabilities
    scaled_in_place: bool = False  # the scores are
    always_masked: bool = False  # sdpa gets a mask, causal or not
    summed_in_place: bool = (
        False  # a parallel block adds one branch to the other in place, and drops of their sum
    )
    scaled_query: bool = False  # queries are scaled as they are made
    own_window: bool = False  # its layers cut the window from a buffer of their own; the model makes one mask
    both_masks: bool = False  # eager layers get a mask with a window and one without, whichever they take
    positions_each: bool = False  # learned positions are looked up for each sequence
    named_inner: bool = (
        False  # what the feed-forward's activation made goes by a name until the block returns
    )
    late_norms: bool = False  # queries and keys are normalised when positions have turned them
    scaled_positions: bool = False  # turned queries are multiplied with a number of their position
    branch_dropout: bool = False  # dropout where a branch joins the stream


_GPT = FamilyTraits(branch_dropout=True, named_qkv=False, named_mix=True)
HABITS: dict[str, FamilyTraits] = {
    "olmo": FamilyTraits(wide_tables=True),
    "qwen2_moe": FamilyTraits(both_masks=True),
    "olmo2": FamilyTraits(wide_tables=True),
    "olmo3": FamilyTraits(wide_tables=True),
    "seed_oss": FamilyTraits(branch_dropout=True),
    "ministral3": FamilyTraits(scaled_positions=True),
    "hunyuan_v1_dense": FamilyTraits(late_norms=True),
    "minimax_m2": FamilyTraits(rest=PartialRotary.IN_TURN),
    "hunyuan_v1_moe": FamilyTraits(late_norms=True),
    "flex_olmo": FamilyTraits(wide_tables=True),
    "phi": FamilyTraits(rest=PartialRotary.TO_THE_END, branch_dropout=True),
    "phi3": FamilyTraits(joint=FusedQkvLayout.SLICES, rest=PartialRotary.AT_ONCE, branch_dropout=True),
    "qwen": FamilyTraits(wide_tables=True, wide_rotary=True, rotary_kernel=True),
    "stablelm": FamilyTraits(rest=PartialRotary.TO_THE_END, branch_dropout=True),
    "nemotron": FamilyTraits(rest=PartialRotary.TOGETHER),
    "glm": FamilyTraits(own_tables=True, rest=PartialRotary.IN_TURN),
    "glm4": FamilyTraits(own_tables=True, rest=PartialRotary.IN_TURN),
    "glm4_moe": FamilyTraits(rest=PartialRotary.IN_TURN),
    "qwen3_next": FamilyTraits(rest=PartialRotary.IN_TURN),
    "qwen3_5_text": FamilyTraits(rest=PartialRotary.IN_TURN),
    "qwen3_5_moe_text": FamilyTraits(rest=PartialRotary.IN_TURN),
    "bamba": FamilyTraits(rest=PartialRotary.IN_TURN),
    "llama4_text": FamilyTraits(table_buffer=True, wide_softmax=False, lowered_softmax=False, named_mix=True),
    "ernie4_5_moe": FamilyTraits(own_tables=True, wide_tables=True, wide_rotary=True, drops_scores=False),
    "ernie4_5": FamilyTraits(own_tables=True, wide_tables=True, wide_rotary=True, drops_scores=False),
    "cohere": FamilyTraits(wide_rotary=True),
    "cohere2": FamilyTraits(wide_rotary=True),
    "starcoder2": FamilyTraits(branch_dropout=True),
    "gpt2": FamilyTraits(wide_softmax=False, branch_dropout=True, named_qkv=False, named_mix=True),
    "gpt_bigcode": _GPT,
    "gpt_neo": FamilyTraits(
        own_window=True, wide_scores=True, wide_softmax=False, branch_dropout=True, named_outputs=True, named_mix=True,
    ),
    "gptj": FamilyTraits(
        rest=PartialRotary.TO_THE_END, own_tables=True, table_buffer=True, wide_scores=True, wide_softmax=False,
        branch_dropout=True, named_outputs=True,
    ),
    "gpt_neox": FamilyTraits(rest=PartialRotary.IN_TURN, branch_dropout=True),
    "qwen2_vl": FamilyTraits(tables_each=True),
    "qwen2_5_vl": FamilyTraits(tables_each=True),
    "qwen3_vl": FamilyTraits(tables_each=True),
    "qwen3_vl_moe": FamilyTraits(tables_each=True),
    "falcon": FamilyTraits(
        joint=FusedQkvLayout.PICKED, transposed=True, wide_softmax=False, lowered_softmax=False, drops_scores=False, scaled_in_place=True, always_masked=True, summed_in_place=True,
        named_outputs=True,
    ),
    "bloom": FamilyTraits(joint=FusedQkvLayout.SELECTED, batched_bias=True, branch_dropout=True, named_outputs=True),
    "mpt": FamilyTraits(summed_bias=True, branch_dropout=True, named_outputs=True),
    "vit": FamilyTraits(branch_dropout=True),
    "bert": FamilyTraits(wide_softmax=False, lowered_softmax=False, named_inner=True, branch_dropout=True),
    "roberta": FamilyTraits(wide_softmax=False, lowered_softmax=False, named_inner=True, branch_dropout=True, positions_each=True),
    "opt": FamilyTraits(scaled_query=True, positions_each=True, branch_dropout=True),
}  # fmt: skip
VISION = {"qwen2_vl": "qwen2_vl_vision", "qwen2_5_vl": "qwen2_5_vl_vision"}
"""Families whose tower was compared with a step of the real code, and the kind of its layers."""
TOWER_START, TOWER_JOIN, TOWER_ASKED = "_start", "_join", "_asked"
"""Ends of kinds: of the two ends of a tower, and where adapters under checkpoints ask embeddings for a
gradient.
"""
CLASSES = "picture_classes"
"""The kind of head of a model that is shown pictures."""
LLAMA = FamilyTraits()


def of_tower(kind: str) -> bool:
    return (
        kind.removesuffix(TOWER_ASKED).removesuffix(TOWER_START).removesuffix(TOWER_JOIN) in VISION.values()
    )


def is_t5(kind: str) -> bool:
    return kind.removesuffix(LAST).removesuffix(BRIDGE) in T5


def family_traits(kind: str) -> FamilyTraits:
    return HABITS.get(kind, LLAMA)
