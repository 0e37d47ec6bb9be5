"""What of a tower ``fully_shard`` leaves to the root's group: as accelerate wraps the library's own model."""

import random
import sys
from pathlib import Path

import pytest

from memsheet.formulas.sharding.per_parameter_sizes import root_tower_weights
from memsheet.formulas.states.params import fold_path_indices, tower_tensors
from memsheet.plan.words import request_from
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[4] / "benchmarks"))

FAMILIES = (
    "smolvlm", "idefics3", "internvl", "llava", "llava_next", "llava_onevision", "paligemma", "gemma3", "mistral3", "qwen2_vl", "qwen2_5_vl",
    "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "exaone4_5", "glm4v", "lfm2_vl", "minimax_m3_vl", "kimi_k25", "llama4", "qwen2_5_omni_thinker",
    "qwen3_omni_moe_thinker",
)  # fmt: skip


@pytest.mark.slow
def test_the_root_has_what_the_library_wraps_in_no_group():
    from random_plans import drawn_config

    asked = request_from({"precision": "bf16-pure", "attention": "eager", "seq_len": 100, "microbatch": 1})
    plan = resolve_request({**asked, "task": "train"}, None, real=True).plan
    apart = {family: found for family in FAMILIES if (found := _difference(drawn_config, family, plan))}
    assert apart == {}


def _difference(drawn_config, family, plan):
    from memsheet.run.fsdp2 import fsdp_wrapped_modules
    from memsheet.run.model import build_config, build_model

    config = drawn_config(family, random.Random(family))
    spec = read_hf_config(config, name=family)
    model = build_model(build_config(config, plan), plan, "meta")
    wrapped = {id(p) for unit in fsdp_wrapped_modules(model) for p in unit.parameters()}
    named = {fold_path_indices(name) for name, p in model.named_parameters() if id(p) not in wrapped}
    ours = {path for path, weight, _ in root_tower_weights(spec) if weight.elements}
    return ours ^ (named & {path for path, _, _ in tower_tensors(spec)})
