"""Caches by layer kind, worked by hand from public configurations."""

from __future__ import annotations

import pytest

from memsheet import catalog
from memsheet.formulas.serving.kv_cache import bytes_per_token, cache_bytes
from memsheet.plan.dtypes import BF16, FP8
from memsheet.plan.model import ModelSpec
from memsheet.readers.model import read_model


def model(name: str) -> ModelSpec:
    return read_model(name, catalog=catalog.find_model, names=catalog.model_names())


def cache(name: str, tokens: int, sequences: int = 1, **more: int) -> int:
    return sum(cache_bytes(model(name), BF16, tokens, sequences, **more).values())


@pytest.mark.parametrize(
    ("name", "a_token"),
    [
        ("llama-2-7b", 2 * 32 * 32 * 128 * 2),  # as many KV heads as heads
        ("llama-3-8b", 2 * 32 * 8 * 128 * 2),
        ("llama-3-70b", 2 * 80 * 8 * 128 * 2),
        ("qwen2.5-7b", 2 * 28 * 4 * 128 * 2),
        ("qwen3-0.6b", 2 * 28 * 8 * 128 * 2),  # head_dim 128 is stated; hidden / heads would be 64
        ("deepseek-v2", 60 * (512 + 64) * 2),  # one latent and one rotary key a layer
        ("deepseek-v3", 61 * (512 + 64) * 2),
        ("mamba-2.8b", 0),
        ("jamba-v0.1", 2 * 4 * 8 * 128 * 2),  # 4 attention layers of 32
    ],
)
def test_bytes_of_one_more_token(name: str, a_token: int) -> None:
    assert bytes_per_token(model(name), BF16) == a_token


def test_a_sliding_window_stops_growing_and_full_layers_do_not() -> None:
    """gemma-3-27b: 62 layers, 16 KV heads of 128, a window of 1,024 on all but each sixth."""
    a_layer_token = 2 * 16 * 128 * 2
    full, windowed = 10, 52
    assert cache("gemma-3-27b", 1000) == 62 * a_layer_token * 1000
    assert cache("gemma-3-27b", 32768) == a_layer_token * (full * 32768 + windowed * 1024)
    assert cache("gemma-3-27b", 32768, whole=True) == 62 * a_layer_token * 32768


def test_kv_heads_repeat_where_tp_exceeds_them() -> None:
    """8 KV heads: over 8 ranks one each, over 16 and 32 still one each."""
    eight = bytes_per_token(model("llama-3-8b"), BF16, tp=8)
    assert eight == 2 * 32 * 1 * 128 * 2
    assert bytes_per_token(model("llama-3-8b"), BF16, tp=16) == eight
    assert bytes_per_token(model("llama-3-8b"), BF16, tp=4) == 2 * eight


def test_a_latent_is_whole_on_every_tensor_parallel_rank() -> None:
    assert bytes_per_token(model("deepseek-v3"), BF16, tp=8) == bytes_per_token(model("deepseek-v3"), BF16)


def test_recurrent_states_do_not_grow_with_length() -> None:
    """mamba-2.8b: 64 layers of 5,120 channels, each 16 states in fp32 and a convolution of 4."""
    assert cache("mamba-2.8b", 1) == cache("mamba-2.8b", 10**6) == 64 * 5120 * (16 * 4 + 4 * 2)


def test_a_hybrid_grows_by_its_attention_layers_alone() -> None:
    assert cache("jamba-v0.1", 2000) - cache("jamba-v0.1", 1000) == 1000 * bytes_per_token(
        model("jamba-v0.1"), BF16
    )


def test_the_cache_has_its_own_dtype() -> None:
    assert 2 * bytes_per_token(model("llama-3-8b"), FP8) == bytes_per_token(model("llama-3-8b"), BF16)


def test_cross_attention_keeps_the_encoders_length_not_the_decoders() -> None:
    """t5-small's decoder: 6 layers, 8 heads of 64, cross-attention over what the encoder read."""
    config = {
        "model_type": "t5", "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": 6, "num_heads": 8,
        "vocab_size": 32128, "feed_forward_proj": "relu", "tie_word_embeddings": True, "relative_attention_num_buckets": 32,
        "layer_norm_epsilon": 1e-6, "is_encoder_decoder": True,
    }  # fmt: skip
    spec = read_model(config, catalog=catalog.find_model, names=())
    a_token = 6 * 2 * 8 * 64 * 2
    assert sum(cache_bytes(spec, BF16, 10, 1, memory_tokens=100).values()) == a_token * (10 + 100)
