"""The table of a block's operators: every matrix once, and what a row of each takes."""

from __future__ import annotations

from functools import cache

import pytest

from bundled import written_names
from laws import every
from memsheet.catalog import find_model
from memsheet.formulas.operators.attention import mean_attended_keys
from memsheet.formulas.operators.blocks import INPUTS, LATENTS, block_operators
from memsheet.formulas.operators.operator import Cut, Kind
from memsheet.formulas.step_time.kernels import FUSED
from memsheet.plan.model import Attention, Block, ModelSpec, Role
from memsheet.readers.hf_config import read_hf_config

MULTIPLIED = (Role.LINEAR, Role.ROUTER, Role.EXPERT)
EVERY = frozenset({INPUTS, LATENTS})


@cache
def spec_of(name: str) -> ModelSpec:
    found = find_model(name)
    assert found is not None
    return read_hf_config(found["config"], name=name)


def blocks_of(name: str) -> tuple[Block, ...]:
    return tuple(dict.fromkeys(spec_of(name).blocks()))


@pytest.mark.parametrize("name", written_names())
@pytest.mark.parametrize("joined", [frozenset(), frozenset({INPUTS}), EVERY], ids=["none", "inputs", "all"])
def test_every_matrix_is_multiplied_once(name: str, joined: frozenset[str]) -> None:
    """By a product that reads its rows' width and writes its columns, two operations a pair."""
    for block in blocks_of(name):
        operators = block_operators(block, joined)
        found = sorted(weight.path for op in operators for weight in op.weights)
        assert found == sorted(
            weight.path for weight in block.weights if weight.role in MULTIPLIED and len(weight.shape) > 1
        )
        for op in operators:
            if op.weights:
                assert op.flops == 2 * op.reads * op.writes
        assert sum(op.flops for op in operators) == sum(op.flops for op in block_operators(block))


@every("name", written_names())
def test_matrices_that_are_joined_are_cut_alike(name: str) -> None:
    for block in blocks_of(name):
        for op in block_operators(block, EVERY):
            assert len({(weight.cut, weight.shape[1]) for weight in op.weights if len(op.weights) > 1}) <= 1


def described(name: str, number: int = 0) -> list[tuple[str, int, int, Cut]]:
    return [
        (op.weights[0].path.split(".")[-2] if op.weights else op.name, op.reads, op.writes, op.cut)
        for op in block_operators(blocks_of(name)[number], EVERY)
    ]


def test_operators_of_a_dense_layer() -> None:
    """Llama 3 8B: 32 heads and 8 of keys and values of 128, hidden 4096, a feed-forward layer of 14,336."""
    assert described("llama-3-8b") == [
        ("q_proj", 4096, 48 * 128, Cut.COLUMNS),
        ("o_proj", 4096, 4096, Cut.ROWS),
        ("rotation", 40 * 128, 40 * 128, Cut.INNER),
        ("store", 16 * 128, 16 * 128, Cut.INNER),
        ("scores", 48 * 128, 32 * 128, Cut.INNER),
        ("gate_proj", 4096, 2 * 14336, Cut.COLUMNS),
        ("down_proj", 14336, 4096, Cut.ROWS),
        ("gate", 2 * 14336, 14336, Cut.INNER),
        ("norm", 4096, 4096, Cut.NONE),
        ("norm", 4096, 4096, Cut.NONE),
        ("residual", 2 * 2 * 4096, 2 * 4096, Cut.NONE),
    ]


def test_operators_of_a_latent_layer_with_experts() -> None:
    """DeepSeek-V3: 128 heads of 128 + 64 and 128, latents of 1536 and 512; 256 experts of 2048 and a shared
    one of as many; queries' and keys' down-projections are one product.
    """
    assert described("deepseek-v3", 1) == [
        ("q_a_proj", 7168, 1536 + 512 + 64, Cut.NONE),
        ("q_b_proj", 1536, 128 * 192, Cut.COLUMNS),
        ("kv_b_proj", 512, 128 * 256, Cut.COLUMNS),
        ("o_proj", 128 * 128, 7168, Cut.ROWS),
        ("rotation", 129 * 64, 129 * 64, Cut.INNER),
        ("store", 512 + 64, 512 + 64, Cut.NONE),
        ("scores", 128 * (192 + 192 + 128), 128 * 128, Cut.INNER),
        ("gate", 7168, 256, Cut.NONE),
        ("experts", 7168, 2 * 2048, Cut.EXPERTS),
        ("experts", 2048, 7168, Cut.EXPERTS),
        ("dispatch", 3 * 7168, 3 * 7168, Cut.EXPERTS),
        ("gate", 2 * 2048, 2048, Cut.EXPERTS),
        ("gate_proj", 7168, 2 * 2048, Cut.COLUMNS),
        ("down_proj", 2048, 7168, Cut.ROWS),
        ("gate", 2 * 2048, 2048, Cut.INNER),
        ("norm", 7168, 7168, Cut.NONE),
        ("norm", 7168, 7168, Cut.NONE),
        ("residual", 2 * 2 * 7168, 2 * 7168, Cut.NONE),
    ]


def test_norms_of_queries_and_keys_are_operators() -> None:
    """Qwen3 0.6B: 16 heads and 8 of keys of 128 are more than its hidden 1024."""
    norms = [op.width for op in block_operators(blocks_of("qwen3-0.6b")[0]) if op.kind is Kind.NORM]
    assert norms == [24 * 128, 1024, 1024]


def test_bytes_of_one_kernel() -> None:
    """Of an element in 16 bits: a norm reads and writes it, backward reads it and the gradient and writes
    one; a gate reads two and writes one, backward reads three and writes two.
    """
    found = {kind.value: passes for kind, passes in FUSED.items()}
    assert found == {
        "norm": (4, 6), "rotation": (4, 4), "store": (4, 4), "gate": (6, 10), "activation": (4, 6), "dispatch": (12, 12), "residual": (6, 6),
    }  # fmt: skip


@pytest.mark.parametrize(("field", "limit"), [(None, None), ("window", 8), ("chunk", 8)])
@pytest.mark.parametrize(("before", "fresh"), [(0, 5), (0, 8), (0, 32), (5, 3), (5, 20), (16, 8)])
def test_keys_that_a_query_sees(field: str | None, limit: int | None, before: int, fresh: int) -> None:
    """The mean of every query's own count, to half a key: token t sees those before it, at most a window of
    them or those of its chunk.
    """
    more = {field: limit} if field else {}
    mixer = Attention(path="a", heads=1, kv_heads=1, head_dim=1, weights=(), **more)  # type: ignore[arg-type]
    seen = [
        (t % limit if field == "chunk" else min(t, limit)) + 0.5 * (field != "window" or t < limit) if limit else t + 0.5
        for t in range(before, before + fresh)
    ]  # fmt: skip
    assert mean_attended_keys(mixer, before, fresh) == pytest.approx(sum(seen) / fresh)
