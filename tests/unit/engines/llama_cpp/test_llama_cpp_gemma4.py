"""Gemma 4 under llama.cpp: heads of two sizes, layers without a cache of their own, tables that the host
looks up, and its compute buffer.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.engines.llama_cpp.small_models import compute_mib

from memsheet import infer
from memsheet.catalog.names import bundled_entry
from memsheet.engines.llama_cpp.weights import stored_tensors
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant

MIB = 2**20
LAYERS = [*["sliding_attention"] * 5, "full_attention"]
DENSE = {
    "model_type": "gemma4_text", "vocab_size": 1024, "vocab_size_per_layer_input": 1024, "hidden_size": 256, "intermediate_size": 768,
    "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "global_head_dim": 128,
    "num_global_key_value_heads": 1, "sliding_window": 512, "max_position_embeddings": 8192, "layer_types": LAYERS, "attention_k_eq_v": True,
    "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0, "enable_moe_block": False, "final_logit_softcapping": 30.0,
}  # fmt: skip
SMALL: dict[str, dict[str, Any]] = {
    "dense": DENSE,
    "beside": {
        **DENSE,
        "num_hidden_layers": 12,
        "layer_types": LAYERS * 2,
        "attention_k_eq_v": False,
        "num_global_key_value_heads": None,
        "hidden_size_per_layer_input": 32,
        "num_kv_shared_layers": 6,
    },
    "routed": {
        **DENSE,
        "enable_moe_block": True,
        "num_experts": 16,
        "top_k_experts": 4,
        "moe_intermediate_size": 128,
    },
}
PRINTED = [
    ("dense", 4096, 512, True, 1, 11.5196), ("dense", 4096, 512, False, 1, 44.5117), ("dense", 8192, 64, True, 1, 1.9087),
    ("dense", 4096, 256, True, 4, 4.1348), ("beside", 4096, 512, True, 1, 13.2715), ("beside", 4096, 512, False, 1, 47.7637),
    ("beside", 8192, 64, True, 1, 2.1277), ("beside", 1024, 512, True, 1, 10.2715), ("beside", 4096, 256, True, 4, 5.0108),
    ("routed", 4096, 512, True, 1, 11.5664), ("routed", 4096, 512, False, 1, 45.0117), ("routed", 8192, 64, True, 1, 1.9146),
    ("routed", 4096, 256, True, 4, 4.1582),
]  # fmt: skip
"""MiB that llama.cpp 0c1e5709 printed as its compute buffer on a processor for files of these models in fp16:
cells of all sequences, tokens of a batch, flash attention, sequences.
"""


@pytest.mark.parametrize(("name", "cells", "ubatch", "flash", "sequences", "printed"), PRINTED)
def test_gemma_4s_compute_buffer_is_the_printed_one(
    name: str, cells: int, ubatch: int, flash: bool, sequences: int, printed: float
) -> None:
    found = compute_mib(SMALL[name], cells=cells, ubatch=ubatch, flash=flash, sequences=sequences)
    assert found == pytest.approx(printed, abs=3e-3)


NAMES = ("gemma-4-31b", "gemma-4-26b-a4b", "gemma-4-e4b", "gemma-4-e2b", "gemma-4-12b")


def served(model: str, gpus: str | None = "1xH200", **options: Any) -> Any:
    asked = {"engine": "llama.cpp", "quantize": "gguf:Q4_K_M", "max_model_len": 8192, **options}
    return infer(model, gpus=gpus, **asked)


def held(answer: Any, component: Component, sheet: int = 0) -> int:
    return int(answer.sheets[sheet].of(component, instant=Instant.DECODE).value)


@pytest.mark.parametrize(
    ("model", "cells"),
    [
        # 25 layers of 8 heads of 256 keep a window of 1,024 and a batch; 5 of 2 heads of 512 keep every token
        ("gemma-4-26b-a4b", 25 * 1536 * 8 * 256 + 5 * 8192 * 2 * 512),
        ("gemma-4-31b", 50 * 1536 * 16 * 256 + 10 * 8192 * 4 * 512),
        # the last 18 of 42 layers read the caches of the last before them
        ("gemma-4-e4b", 20 * 1024 * 2 * 256 + 4 * 8192 * 2 * 512),
    ],
)
def test_gemma_4_keeps_what_its_own_layers_keep(model: str, cells: int) -> None:
    assert held(served(model), Component.KV_CACHE) == 2 * 2 * cells


def test_the_host_looks_up_the_words_of_every_layer() -> None:
    """E4B's table of 262,144 words for 42 layers of 256, and the words' own, whose matrix is the output's."""
    spec = read_hf_config(bundled_entry("gemma-4-e4b")["config"])
    plan = resolve_request({"task": "infer", "engine": "llama.cpp", "quantization.weights": "gguf:Q8_0"}, spec).plan  # fmt: skip
    tensors = {t.kind: t.nbytes for t in stored_tensors(spec, plan) if t.layer in (-1, 0)}
    assert tensors["per_layer_token_embd"] == 262144 * 42 * 256 * 34 // 32
    assert tensors["per_layer_model_proj"] == 42 * 256 * 2560 * 2
    assert tensors["inp_gate"] == tensors["proj"] == 2560 * 256 * 34 // 32
    answer = served("gemma-4-e4b", quantize="gguf:Q8_0")
    tables = tensors["per_layer_token_embd"] + tensors["token_embd"]
    assert tables < answer.sheets[0].host_bytes < tables + 256 * MIB
    paths = {item.path for item in answer.sheets[0].items if item.component is Component.PARAMETERS}
    assert "token_embd" in paths
    assert "per_layer_token_embd" not in paths


@pytest.mark.parametrize("model", NAMES)
def test_every_gemma_4_has_an_answer_that_its_range_encloses(model: str) -> None:
    answer = served(model)
    for component in (Component.PARAMETERS, Component.TEMPORARIES, Component.WORKSPACES):
        size = answer.sheets[0].of(component, instant=Instant.PREFILL)
        assert 0 <= size.low <= size.value <= size.high
    sizes = [served(model, max_model_len=n).sheets[0].peak.value for n in (512, 2048, 8192, 32768, 131072)]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("model", NAMES)
def test_two_cards_hold_gemma_4_once_and_its_tied_table_twice(model: str) -> None:
    one, two = served(model), served(model, "2xH200")
    for component in (Component.PARAMETERS, Component.KV_CACHE):
        assert held(one, component) == sum(held(two, component, n) for n in (0, 1))


def test_a_card_that_reads_anothers_cache_has_a_copy_of_it() -> None:
    """Layers of E4B that share the caches of the last before them, which lie on the first of two cards where
    it has three quarters of the layers.
    """
    asked = {"gpus": "2xH200", "max_model_len": 131072}
    near, far = (served("gemma-4-e4b", tensor_split=split, **asked) for split in ("1,1", "3,1"))
    cache = 2 * 131072 * 2 * 512 * 2
    assert held(far, Component.TEMPORARIES, 1) > held(near, Component.TEMPORARIES, 1) + cache
