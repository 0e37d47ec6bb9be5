"""Ling 1 and 2, which no library has: parameters and caches against the arithmetic of vLLM's modules
(v0.33.0 model_executor/models/bailing_moe.py).
"""

from __future__ import annotations

from typing import Any

import pytest

from memsheet import infer
from memsheet.errors import InputError
from memsheet.formulas.states.params import parameter_count
from memsheet.readers.hf_config import read_hf_config
from memsheet.sheet import Component, Instant

LING: dict[str, Any] = {
    "model_type": "bailing_moe", "architectures": ["BailingMoeV2ForCausalLM"], "dtype": "bfloat16", "hidden_size": 512, "num_hidden_layers": 5,
    "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 640, "moe_intermediate_size": 96, "num_experts": 16,
    "num_experts_per_tok": 4, "num_shared_experts": 2, "first_k_dense_replace": 1, "use_qk_norm": True, "use_qkv_bias": True,
    "moe_router_enable_expert_bias": True, "partial_rotary_factor": 0.5, "vocab_size": 1280, "max_position_embeddings": 4096,
}  # fmt: skip


def rank_bytes(ranks: int) -> int:
    """Bytes of a rank: words, attention with repeated key heads, one dense layer, four of experts."""
    hidden, head_dim, kept = 512, 64, max(1, 2 // ranks)
    words = 2 * (1280 // ranks) * hidden + hidden
    heads = 8 // ranks + 2 * kept
    attention = heads * head_dim * (hidden + 1) + 8 // ranks * head_dim * hidden + 2 * head_dim + 2 * hidden
    dense = 3 * hidden * 640 // ranks
    experts = 16 * hidden + 16 * 3 * hidden * 96 // ranks + 3 * hidden * 2 * 96 // ranks
    return 2 * (words + 5 * attention + dense + 4 * experts) + 4 * 4 * 16


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_a_rank_holds_what_its_modules_hold(engine: str, ranks: int) -> None:
    asked = {"gpus": f"{ranks}xH100-80GB", "tp": ranks, "max_model_len": 2048}
    answer = infer(LING, engine=engine, **asked)
    assert answer.sheets[0].of(Component.PARAMETERS, instant=Instant.LOAD).value == rank_bytes(ranks)
    assert answer.serving is not None
    assert answer.serving["kv_bytes_per_token_per_rank"] == 5 * 2 * max(1, 2 // ranks) * 64 * 2


def test_all_ranks_together_are_the_model() -> None:
    assert 2 * parameter_count(read_hf_config(LING)) + 2 * 4 * 16 == rank_bytes(1)


def test_a_missing_size_is_refused_and_not_guessed() -> None:
    with pytest.raises(InputError, match="moe_intermediate_size"):
        read_hf_config({key: value for key, value in LING.items() if key != "moe_intermediate_size"})


@pytest.mark.parametrize(("engine", "version", "says"), [
    ("vllm", "0.10.2", "since 0.11.0"), ("sglang", "0.5.2", "since 0.5.3"), ("transformers", None, "no release of the library"),
    ("llama.cpp", None, "bailing_moe_v2"),
])  # fmt: skip
def test_where_it_is_not_served_it_is_refused_by_name(engine: str, version: str | None, says: str) -> None:
    more = {"engine_version": version} if version else {}
    with pytest.raises(InputError, match=says):
        infer(LING, engine=engine, gpus="1xH100-80GB", max_model_len=2048, **more)


def test_lightning_attention_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="lightning attention"):
        read_hf_config({**LING, "architectures": ["BailingMoeLinearV2ForCausalLM"]})
