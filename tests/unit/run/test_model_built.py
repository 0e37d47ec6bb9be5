"""The library's own model, built in the plan's dtype where it is wanted, whoever makes its tensors."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import nn  # noqa: E402

from memsheet.run.model import build_config, build_model, word_table  # noqa: E402
from memsheet.trace.recordings import record  # noqa: E402

XLNET = {
    "model_type": "xlnet",
    "d_model": 64,
    "n_head": 4,
    "d_head": 16,
    "n_layer": 2,
    "d_inner": 128,
    "vocab_size": 100,
}


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16-pure", torch.bfloat16)])
def test_tensors_of_old_constructors_are_where_the_model_is(precision, dtype):
    plan = record._plan_of({"precision": precision, "attention": "eager"})
    model = build_model(build_config(XLNET, plan), plan, "meta")
    named = dict(model.named_parameters())
    assert {one.device.type for one in named.values()} == {"meta"}
    assert named["transformer.layer.0.rel_attn.q"].dtype == dtype  # torch.FloatTensor in the library
    assert all(one.requires_grad for one in named.values())


def test_what_is_where_it_belongs_is_left_alone():
    plan = record._plan_of({"precision": "fp32", "attention": "eager"})
    model = build_model(build_config(XLNET, plan), plan, "cpu")
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight


def test_a_type_whose_config_two_types_have_is_built_all_the_same():
    plan = record._plan_of({"precision": "bf16-pure", "attention": "eager"})
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = build_model(
        build_config({"model_type": "evolla", "vocab_size": 100, **small}, plan), plan, "meta"
    )
    assert type(model).__name__ == "EvollaForProteinText2Text"


def test_a_type_that_is_given_a_picture_has_the_head_that_takes_one():
    plan = record._plan_of({"precision": "bf16-pure", "attention": "eager"})
    model = build_model(build_config({"model_type": "mllama"}, plan), plan, "meta")
    assert type(model).__name__ == "MllamaForConditionalGeneration"


def test_a_table_of_words_is_the_decoders_where_the_model_names_none():
    plan = record._plan_of({"precision": "bf16-pure", "attention": "eager"})
    model = build_model(build_config({"model_type": "pp_formulanet"}, plan), plan, "meta")
    assert word_table(model) is model.model.decoder.embed_tokens
    assert word_table(nn.Linear(1, 1)) is None


MAMBA = {"model_type": "falcon_h1", "hidden_size": 64, "num_hidden_layers": 2, "vocab_size": 64}


def test_a_number_that_json_has_no_word_for_is_what_the_library_reads():
    plan = record._plan_of({"precision": "fp32", "attention": "eager"})
    built = build_config(MAMBA | {"time_step_limit": [0.0, {"__float__": "Infinity"}]}, plan)
    assert tuple(built.time_step_limit) == (0.0, float("inf"))


def test_a_text_model_is_built_of_its_own_part_of_a_config():
    plan = record._plan_of({"precision": "fp32", "attention": "eager"})
    text = {
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "vocab_size": 64,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    config = {
        "model_type": "mllama",
        "architectures": ["MllamaForCausalLM"],
        "text_config": {**text, "pad_token_id": 1},
    }
    model = build_model(build_config(config, plan), plan, "meta")
    assert type(model).__name__ == "MllamaForCausalLM"
    assert model.config.model_type == "mllama_text_model"
