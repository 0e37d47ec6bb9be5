"""What tapes say that code moves and multiplies: equal to the table, and to books."""

from __future__ import annotations

from functools import cache
from math import prod

import pytest

from bundled import written_names
from laws import every
from memsheet.catalog import find_device, find_model
from memsheet.errors import InputError
from memsheet.formulas.activations import run_config_of
from memsheet.formulas.model_code.transformers.blocks import unmodelled_block_reason
from memsheet.formulas.model_code.transformers.chosen_kernels import block_numerics
from memsheet.formulas.model_code.transformers.code import block_axes
from memsheet.formulas.model_code.transformers.feed_forward import ACTIVATIONS
from memsheet.formulas.numerics import AttentionKernel
from memsheet.formulas.operators.blocks import block_operators
from memsheet.formulas.operators.operator import Kind
from memsheet.formulas.operators.taped import taped_activation_passes, taped_norm_passes
from memsheet.formulas.recordings import record_block
from memsheet.formulas.step_time.kernels import FUSED
from memsheet.plan.device import cluster_of
from memsheet.plan.engine_registry import engine_of
from memsheet.plan.model import Attention, Dense, LatentAttention, ModelSpec, NormKind
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request

CARD = cluster_of(find_device("H200"), 1)
SEQUENCES, LENGTH = 2, 64
EVERY_EXPERT = frozenset({"llama4_text"})
"""Families whose code multiplies every token with every expert."""


@cache
def spec_of(name: str) -> ModelSpec:
    found = find_model(name)
    assert found is not None
    return read_hf_config(found["config"], name=name)


def attending(name: str) -> bool:
    """Whether every layer of a model attends, and its code is written over tapes."""
    return all(
        all(isinstance(mixer, Attention | LatentAttention) for mixer in block.mixers)
        and not any(isinstance(mixer, LatentAttention) and mixer.index_dim for mixer in block.mixers)
        and block.kind not in EVERY_EXPERT
        and unmodelled_block_reason(block) is None
        and (not isinstance(block.feed_forward, Dense) or block.feed_forward.activation in ACTIVATIONS)
        for block in spec_of(name).blocks()
    )


@every("name", [name for name in written_names() if attending(name)])
def test_a_tape_multiplies_what_the_table_says(name: str) -> None:
    """Recorded products of transformers' code, of every family, in flops; of scores that are written too."""
    spec = spec_of(name)
    asked = {"task": "train", "engine": "transformers", "seq_len": LENGTH, "microbatch": SEQUENCES}
    try:
        plan = resolve_request(asked, spec, CARD).plan
    except InputError:
        pytest.skip("is not trained")
    for block in dict.fromkeys(spec.blocks()):
        how = block_numerics(block, plan, plan.training.shape, run_config_of(plan, engine_of(plan)))
        axes = block_axes(block, plan, plan.training.shape)
        found = sum(
            2 * prod(axis if isinstance(axis, int) else axes[axis] for axis in (*one.writes[0][0], one.terms))
            for one in record_block(block, how).forward_operations
            if one.terms is not None
        )
        rows = SEQUENCES * LENGTH
        table = {Kind.PRODUCT: rows, Kind.ROUTER: rows}
        if how.attention in (AttentionKernel.EAGER, AttentionKernel.MATH):
            table[Kind.SCORES] = rows * LENGTH
        assert found == sum(table.get(op.kind, 0) * op.flops for op in block_operators(block))


def test_a_norm_that_is_written_out() -> None:
    """LlamaRMSNorm of 16 bits: cast 2 + 4, square 4 + 4, mean 4, product 4 + 4, cast 4 + 2, weight 2 + 2: 36.
    Backward: the weight's gradient 4 + 4 and its sum 2, cast 2 + 4; of the product 8 + 8 and its sum 4; the
    mean's 4; the square's, through two temporaries, 16 + 12; a sum 8 + 4; cast 4 + 2: 86.
    """
    assert taped_norm_passes(None, NormKind.RMS) == (36, 86)


@pytest.mark.parametrize("kind", [NormKind.LAYER, NormKind.LAYER_NO_AFFINE])
@pytest.mark.parametrize("layers", [None, "megatron", "llm_foundry"])
def test_a_norm_of_one_kernel(layers: str | None, kind: NormKind) -> None:
    assert taped_norm_passes(layers, kind) == FUSED[Kind.NORM] == (4, 6)


@every("kind", list(NormKind))
@every("layers", [None, "torchtitan", "torchtune", "litgpt", "megatron", "internevo"])
def test_no_norm_moves_less_than_one_kernel(layers: str | None, kind: NormKind) -> None:
    forward, backward = taped_norm_passes(layers, kind)
    assert forward >= FUSED[Kind.NORM][0]
    assert backward >= FUSED[Kind.NORM][1]
    assert taped_norm_passes(layers, kind, trains=False)[1] <= backward


def test_activations_that_are_written_out() -> None:
    """silu(gate) * up: 2 + 2, then 4 + 2; backward 4 + 2 and 4 + 4. gelu alone one kernel: 4 and 6. The first
    gelu of GPT-2 eight operations: three scales 4 each, a cube 4, a sum 6, tanh and one more 4 each, a
    product 6.
    """
    assert taped_activation_passes("silu", gated=True) == (10, 16)
    assert taped_activation_passes("gelu", gated=False) == (4, 6)
    assert taped_activation_passes("gelu_new", gated=False)[0] == 3 * 4 + 4 + 6 + 2 * 4 + 6
