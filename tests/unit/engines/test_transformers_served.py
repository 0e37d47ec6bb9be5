"""What the library makes beside weights and cache while it generates, on models at their published size."""

from __future__ import annotations

from typing import Any

import memsheet
from memsheet.sheet import Component, Instant


def generated(model: str, **more: Any) -> Any:
    asked = {"prompt_tokens": 4096, "max_model_len": 4224, "sequences": 1, "fix": False, **more}
    return memsheet.infer(model, engine="transformers", **asked).sheets[0]


def working(model: str, **more: Any) -> Any:
    return generated(model, **more).of(Component.TEMPORARIES, instant=Instant.PREFILL)


def test_every_expert_of_llama_4_is_given_every_token() -> None:
    """16 experts of 8,192 and a stream of 5,120: what they are given, both halves of the first product, the
    activation and what they say, in 16 bits (modeling_llama4.py, Llama4TextMoe.forward).
    """
    experts = 2 * 4096 * 16 * (2 * 5120 + 3 * 8192)
    assert experts <= working("llama-4-scout").value <= 1.25 * experts


def test_a_prompt_through_a_delta_net_may_take_torchs_plain_operations() -> None:
    """Of 32 heads of values, in fp32: queries, keys and values in chunks of 64 and three matrices of pairs of
    positions at least (modeling_qwen3_next.py, torch_chunk_gated_delta_rule).
    """
    assert working("qwen3-next-80b-a3b").value >= 4 * 4096 * 32 * (3 * 128 + 3 * 64)


def test_an_encoder_says_words_at_every_position() -> None:
    asked = {"prompt_tokens": 512, "max_model_len": 512, "sequences": 32}
    assert working("bert-large", **asked).value >= 2 * 32 * 512 * 30522


def test_token_ids_and_positions_are_on_the_card() -> None:
    sheet = generated("llama-3-8b")
    assert sheet.of(Component.INPUTS, instant=Instant.PREFILL).value == 2 * 8 * 4096
    assert sheet.of(Component.INPUTS, instant=Instant.DECODE).value == 2 * 8 * (4096 + 4224)
    assert sheet.of(Component.INPUTS, instant=Instant.DECODE).low == 8 * (4096 + 4224)
