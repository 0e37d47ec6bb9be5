"""What servers keep of a sequence in layers without a cache, family by family: the shapes of their own code
written out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from memsheet import infer
from memsheet.engines.sglang.states import slot_bytes
from memsheet.engines.vllm.facts import RELEASES, release_of
from memsheet.engines.vllm.pages import Kept, kinds_of, layout_of
from memsheet.errors import InputError
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
    ({**NANO, "mamba_ssm_cache_dtype": "bfloat16"}, 23, (64 * 64, 2 * 128, 8, 3), 64 * 64 * 128, 2, 4),
    (GRANITE, 31, (8192, 2 * 256, 1, 3), 128 * 64 * 256, 2, 4),
    ({"model_type": "falcon_h1"}, 32, (1024, 2 * 256, 1, 3), 128 * 8 * 256, 2, 4),
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
    (kind,) = [kind for kind in kinds_of(model, plan, release_of(None)) if kind.kept is Kept.STATE]
    assert kind.layers == layers
    assert kind.page_bytes == (channels * kept * 2 + state * in_vllm) // tp
    assert slot_bytes(model, plan) == layers * (channels * kept * 2 + state * in_sglang) // tp


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
    assert {kind.checkpoints for kind in kinds if kind.kept is Kept.STATE} == {int(release is RELEASES[-1])}


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("case", STATES, ids=named)
def test_they_are_served(case, engine):
    answer = infer({**case[0], "dtype": "bfloat16"}, gpus="1xH200", engine=engine, max_model_len=4096)
    assert answer.serving is not None
    assert answer.serving["kv_bytes_per_token"] > 0


@pytest.mark.parametrize("case", STATES, ids=named)
def test_llama_cpp_refuses_them_by_name(case):
    with pytest.raises(InputError, match=case[0]["model_type"]):
        infer(case[0], gpus="1xH200", engine="llama.cpp")
