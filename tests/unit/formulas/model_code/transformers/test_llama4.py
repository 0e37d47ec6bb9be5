"""Llama 4's experts: every token goes through every one of them."""

from __future__ import annotations

import pytest

from layers_kept import kept, under

TOKENS, HIDDEN, WIDTH = 2 * 64, 512, 384


@pytest.mark.parametrize(("experts", "each"), [(4, 1), (4, 2), (16, 1)])
def test_experts_keep_every_token_and_its_share(experts: int, each: int) -> None:
    """modeling_llama4.py:78-82, 146-173, in bf16. For each token and expert: the repeated token and its
    score, which are multiplied, and their product; gate and up, activation and their product; the fp32
    output of the sigmoid. For each token the places of the largest scores.
    """
    config = {
        "model_type": "llama4_text", "hidden_size": HIDDEN, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
        "vocab_size": 4000, "head_dim": 64, "intermediate_size": WIDTH, "intermediate_size_mlp": 1408, "num_local_experts": experts,
        "num_experts_per_tok": each, "interleave_moe_layer_step": 1,
    }  # fmt: skip
    held = kept(config)
    pair = 2 * (HIDDEN + 1 + HIDDEN + 2 * WIDTH + WIDTH + WIDTH) + 4
    routed = under(held, "feed_forward") - under(held, "feed_forward.shared_expert")
    assert routed == TOKENS * (experts * pair + 8 * each)
