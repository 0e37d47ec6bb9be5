"""What Megatron-LM's arguments describe has the parameters of the same model by its published config."""

from __future__ import annotations

import pytest

from memsheet.catalog import find_model
from memsheet.errors import InputError
from memsheet.formulas.states.params import parameter_count
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.megatron_sizes import read_megatron_sizes

LLAMA_LIKE = {
    "swiglu": True, "normalization": "RMSNorm", "position_embedding_type": "rope", "disable_bias_linear": True, "group_query_attention": True,
    "untie_embeddings_and_output_weights": True,
}  # fmt: skip
SMALL = {
    "num_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "vocab_size": 1024,
    "max_position_embeddings": 256,
}


def arguments_of(config: dict) -> dict:
    return {
        "num_layers": config["num_hidden_layers"], "hidden_size": config["hidden_size"], "num_attention_heads": config["num_attention_heads"],
        "num_query_groups": config["num_key_value_heads"], "ffn_hidden_size": config["intermediate_size"], "vocab_size": config["vocab_size"],
    }  # fmt: skip


@pytest.mark.parametrize("name", ["llama-3.1-8b", "llama-3.1-70b", "mixtral-8x7b", "qwen2.5-7b", "qwen3-8b"])
def test_a_published_model_by_its_sizes(name: str) -> None:
    config = dict(find_model(name)["config"])
    more = {"num_experts": config["num_local_experts"]} if "num_local_experts" in config else {}
    more |= {"add_qkv_bias": True} if "qwen2" in config["model_type"] else {}
    more |= (
        {"qk_layernorm": True, "kv_channels": config["head_dim"]} if "qwen3" in config["model_type"] else {}
    )
    made = read_megatron_sizes({**arguments_of(config), **LLAMA_LIKE, **more})
    assert parameter_count(made) == parameter_count(read_hf_config(config))


def test_the_defaults_are_those_of_gpt_2() -> None:
    """Biases, layer norms, learned positions, a tied head, four times the width."""
    made = read_megatron_sizes(SMALL)
    h, layers, vocab, rows = 512, 4, 1024, 256
    each = 4 * h * h + 4 * h + 8 * h * h + 5 * h + 4 * h
    assert parameter_count(made) == (vocab + rows) * h + layers * each + 2 * h


@pytest.mark.parametrize(
    ("more", "extra"),
    [
        ({"untie_embeddings_and_output_weights": True}, 1024 * 512),
        ({"position_embedding_type": "rope"}, -256 * 512),
        ({"use_rotary_position_embeddings": True}, -256 * 512),
        ({"no_position_embedding": True}, -256 * 512),
        ({"normalization": "RMSNorm"}, -(2 * 4 + 1) * 512),
        ({"disable_bias_linear": True}, -4 * (4 * 512 + 4 * 512 + 512)),
        ({"disable_bias_linear": True, "add_qkv_bias": True}, -4 * (512 + 4 * 512 + 512)),
        ({"ffn_hidden_size": 1024}, -4 * (2 * 1024 * 512 + 1024)),
        ({"kv_channels": 32}, -4 * (2 * 512 * 512 + 3 * 256)),
    ],
)
def test_what_each_argument_changes(more: dict, extra: int) -> None:
    assert (
        parameter_count(read_megatron_sizes({**SMALL, **more})) - parameter_count(read_megatron_sizes(SMALL))
        == extra
    )


@pytest.mark.parametrize(
    ("freq", "routed"), [(1, 4), (2, 2), ("([0]*1+[1]*3)", 3), ("([0,1]*2)", 2), ("[1]*4", 4)]
)
def test_which_layers_have_experts(freq: object, routed: int) -> None:
    made = read_megatron_sizes({**SMALL, "num_experts": 8, "moe_layer_freq": freq})
    blocks = [block for stack in made.stacks for run in stack.runs for block in run.pattern * run.count]
    assert sum(type(block.feed_forward).__name__ == "Moe" for block in blocks) == routed


@pytest.mark.parametrize(
    "wrong",
    [
        {"num_attention_heads": 7}, {"num_layers": 0}, {"hidden_size": "x"}, {"num_experts": 2, "moe_router_topk": 3},
        {"num_experts": 2, "moe_layer_freq": "__import__('os')"}, {"num_experts": 2, "moe_layer_freq": "[1]*3"},
        {"group_query_attention": True, "num_query_groups": 3},
    ],
)  # fmt: skip
def test_sizes_that_make_no_model_are_refused(wrong: dict) -> None:
    with pytest.raises(InputError):
        read_megatron_sizes({**SMALL, **wrong})
