"""What layers that pick the tokens they attend to keep of a token: by the library, and by servers."""

import pytest

from memsheet import infer
from memsheet.errors import InputError
from memsheet.formulas.serving.kv_cache import bytes_per_token
from memsheet.formulas.serving.sparse_index import served_bytes_per_token
from memsheet.plan.dtypes import BF16, FP8
from memsheet.readers.hf_config import read_hf_config
from memsheet.sheet import Component, Instant

LAYERS = 61
V32 = {"model_type": "deepseek_v32", "dtype": "bfloat16"}


def test_the_library_keeps_the_indexers_key_as_it_is_computed() -> None:
    assert bytes_per_token(read_hf_config(V32), BF16) == LAYERS * (512 + 64 + 128) * 2


def test_servers_keep_it_in_eight_bits_with_a_scale() -> None:
    """132 bytes beside a latent of 1,152, or of the 656 that fp8_ds_mla packs."""
    model = read_hf_config(V32)
    assert served_bytes_per_token(model, BF16) == LAYERS * (1152 + 132)
    assert served_bytes_per_token(model, FP8) == LAYERS * (656 + 132)


def test_other_latents_are_kept_alike_by_both() -> None:
    model = read_hf_config({"model_type": "deepseek_v3"})
    for dtype in (BF16, FP8):
        assert served_bytes_per_token(model, dtype) == bytes_per_token(model, dtype)


def test_layers_that_take_what_others_picked_have_no_key() -> None:
    config = {"model_type": "glm_moe_dsa", "num_hidden_layers": 4, "index_topk_pattern": "FSSF"}
    assert served_bytes_per_token(read_hf_config(config), BF16) == 4 * 1152 + 2 * 132


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_an_engines_pool_counts_it(engine: str) -> None:
    asked = {"gpus": "16xH200", "engine": engine, "tp": 16, "max_model_len": 4096}
    answer = infer(V32, **asked)
    assert answer.serving is not None
    assert answer.serving["kv_bytes_per_token"] == LAYERS * 1284
    held = answer.sheets[0].of(Component.KV_CACHE, instant=Instant.DECODE).value
    tokens = int(answer.serving["kv_tokens"])
    assert held == pytest.approx(tokens * LAYERS * 1284, rel=1e-2)


def test_llama_cpp_refuses_them_by_name() -> None:
    with pytest.raises(InputError, match="deepseek_v32"):
        infer(V32, gpus="16xH200", engine="llama.cpp")


SPARSE = {"deepseek_v32": {"sglang": "fp8", "vllm": "bf16"}, "glm_moe_dsa": {"sglang": "fp8", "vllm": "fp8"}}
ON_BLACKWELL = [(kind, engine, dtype) for kind, found in SPARSE.items() for engine, dtype in found.items()]


def cache_of(kind: str, engine: str, gpus: str, **words: object) -> str:
    model = {"model_type": kind, "dtype": "bfloat16"}
    found = infer(model, gpus=gpus, engine=engine, tp=8, max_model_len=4096, fix=False, **words)
    assert found.plan.cache.kv_dtype is not None
    return found.plan.cache.kv_dtype.name


@pytest.mark.parametrize(("kind", "engine", "dtype"), ON_BLACKWELL)
def test_a_server_takes_eight_bits_by_itself_on_the_cards_that_it_says(kind, engine, dtype) -> None:
    """Where nobody says, on Blackwell alone; what somebody says is kept; older releases were not read."""
    assert cache_of(kind, engine, "8xB200") == dtype
    assert cache_of(kind, engine, "8xH200") == "bf16"
    assert cache_of(kind, engine, "8xB200", kv_dtype="bf16") == "bf16"
    assert cache_of(kind, engine, "8xH200", kv_dtype="fp8") == "fp8"


def test_other_latents_are_kept_as_they_are_computed_on_every_card() -> None:
    for engine in ("vllm", "sglang"):
        assert cache_of("deepseek_v3", engine, "8xB200") == "bf16"
