"""The layers that an adapter stands beside where nobody says."""

from dataclasses import replace

import pytest

from laws import every
from memsheet.errors import InputError
from memsheet.plan.adapter_targets import stacked_names
from memsheet.plan.defaults import STACKED_EXPERTS
from memsheet.plan.engine_registry import find_engine
from memsheet.plan.layers import has_experts, linear_names
from memsheet.plan.model import ModelSpec, Run
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request

SMALL = {"num_hidden_layers": 2, "head_dim": 64, "vocab_size": 1000}


def spec_of(family: str) -> ModelSpec:
    return read_hf_config({"model_type": family, **SMALL, "num_hidden_layers": 4})


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("llama", {"q_proj", "v_proj"}),
        ("xlm-roberta", {"query", "value"}),
        ("olmo3", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("minimax_m2", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("qwen3_5_text", {"q_proj", "k_proj", "v_proj", "o_proj"}),
        ("afmoe", {"q_proj", "k_proj", "v_proj", "o_proj"}),
    ],
)
def test_pefts_default_or_attentions_own_layers(family: str, targets: set[str]) -> None:
    model = read_hf_config({"model_type": family, **SMALL, "num_hidden_layers": 4})
    plan = resolve_request({"seq_len": 128, "adapter.rank": 8}, model).plan
    assert plan.adapter is not None
    assert set(plan.adapter.targets) == targets
    assert targets <= linear_names(model)


def is_read(family: str) -> bool:
    try:
        return has_experts(spec_of(family))
    except InputError:
        return False


MIXTURES = [family for family in sorted(STACKED_EXPERTS) if is_read(family)]


@every("family", MIXTURES)
@every("engine", ["transformers", "fsdp2", "deepspeed"])
def test_names_that_peft_takes_for_stacked_experts_are_refused_by_name(family: str, engine: str) -> None:
    """peft 0.21 with transformers 5 adapts the stacks then, and nothing of dense and shared layers."""
    model = spec_of(family)
    request = {"seq_len": 128, "adapter.rank": 8, "engine": engine}
    for name in STACKED_EXPERTS[family]:
        with pytest.raises(InputError, match="stacked matrices") as caught:
            resolve_request({**request, "adapter.targets": ["o_proj", name]}, model)
        (problem,) = [one for one in caught.value.problems if one.field == "adapter.targets"]
        assert problem.value == name
        usable = problem.hint.removeprefix("--lora-targets ").split(",")
        assert resolve_request({**request, "adapter.targets": usable}, model).plan.adapter is not None
    with pytest.raises(InputError, match="takes the stacked matrices"):
        resolve_request({**request, "adapter.targets": ["all-linear"]}, model)
    if linear_names(model) & set(STACKED_EXPERTS[family]):  # found one by one, they are named
        with pytest.raises(InputError, match="names the stacked matrices"):
            resolve_request({**request, "adapter.targets": ["all"]}, model)
    else:
        found = resolve_request({**request, "adapter.targets": ["all"]}, model).plan.adapter
        assert found is not None
        assert set(found.targets) == linear_names(model)


@pytest.mark.parametrize("family", MIXTURES)
def test_what_is_assumed_is_never_among_them(family: str) -> None:
    adapter = resolve_request({"seq_len": 128, "adapter.rank": 8}, spec_of(family)).plan.adapter
    assert adapter is not None
    assert not set(adapter.targets) & set(STACKED_EXPERTS[family])


def test_the_families_are_those_of_the_libraries() -> None:
    conversion = pytest.importorskip("transformers.conversion_mapping")
    peft = pytest.importorskip("peft.utils.transformers_weight_conversion")
    theirs = {
        family: set(peft._MOE_TARGET_MODULE_MAPPING[pattern])
        for family, pattern in conversion._MODEL_TO_CONVERSION_PATTERN.items()
        if pattern in peft._MOE_FUSED_TARGETS and family[0].islower()
    }
    assert {family: set(names) for family, names in STACKED_EXPERTS.items()} == theirs


