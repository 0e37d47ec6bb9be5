"""Latents that vLLM unpacks before it caches them."""

from __future__ import annotations

from memsheet import catalog
from memsheet.engines.sglang.library_code import LIBRARY_CODE as OF_SGLANG
from memsheet.engines.vllm.library_code import LIBRARY_CODE as OF_VLLM
from memsheet.engines.vllm.unpacked_latents import with_own_caches
from memsheet.formulas.serving.kv_cache import bytes_per_token
from memsheet.frozen import replace
from memsheet.plan.dtypes import BF16
from memsheet.plan.model import LatentAttention
from memsheet.readers.model import read_model


def test_a_token_keeps_a_key_and_a_padded_value_of_every_head() -> None:
    """v0.33.0 model_executor/models/minicpm3.py:126, 173."""
    latent = read_model("deepseek-v2-lite", catalog=catalog.find_model, names=catalog.model_names())
    assert with_own_caches(latent) is latent
    unpacked = with_own_caches(replace(latent, model_type="minicpm3"))
    mixer = next(iter(latent.mixers()))
    assert isinstance(mixer, LatentAttention)
    key = mixer.qk_nope_head_dim + mixer.qk_rope_head_dim
    assert bytes_per_token(unpacked, BF16) == latent.layers * 2 * mixer.heads * key * 2
    assert next(iter(unpacked.mixers())).weights == mixer.weights


def test_its_architecture_is_one_whose_cache_both_servers_were_read_for() -> None:
    name = "MiniCPM3ForCausalLM"
    for code in (OF_VLLM, OF_SGLANG):
        assert name in code.own
        assert name in code.layouts
