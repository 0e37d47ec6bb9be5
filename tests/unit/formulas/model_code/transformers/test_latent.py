"""Latent attention in training: keys and values of every head are there, and what each operation keeps of
them is known to the byte.
"""

from __future__ import annotations

from typing import Any

import pytest

from layers_kept import kept, under
from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant

TOKENS = 2 * 64
HEADS, NOPE, ROPE, VALUE, QUERY_RANK, RANK = 8, 64, 32, 48, 192, 128
SMALL: dict[str, Any] = {
    "model_type": "deepseek_v3", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": HEADS, "num_key_value_heads": HEADS,
    "vocab_size": 1000, "max_position_embeddings": 4096, "intermediate_size": 768, "q_lora_rank": QUERY_RANK, "kv_lora_rank": RANK,
    "qk_rope_head_dim": ROPE, "qk_nope_head_dim": NOPE, "v_head_dim": VALUE, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_group": 4,
    "topk_group": 2, "moe_intermediate_size": 128, "first_k_dense_replace": 1, "n_shared_experts": 1,
}  # fmt: skip
NORMED = 4 + 2 + 2  # an element in fp32, normalised, and times the weight
DEVIATION = 4  # one fp32 number a position


def test_attention_keeps_every_heads_keys_and_values() -> None:
    queries = QUERY_RANK * NORMED + DEVIATION
    latents = RANK * NORMED + DEVIATION
    heads = (
        2 * HEADS * ((NOPE + ROPE) * 2 + (NOPE + VALUE) + VALUE)
    )  # queries, keys, both halves of what kv_b_proj made, the output
    statistics = 4 * HEADS
    assert under(kept(SMALL), "self_attn") == TOKENS * (queries + latents + heads + statistics) + 2 * 8


def test_queries_without_a_rank_come_from_one_matrix() -> None:
    held = kept({**SMALL, "q_lora_rank": None})
    assert not under(held, "self_attn.q_a")
    assert under(kept(SMALL), "self_attn.q_a") == TOKENS * (QUERY_RANK * NORMED + DEVIATION)


def test_the_flash_package_gets_values_as_wide_as_keys() -> None:
    flash, torch_own = kept(SMALL, attention="flash"), kept(SMALL)
    padded = 2 * TOKENS * HEADS * (NOPE + ROPE)
    assert flash["self_attn/v_padded"] == padded
    assert (
        flash["self_attn/context"] - torch_own["self_attn/context"] == padded
    )  # as wide as a key; the values' part is copied out of it


def test_eager_attention_keeps_its_probabilities() -> None:
    scores = 2 * HEADS * 64 * 64
    held = kept(SMALL, attention="eager")
    assert held["self_attn/softmax"] == 4 * scores
    assert held["self_attn/probabilities"] == 2 * scores


@pytest.mark.parametrize(
    ("family", "bytes_"), [("deepseek_v3", 2 * 2 * ROPE), ("deepseek_v2", 8 * ROPE // 2)]
)
def test_rotary_tables_are_real_or_complex_numbers(family: str, bytes_: int) -> None:
    model = read_hf_config({**SMALL, "model_type": family})
    plan = resolve_request(
        {"engine": "transformers", "precision.name": "bf16-pure", "seq_len": 64}, model
    ).plan
    tables = {
        item.path: item
        for item in account_rank(model, plan).items
        if item.component is Component.SAVED_ACTIVATIONS
    }["model.rotary_emb"]
    assert tables.at[Instant.LOSS].value == 64 * bytes_


def test_heads_that_no_kernel_takes_are_refused() -> None:
    model = read_hf_config({**SMALL, "v_head_dim": 44})
    with pytest.raises(InputError, match="heads of 96 and 44"):
        account_rank(model, resolve_request({"engine": "transformers", "seq_len": 64}, model).plan)


def test_groups_that_are_chosen_first_leave_their_mask() -> None:
    greedy = {**SMALL, "model_type": "deepseek_v2", "topk_method": "greedy"}
    limited = {**greedy, "topk_method": "group_limited_greedy"}
    held, without = kept(limited, 1), kept(greedy, 1)
    assert sum(held.values()) - sum(without.values()) == held["mlp.gate/others"] == TOKENS * 8
