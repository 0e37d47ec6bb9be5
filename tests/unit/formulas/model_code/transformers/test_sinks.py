"""Attention with a learned logit a head that is joined to the scores."""

from __future__ import annotations

from typing import Any

import pytest

from layers_kept import kept, made

TOKENS, HEADS, HEAD = 64, 8, 64
CONFIG: dict[str, Any] = {
    "model_type": "gpt_oss", "hidden_size": 512, "num_hidden_layers": 2, "num_attention_heads": HEADS, "num_key_value_heads": 4,
    "vocab_size": 4000, "head_dim": HEAD, "intermediate_size": 384, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


def test_scores_are_joined_with_their_sink() -> None:
    """modeling_gpt_oss.py:243-250, in bf16: the scores and a sink beside each row, joined; less the largest
    of each row, whose place is an int64, that again; their softmax, which is kept.
    """
    tensors, held = (of(CONFIG, attention="eager", microbatch=2) for of in (made, kept))
    rows = 2 * HEADS * TOKENS
    assert tensors["self_attn/joined"] == 2 * 2 * rows * (TOKENS + 1)
    assert tensors["self_attn/largest"] == 2 * rows
    assert held["self_attn/place"] == 8 * rows
    assert held["self_attn/softmax"] == 2 * rows * (TOKENS + 1)


@pytest.mark.parametrize("sequences", [1, 2])
@pytest.mark.parametrize("heads", [1, 2, HEADS])
def test_a_batch_of_values_that_is_no_view_is_copied(heads: int, sequences: int) -> None:
    """modeling_gpt_oss.py repeat_kv and the product with its result, which takes one batch of matrices."""
    torch = pytest.importorskip("torch")
    values = torch.empty(sequences, TOKENS, heads, HEAD).transpose(1, 2)
    repeated = (
        values[:, :, None].expand(-1, -1, HEADS // heads, -1, -1).reshape(sequences, HEADS, TOKENS, HEAD)
    )
    copied = repeated.reshape(-1, TOKENS, HEAD).data_ptr() != repeated.data_ptr()
    config = {**CONFIG, "num_key_value_heads": heads}
    size = made(config, attention="eager", microbatch=sequences).get("self_attn/context/copy", 0)
    assert size == 2 * repeated.numel() * copied
