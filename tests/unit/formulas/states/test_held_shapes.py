"""Shares of tensors, worked by hand."""

from __future__ import annotations

import pytest

from memsheet.formulas.states.held_shapes import elements_of, held_shape
from memsheet.plan.model import Role, Weight
from memsheet.plan.plan import Mesh
from memsheet.readers.parts import fused_attention, separate_qkv_attention


def weight(shape: tuple[int, ...], role: Role = Role.LINEAR, **more: object) -> Weight:
    return Weight(path="w.weight", shape=shape, role=role, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "mesh", "held"),
    [
        (weight((4096, 1024), cut=0), Mesh(tp=4), (1024, 1024)),  # column-parallel: MEGATRON_TP section 3
        (weight((1024, 4096), cut=1), Mesh(tp=4), (1024, 1024)),  # row-parallel
        (weight((4096,), Role.NORM), Mesh(tp=8), (4096,)),  # norms are whole on every rank
        (weight((64, 1024), Role.ROUTER), Mesh(tp=8, ep=8), (64, 1024)),  # so are routers
        (
            weight((1024, 512), cut=0, units=8),
            Mesh(tp=16),
            (128, 512),
        ),  # 8 KV heads of 128 over 16 ranks: one head each, repeated
        (weight((1024, 512), cut=0, units=8), Mesh(tp=4), (256, 512)),
        (
            weight((8, 14336, 4096), Role.EXPERT, cut=1),
            Mesh(tp=4, ep=8),
            (1, 14336, 4096),
        ),  # experts: ep, not tp
        (weight((8, 14336, 4096), Role.EXPERT, cut=1), Mesh(tp=4, ep=4, etp=2), (2, 7168, 4096)),  # and etp
        (weight((8, 4096), Role.EXPERT_BIAS), Mesh(tp=4, ep=8), (1, 4096)),
        (weight((10, 7), cut=0), Mesh(tp=4), (3, 7)),  # uneven: the largest share
    ],
)
def test_a_rank_holds(given: Weight, mesh: Mesh, held: tuple[int, ...]) -> None:
    assert held_shape(given, mesh) == held


def test_a_vocabulary_is_padded_to_the_multiple_and_cut_over_ranks() -> None:
    """GPT-2's 50,257 tokens at multiple 256 (128 times tp 2, as Megatron pads) become 50,432: 25,216 a rank
    (megatron _vocab_size_with_padding).
    """
    table = weight((50257, 768), Role.EMBEDDING, cut=0, padded=True)
    assert held_shape(table, Mesh(tp=2), 256) == (25216, 768)
    assert held_shape(table, Mesh(tp=1), 128) == (50304, 768)
    assert held_shape(table, Mesh(tp=1)) == (50257, 768)


@pytest.mark.parametrize(("tp", "heads"), [(1, 144), (4, 36), (8, 18), (16, 10), (32, 6), (128, 3)])
def test_joined_keys_are_repeated_as_keys_alone_are(tp: int, heads: int) -> None:
    """128 heads of queries and 8 of keys: a rank of 16 has 8 of queries, and one each of keys and values."""
    at = fused_attention("attn", 64, 128, 8, 16)
    joined, apart = at.weights[0], separate_qkv_attention("attn", 64, 128, 8, 16).weights[:3]
    assert held_shape(joined, Mesh(tp=tp)) == (heads * 16, 64)
    assert held_shape(joined, Mesh(tp=tp))[0] == sum(held_shape(w, Mesh(tp=tp))[0] for w in apart)


def test_elements_of_a_scalar_is_one() -> None:
    assert elements_of(()) == 1
    assert elements_of((3, 5, 7)) == 105
