"""Muon under Megatron-Core: one moment of matrices, whole matrices dealt to ranks, Newton-Schulz by hand."""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from memsheet.formulas.sharding.whole_matrices import (
    largest_dealt_elements,
    newton_schulz_bytes,
    whole_sides,
)
from memsheet.sheet import Bytes, Component, Instant, Sheet

TINY: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 4, "tie_word_embeddings": False, "max_position_embeddings": 4096,
}  # fmt: skip
SPARSE: dict[str, Any] = {
    "model_type": "mixtral", "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "tie_word_embeddings": False,
}  # fmt: skip
MATRICES = 8 * (512 * 256 + 256 * 256 + 1024 * 256 + 256 * 512)
REST = 2 * 1024 * 256 + 17 * 256


def sheet(config: dict[str, Any] = TINY, **options: Any) -> Sheet:
    asked = {"engine": "megatron", "seq_len": 512, "optimizer": "muon", **options}
    return memsheet.train(config, **asked).sheets[0]


def kept(found: Sheet, component: Component) -> int:
    return int(found.of(component, instant=Instant.LOAD).value)


def row(found: Sheet, component: Component, path: str, instant: Instant = Instant.LOAD) -> Bytes:
    (item,) = (i for i in found.items if i.component is component and i.path == path)
    return item.at[instant]


def test_matrices_have_one_moment_and_the_rest_two() -> None:
    alone = sheet()
    assert kept(alone, Component.OPTIMIZER_STATES) == 4 * MATRICES + 8 * REST
    assert kept(alone, Component.MASTER_WEIGHTS) == 4 * (MATRICES + REST)
    adam = sheet(optimizer="adamw")
    assert kept(adam, Component.OPTIMIZER_STATES) == 8 * (MATRICES + REST)


def test_each_experts_matrices_are_orthogonalized_too_and_the_routers() -> None:
    found, adam = sheet(SPARSE), sheet(SPARSE, optimizer="adamw")
    layer = 4 * 256 * 256 + 8 * 3 * 256 * 128 + 8 * 256
    less = kept(adam, Component.OPTIMIZER_STATES) - kept(found, Component.OPTIMIZER_STATES)
    assert less == 4 * 2 * layer


def test_whole_matrices_that_divide_evenly_cost_no_rank_more() -> None:
    """Eight layers of four matrices: each of four ranks has two of every kind."""
    found = sheet(dp_shard=4)
    assert row(found, Component.OPTIMIZER_STATES, "layer_wise/uneven") == Bytes.exact(0)
    assert row(found, Component.GRADIENTS, "layer_wise/padding") == Bytes.exact(0)
    assert kept(found, Component.OPTIMIZER_STATES) == 4 * MATRICES // 4 + 8 * REST // 4


def test_more_ranks_than_matrices_pad_the_buffer_to_the_largest_of_them() -> None:
    """64 ranks, 32 matrices: a shard is as large as fc1, 1024 x 256, for every rank."""
    found, even = sheet(dp_shard=64), MATRICES // 64
    more = 1024 * 256 - even
    assert row(found, Component.OPTIMIZER_STATES, "layer_wise/uneven").value == 8 * more
    assert row(found, Component.PARAMETERS, "layer_wise/padding").value == 2 * 64 * more
    assert row(found, Component.GRADIENTS, "layer_wise/padding").value == 4 * 64 * more


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 50])
def test_a_rank_is_dealt_an_even_share_at_least_and_the_largest_matrix_at_least(ranks: int) -> None:
    matrices = [(512, 256, 8), (256, 256, 8), (1024, 256, 8), (256, 512, 8)]
    dealt = largest_dealt_elements(matrices, ranks)
    assert dealt >= max(MATRICES / ranks, 1024 * 256)
    assert dealt <= max(1.3 * MATRICES / ranks, MATRICES / ranks + 1024 * 256)


def test_orthogonalizing_takes_the_matrix_three_times_in_fp32_or_its_gathered_parts() -> None:
    """Alone: the result and two multiples of it. Of two ranks: parts and whole in fp32, then two iterates and
    two Gram matrices in bf16, or the result beside the last iterate.
    """
    short, long = 256, 1024
    assert newton_schulz_bytes(short, long, 1) == 12 * short * long
    iterates, back = 2 * (2 * short * long + 2 * short * short), 6 * short * long
    assert newton_schulz_bytes(short, long, 2) == 8 * short * long + max(iterates, back)
    assert row(sheet(), Component.TEMPORARIES, "optimizer", Instant.OPTIMIZER_STEP) == Bytes(
        12 * 1024 * 256, 12 * 1024 * 256, 18 * 1024 * 256
    )
    assert whole_sides("linear_fc1", 512, 256, 2) == (256, 1024)
    assert whole_sides("linear_fc2", 256, 256, 2) == (256, 512)
    assert whole_sides("router", 8, 256, 2) == (8, 256)


def test_a_release_that_deals_everything_may_give_one_rank_the_embeddings(tmp_path: Any) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"engine_version": "core 0.16", "optimizer": {"name": "muon"}}', encoding="utf-8")
    old, new = sheet(plan=str(file), dp_shard=4), sheet(dp_shard=4)
    path = "layer_wise/uneven"
    assert row(old, Component.OPTIMIZER_STATES, path) == Bytes(0, 0, 12 * 1024 * 256)
    assert row(new, Component.OPTIMIZER_STATES, path).high == 0


def test_tensor_parallel_shards_add_up() -> None:
    whole, halves = sheet(), sheet(tp=2)
    assert (
        2 * kept(halves, Component.OPTIMIZER_STATES) == kept(whole, Component.OPTIMIZER_STATES) + 8 * 17 * 256
    )


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"dp_replicate": 2, "dp_shard": 2}, "mesh.dp_replicate"),
        ({"lora_rank": 8}, "adapter.rank"),
        ({"offload": ["optimizer"]}, "offload.optimizer"),
    ],
)
def test_what_muon_runs_without_is_refused_by_name(options: dict[str, Any], field: str) -> None:
    with pytest.raises(memsheet.InputError, match=field):
        sheet(**options)
