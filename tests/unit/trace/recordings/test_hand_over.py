"""What a server takes over of layers that differ in their sizes."""

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from memsheet.trace.recordings import record

GEMMA4 = {
    "model_type": "gemma4_text", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "global_head_dim": 32, "vocab_size": 500, "num_hidden_layers": 6,
    "vocab_size_per_layer_input": 500, "hidden_size_per_layer_input": 8,
    "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
}  # fmt: skip


def test_heads_of_layers_that_differ_are_each_layers_own():
    handing = record._stack_of(json.dumps(GEMMA4)).handing
    assert not handing.latent
    assert [found.head_dim for found in handing.attention if found] == [16, 32]


def test_a_model_whose_tables_hold_a_part_for_every_layer_runs_all_of_them():
    """Of fewer layers it would make smaller inputs of each layer."""
    assert record._stack_of(json.dumps(GEMMA4)).shallow.whole
    plain = {key: value for key, value in GEMMA4.items() if "per_layer" not in key and "types" not in key}
    assert not record._stack_of(json.dumps({**plain, "model_type": "llama"})).shallow.whole


def test_what_latents_and_delta_nets_keep_is_said_in_the_words_of_the_config():
    latent = {"model_type": "youtu", "num_hidden_layers": 2, "kv_lora_rank": 32, "qk_rope_head_dim": 16}
    sizes = dict(record._stack_of(json.dumps(latent)).handing.sizes[0])
    assert (sizes["kv_lora_rank"], sizes["qk_rope_head_dim"]) == (32, 16)
    assert not record._stack_of(json.dumps(GEMMA4)).handing.sizes[0]
