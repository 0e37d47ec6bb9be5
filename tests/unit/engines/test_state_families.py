"""What servers keep of a sequence in layers without a cache, family by family: the shapes of their own code
written out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from laws import every
from memsheet import infer
from memsheet.engines.sglang.states import slot_bytes
from memsheet.engines.vllm.facts import RELEASES, release_of
from memsheet.engines.vllm.pages import CacheReach, kinds_of, layout_of
from memsheet.errors import InputError
from memsheet.formulas.serving.loaded import rope_bytes
from memsheet.formulas.serving.sparse_index import served_bytes_per_token
from memsheet.plan.dtypes import BF16
from memsheet.plan.engine_registry import find_engine
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request

NANO: dict[str, Any] = {
    "model_type": "nemotron_h", "hidden_size": 2688, "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
    "mamba_num_heads": 64, "n_routed_experts": 128, "num_experts_per_tok": 6, "moe_intermediate_size": 1856,
    "moe_shared_expert_intermediate_size": 3712, "num_key_value_heads": 2, "max_position_embeddings": 262144,
}  # fmt: skip
GRANITE: dict[str, Any] = {
    "model_type": "granitemoehybrid",
    "layer_types": ["mamba"] * 31 + ["attention"],
    "max_position_embeddings": 8192,
}

# family, layers with a state, (channels of convolutions, those of a group, groups, inputs kept), elements of
# the state, its bytes in vLLM and in SGLang (where the model is in bf16)
STATES: list[tuple[dict[str, Any], int, tuple[int, int, int, int], int, int, int]] = [
    (NANO, 23, (64 * 64, 2 * 128, 8, 3), 64 * 64 * 128, 4, 4),
    (GRANITE, 31, (8192, 2 * 256, 1, 3), 128 * 64 * 256, 2, 4),
    ({"model_type": "falcon_h1"}, 32, (1024, 2 * 256, 1, 3), 128 * 8 * 256, 2, 4),
    ({"model_type": "kimi_linear"}, 21, (3 * 32 * 128, 0, 1, 3), 32 * 128 * 128, 4, 4),
    ({"model_type": "bailing_hybrid"}, 35, (3 * 32 * 128, 0, 1, 3), 32 * 128 * 128, 4, 4),
    ({"model_type": "lfm2", "full_attn_idxs": [0, 5]}, 30, (2560, 0, 1, 2), 0, 2, 4),
    ({"model_type": "lfm2_moe", "layer_types": ["conv"] * 24 + ["full_attention"] * 8}, 24, (2048, 0, 1, 2), 0, 2, 4),
]  # fmt: skip


def plan_of(model, engine: str, **more: Any):
    asked = {"task": "infer", "engine": engine, "serving.max_model_len": 4096, **more}
    return resolve_request(asked, model).plan


def named(case) -> str:
    return f"{case[0]['model_type']}-{case[4]}"


@pytest.mark.parametrize("case", STATES, ids=named)
@pytest.mark.parametrize("tp", [1, 2])
def test_states_are_those_of_the_engines_own_shapes(case, tp):
    config, layers, (channels, a_group, groups, kept), state, in_vllm, in_sglang = case
    channels += a_group * (groups if groups % tp == 0 else tp)  # extra_groups_for_head_shards, of both
    model = read_hf_config({**config, "dtype": "bfloat16"})
    plan = plan_of(model, "vllm")
    plan = replace(plan, mesh=replace(plan.mesh, tp=tp))
    (kind,) = [kind for kind in kinds_of(model, plan, release_of(None)) if kind.kept is CacheReach.STATE]
    assert kind.layers == layers
    assert kind.page_bytes == (channels * kept * 2 + state * in_vllm) // tp
    assert slot_bytes(model, plan) == layers * (channels * kept * 2 + state * in_sglang) // tp


def test_a_page_of_latents_beside_states_is_of_whole_128_tokens():
    """2,170,880 bytes of a state over 1,152 of a latent (platforms/interface.py:1090)."""
    model = read_hf_config({"model_type": "kimi_linear", "dtype": "bfloat16"})
    layout = layout_of(kinds_of(model, plan_of(model, "vllm"), release_of(None)), release_of(None))
    assert {group.block_tokens for group in layout.groups if group.kept is CacheReach.ALL} == {1920}


# family, bytes of a token in all layers of a rank of one and of four, in bf16
TOKENS: list[tuple[dict[str, Any], int, int]] = [
    ({"model_type": "hy_v3"}, 80 * 2 * 8 * 128 * 2, 80 * 2 * 2 * 128 * 2),
    ({"model_type": "mimo_v2_flash"}, (9 * 4 + 39 * 8) * (192 + 128) * 2, (9 + 39 * 2) * (192 + 128) * 2),
    ({"model_type": "step3p5"}, 45 * 2 * 8 * 128 * 2, 45 * 2 * 2 * 128 * 2),
    ({"model_type": "longcat_flash"}, 28 * 2 * (512 + 64) * 2, 28 * 2 * (512 + 64) * 2),
    ({"model_type": "kimi_k2"}, 61 * (512 + 64) * 2, 61 * (512 + 64) * 2),
    ({"model_type": "kimi_linear"}, 6 * (512 + 64) * 2, 6 * (512 + 64) * 2),
    (
        {"model_type": "minimax_m3_vl_text", "layer_types": ["full_attention"] * 3 + ["minimax_m3_sparse"] * 57},
        (60 * 2 * 4 * 128 + 57 * 128) * 2,
        (60 * 2 * 128 + 57 * 128) * 2,
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", TOKENS, ids=lambda case: case[0]["model_type"])
def test_tokens_are_those_of_the_engines_own_shapes(case):
    model = read_hf_config(case[0])
    assert [served_bytes_per_token(model, BF16, tp) for tp in (1, 4)] == list(case[1:])


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("case", TOKENS, ids=lambda case: case[0]["model_type"])
def test_routed_families_are_served(case, engine):
    asked = {"gpus": "16xH200", "engine": engine, "tp": 16, "max_model_len": 4096}
    answer = infer({**case[0], "dtype": "bfloat16"}, **asked)
    assert answer.serving is not None
    assert answer.serving["kv_bytes_per_token"] == case[1]


def test_a_table_of_positions_is_made_where_something_turns():
    """Kimi Linear's latents have no positions (kimi_linear.py, rotary_emb=None)."""
    kept = [read_hf_config({"model_type": name}) for name in ("kimi_linear", "bailing_hybrid")]
    assert [rope_bytes(model, BF16) for model in kept] == [0, 262144 * 64 * 2]


