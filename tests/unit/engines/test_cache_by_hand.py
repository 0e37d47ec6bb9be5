"""Bytes of cache that a token takes, by hand from what is published of each model: layers that keep it times
what one of them keeps, in sixteen bits.
"""

from __future__ import annotations

import pytest

from laws import every
from memsheet.questions.accounted import infer

SIXTEEN = 2
KEYS_AND_VALUES = 2
INDEX = 128 + 4
"""Of DeepSeek's indexer: a key of 128 in eight bits, and its scale in fp32."""


def heads(layers: int, count: int, width: int) -> int:
    return layers * KEYS_AND_VALUES * count * width * SIXTEEN


def latents(layers: int, rank: int = 512, rope: int = 64) -> int:
    return layers * (rank + rope) * SIXTEEN


BY_HAND = {
    # grouped, multi-query and whole heads
    "llama-3.1-8b": heads(32, 8, 128), "falcon-7b": heads(32, 1, 64), "llama-2-7b": heads(32, 32, 128), "qwen3-235b-a22b": heads(94, 4, 128),
    "phi-4-mini": heads(32, 8, 128), "glm-4.5": heads(92, 8, 128), "minimax-m2.5": heads(62, 8, 128), "qwen2.5-vl-7b": heads(28, 4, 128),
    # latents, once for all heads, with an indexer beside
    "deepseek-v3": latents(61), "kimi-k2": latents(61), "glm-4.7-flash": latents(47), "mistral-small-4-119b": latents(36, 256),
    "deepseek-v3.2": latents(61) + 61 * INDEX, "glm-5": latents(78) + 78 * INDEX,
    # windows beside layers that keep everything: what a token takes while it is in all of them
    "gemma-2-9b": heads(42, 8, 256), "gemma-3-27b": heads(62, 16, 128), "gpt-oss-120b": heads(36, 8, 64), "llama-4-scout": heads(48, 8, 128),
    "gemma-4-31b": heads(50, 16, 256) + heads(10, 4, 512), "gemma-4-e2b": heads(12, 1, 256) + heads(3, 1, 512), "gemma-3n-e4b": heads(20, 2, 256),
    # keys and values of other widths
    "mimo-v2-flash": (9 * 4 + 39 * 8) * (192 + 128) * SIXTEEN,
    # states beside layers that attend
    "qwen3-next-80b-a3b": heads(12, 2, 256), "qwen3.5-397b-a17b": heads(15, 2, 256), "nemotron-h-47b": heads(5, 8, 128),
    "nemotron-nano-9b-v2": heads(4, 8, 128), "nemotron-3-nano-30b-a3b": heads(6, 2, 128), "granite-4.0-h-tiny": heads(4, 4, 128),
    "jamba-v0.1": heads(4, 8, 128), "falcon-h1-7b": heads(44, 2, 128), "kimi-linear-48b-a3b": latents(7), "ling-3.0-flash": latents(7),
    "lfm2-2.6b": heads(8, 8, 64), "mamba-2.8b": 0, "falcon-mamba-7b": 0,
}  # fmt: skip
OWN_WAY = {"gemma-3n-e4b", "gemma-4-e2b", "jamba-v0.1"}
"""What SGLang does not serve here, and what it keeps a place of in every layer (with_unshared_layers)."""
EIGHT = {
    "llama-3.1-8b": heads(32, 8, 128) // 2,
    "deepseek-v3": latents(61) // 2,
    "qwen3-next-80b-a3b": heads(12, 2, 256) // 2,
}


def per_token(name: str, engine: str, **options: object) -> int:
    answer = infer(name, engine=engine, max_model_len=2048, sequences=1, **options)
    return int((answer.serving or {})["kv_bytes_per_token"])


@every("name", BY_HAND)
def test_a_token_takes_what_a_hand_counts(name: str) -> None:
    assert per_token(name, "vllm") == BY_HAND[name]


@every("name", sorted(BY_HAND.keys() - OWN_WAY))
def test_sglang_counts_the_same(name: str) -> None:
    assert per_token(name, "sglang", memory_fraction=0.8) == BY_HAND[name]


@pytest.mark.parametrize("name", EIGHT)
@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_cache_in_eight_bits_takes_half(name: str, engine: str) -> None:
    assert per_token(name, engine, kv_dtype="fp8") == EIGHT[name]


@pytest.mark.parametrize(
    ("name", "ranks", "factor"),
    [("llama-3.1-8b", 8, 1), ("qwen3-30b-a3b", 8, 2), ("falcon-7b", 1, 1), ("deepseek-v3", 8, 8)],
)
def test_ranks_beyond_the_heads_repeat_them(name: str, ranks: int, factor: int) -> None:
    """Eight ranks of four key heads keep each twice, and latents are on every rank."""
    for engine in ("vllm", "sglang"):
        answer = infer(name, engine=engine, gpus=f"{ranks}xH200", tp=ranks, max_model_len=2048)
        found = answer.serving or {}
        assert found["kv_bytes_per_token_per_rank"] * ranks == factor * found["kv_bytes_per_token"]