def test_most_of_those_families_are_read() -> None:
    assert {"deepseek_v3", "qwen3_moe", "glm4_moe", "minimax_m2"} <= set(MIXTURES)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "mamba", "state_size": 16},
        {"model_type": "falcon_mamba", "state_size": 16},
        {"model_type": "mamba2", "num_heads": 8, "head_dim": 64, "n_groups": 1},
    ],
    ids=lambda config: config["model_type"],
)
def test_adapters_of_state_spaces_stand_where_one_can_run(config: dict[str, object]) -> None:
    sizes = {"hidden_size": 256, "num_hidden_layers": 4, "vocab_size": 4000}
    plan = resolve_request({"seq_len": 128, "adapter.rank": 8}, read_hf_config({**config, **sizes})).plan
    assert plan.adapter is not None
    assert set(plan.adapter.targets) == {"in_proj"}


def test_experts_of_a_model_on_record_are_known_by_their_weights() -> None:
    """Before anyone asks how it is served, its layers are weights alone."""
    model = read_hf_config({"model_type": "qwen3_moe", **SMALL})
    (block, *_) = model.blocks()
    assert block.feed_forward is not None
    bare = replace(block, feed_forward=None, extras=(*block.extras, *block.feed_forward.weights))
    (stack,) = model.stacks
    alike = replace(model, stacks=(replace(stack, runs=(Run(pattern=(bare,), count=2),)),))
    engine = find_engine("transformers")
    assert engine is not None
    assert not has_experts(alike)
    assert "gate_proj" in stacked_names(alike, engine)


LLAMA = read_hf_config({"model_type": "llama", **SMALL, "num_hidden_layers": 4})


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (["self_attn.q_proj"], ["q_proj"]),
        ([r"model.layers.[\d]+.(mlp|self_attn).(up|q)_proj"], ["q_proj", "up_proj"]),
        ([r".*\.mlp\.(gate|up)_proj|.*\.self_attn\.o_proj"], ["gate_proj", "o_proj", "up_proj"]),
        ([r"language_model.model.layers.[\d]+.mlp.(up)_proj"], ["up_proj"]),
    ],
)
def test_paths_and_patterns_are_the_layers_that_they_take(asked: list[str], names: list[str]) -> None:
    plan = resolve_request({"seq_len": 128, "adapter.rank": 8, "adapter.targets": asked}, LLAMA).plan
    assert plan.adapter is not None
    assert sorted(plan.adapter.targets) == names


def test_a_part_of_the_layers_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="takes a part of the layers that are called up_proj"):
        resolve_request(
            {"seq_len": 128, "adapter.rank": 8, "adapter.targets": [r"model.layers.(0|2).mlp.up_proj"]}, LLAMA
        )


@pytest.mark.parametrize("slow", [r"(.*a)*b", ".*" * 9 + "x", "(" * 5, "a" * 5000 + "(b)"])
def test_a_pattern_that_may_take_for_ever_is_not_tried(slow: str) -> None:
    with pytest.raises(InputError, match="names no linear layer"):
        resolve_request({"seq_len": 128, "adapter.rank": 8, "adapter.targets": [slow]}, LLAMA)


@pytest.mark.parametrize("engine", ["transformers", "deepspeed", "fsdp2"])
def test_an_adapter_on_no_layer_is_refused_as_peft_refuses_it(engine: str) -> None:
    """Never an answer of a step in which nothing trains."""
    model = spec_of("llama")
    asked = {"seq_len": 128, "adapter.rank": 8, "adapter.targets": [], "engine": engine}
    with pytest.raises(InputError, match="names no linear layer"):
        resolve_request(asked, model)
    asked |= {"engine": "transformers", "adapter.full_modules": ["lm_head"]}
    assert resolve_request(asked, model).plan.adapter is not None