UNSERVED = [
    (engine, family)
    for engine in ("vllm", "sglang", "llama.cpp", "transformers")
    for family in find_engine(engine).serving.unserved
    if family != "mllama_cross"  # layers inside a model, no family of a configuration
]


SIZES = {
    "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 512, "num_experts": 4,
    "moe_intermediate_size": 128, "num_experts_per_tok": 2, "vocab_size": 1000,
}  # fmt: skip
"""Of families whose configurations have no defaults."""
WITHOUT_DEFAULTS = ("bailing_moe", "bailing_moe_v2")
TURNING = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "vocab_size": 64000}
"""Of Baichuan's smaller models, whose positions turn."""


@every("engine, family", UNSERVED)
def test_a_family_without_code_is_refused_by_name(engine, family):
    sizes = TURNING if family == "baichuan" else SIZES if family in WITHOUT_DEFAULTS else {}
    config = {"model_type": family, **sizes}
    with pytest.raises(InputError, match=f"does not serve {family}"):
        infer(config, gpus="8xH200", engine=engine, max_model_len=2048)


def test_releases_before_a_family_was_taken_out_serve_it():
    asked = {"gpus": "8xH200", "engine": "vllm", "tp": 8, "max_model_len": 2048}
    assert infer({"model_type": "minimax"}, engine_version="0.20.2", **asked).serving is not None


def test_a_page_of_attention_is_as_large_as_a_state():
    """2,134,016 bytes of a state in tokens of 1,024, to the next sixteen (platforms/interface.py:1097)."""
    model = read_hf_config({**NANO, "dtype": "bfloat16"})
    layout = layout_of(kinds_of(model, plan_of(model, "vllm"), release_of(None)), release_of(None))
    assert layout.block_bytes == 6 * 2096 * 1024
    assert [group.layers for group in layout.groups] == [6] * 5


@pytest.mark.parametrize("tag", ["0.20.2", "0.33.0"])
def test_a_release_that_exports_states_inside_prompts_keeps_one_more(tag):
    release = release_of(tag)
    model = read_hf_config({**NANO, "dtype": "bfloat16"})
    kinds = kinds_of(model, plan_of(model, "vllm"), release)
    assert {kind.checkpoints for kind in kinds if kind.kept is CacheReach.STATE} == {
        int(release is RELEASES[-1])
    }


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("case", STATES, ids=named)
def test_they_are_served(case, engine):
    answer = infer({**case[0], "dtype": "bfloat16"}, gpus="1xH200", engine=engine, max_model_len=4096)
    assert answer.serving is not None
    assert answer.serving["kv_bytes_per_token"] > 0


@pytest.mark.parametrize("case", STATES[1:], ids=named)
def test_llama_cpp_refuses_all_but_nemotron_by_name(case):
    with pytest.raises(InputError, match=case[0]["model_type"]):
        infer(case[0], gpus="1xH200", engine="llama.cpp")
