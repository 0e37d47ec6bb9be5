"""Parameters of Gemma 3n, each name and count as in the real model on the meta device; and what engines
hold of it, against the arithmetic of their own modules.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from memsheet import infer
from memsheet.errors import InputError
from memsheet.formulas.serving.kv_cache import bytes_per_token
from memsheet.formulas.states.params import parameter_count
from memsheet.plan.dtypes import BF16
from memsheet.readers.hf_config import read_hf_config
from memsheet.sheet import Component, Instant
from oracle import assert_same_model, our_tensors

TEXT: dict[str, Any] = {
    "hidden_size": 96, "num_hidden_layers": 8, "num_attention_heads": 6, "num_key_value_heads": 3, "head_dim": 20, "vocab_size": 777,
    "vocab_size_per_layer_input": 333, "hidden_size_per_layer_input": 12, "intermediate_size": [10, 20, 30, 40, 50, 60, 70, 80],
    "laurel_rank": 5, "altup_num_inputs": 3, "num_kv_shared_layers": 2, "attention_bias": True, "activation_sparsity_pattern": [0.0] * 8,
    "layer_types": ["sliding_attention", "full_attention"] * 4,
}  # fmt: skip
AUDIO: dict[str, Any] = {
    "hidden_size": 64, "conf_num_attention_heads": 4, "conf_num_hidden_layers": 2, "conf_conv_kernel_size": 3, "sscp_conv_channel_size": [16, 8],
    "sscp_conv_kernel_size": [[3, 5], [2, 3]], "sscp_conv_stride_size": [[2, 3], [2, 2]], "input_feat_size": 60, "vocab_size": 50,
}  # fmt: skip
ALONE = {"model_type": "gemma3n_text"}


@pytest.mark.parametrize("config", [
    {**ALONE, **TEXT},
    {**ALONE, **TEXT, "tie_word_embeddings": False, "altup_num_inputs": 1, "num_kv_shared_layers": 0},
])  # fmt: skip
def test_names_and_counts(config: dict[str, Any]) -> None:
    assert_same_model("AutoModelForCausalLM", config)


@pytest.mark.slow
def test_default_names_and_counts() -> None:
    assert_same_model("AutoModelForCausalLM", ALONE)


@pytest.mark.slow
@pytest.mark.parametrize("config", [{}, {"text_config": TEXT, "audio_config": AUDIO}])
def test_towers_are_those_of_the_real_model(config: dict[str, Any]) -> None:
    pytest.importorskip("timm")
    assert_same_model("Gemma3nForConditionalGeneration", {"model_type": "gemma3n", **config})


def test_defaults_are_those_of_the_configuration_class() -> None:
    assert parameter_count(read_hf_config(ALONE)) == 6_835_235_568
    assert parameter_count(read_hf_config({"model_type": "gemma3n"})) == 7_818_517_072


def test_convolutions_are_those_of_timm() -> None:
    """294,126,912 parameters of timm 1.0.31's mobilenetv5_300m_enc, in 548 tensors."""
    spec = read_hf_config({"model_type": "gemma3n"})
    own = [weight for weight in spec.towers[0].embeddings if ".timm_model." in weight.path]
    assert (sum(weight.elements for weight in own), len(own)) == (294_126_912, 548)


def test_sound_has_a_tower_as_the_library_builds_it() -> None:
    """The conformer and its convolutions alone, which need no other library."""
    import torch
    import transformers

    with torch.device("meta"):
        real = transformers.Gemma3nAudioEncoder._from_config(transformers.Gemma3nAudioConfig(**AUDIO))
    ours = our_tensors(read_hf_config({"model_type": "gemma3n", "audio_config": AUDIO}))
    found = {path: count for path, count in ours.items() if path.startswith("model.audio_tower.")}
    assert sum(found.values()) == sum(parameter.numel() for parameter in real.parameters())


def test_a_token_takes_room_in_layers_that_keep_keys_of_their_own() -> None:
    assert bytes_per_token(read_hf_config(ALONE), BF16) == 2 * 2 * 20 * 2 * 256


def held(engine: str, ranks: int, **more: Any) -> int:
    """Bytes of parameters of a rank."""
    config = {"model_type": "gemma3n", "dtype": "bfloat16"}
    asked = {
        "gpus": f"{ranks}xH100-80GB",
        "tp": ranks,
        "max_model_len": 4096,
        "memory_fraction": 0.85,
        **more,
    }
    answer = infer(config, engine=engine, **asked)
    assert answer.serving is not None
    return int(answer.sheets[0].of(Component.PARAMETERS, instant=Instant.LOAD).value)


def own_modules(ranks: int, *, tables: int, keys: int, sound: int, joins: int) -> int:
    """Elements that an engine's modules hold of the default model on a rank: ``tables`` and ``joins`` are the
    ranks that share the tables of words and the embedders' projections, ``sound`` those of the conformer,
    ``keys`` the layers with projections to keys and values.
    """
    hidden, layers, words, beside, wide = 2048, 35, 262_400, 256, 16_384
    padded = -(-words // 64) * 64 if tables > 1 else words
    text = padded // tables * hidden + 262_144 // tables * layers * beside
    text += hidden * layers * beside // ranks + beside + 6 * hidden * hidden // ranks + hidden
    heads = 2 * hidden * 8 * 256 // ranks
    kept = 2 * hidden * max(1, 2 // ranks) * 256
    altup = 4 * 4 + 16 * 4 + 4 * hidden + hidden + hidden + hidden  # the scale is in four bytes: twice
    laurel = 2 * hidden * 64 // ranks + hidden
    layer = heads + 256 + 3 * hidden * wide // ranks + 2 * hidden * beside + 5 * hidden + altup + laurel
    text += layers * layer + keys * (kept + 256)
    own = 1536
    block = (4 * own * own + 8 * own * own * 2 + own * own + 3 * own * own) // sound
    block += own * 5 + 192 + own * 9
    audio = 12 * block + 128 * 9 + 32 * 128 * 9 + 128 + 32 + 32 * 32 * own // sound
    joined = sum(128 // ranks * width + 2 * width + width * hidden // joins for width in (2048, own))
    return text + audio + joined + 294_126_912


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_vllm_holds_what_its_modules_hold(ranks: int) -> None:
    """v0.33.0 model_executor/models/gemma3n.py, gemma3n_mm.py: towers whole, queries alone at the end."""
    expected = 2 * own_modules(ranks, tables=ranks, keys=20, sound=1, joins=ranks)
    assert held("vllm", ranks) == expected


def test_vllm_before_it_left_them_out_has_keys_in_all_layers() -> None:
    expected = 2 * own_modules(2, tables=2, keys=35, sound=1, joins=2)
    assert held("vllm", 2, engine_version="0.24.0") == expected


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_sglang_holds_what_its_modules_hold(ranks: int) -> None:
    """v0.5.23 models/gemma3n_causal.py, gemma3n_mm.py, gemma3n_audio.py: tables whole, the conformer cut."""
    expected = 2 * own_modules(ranks, tables=1, keys=35, sound=ranks, joins=1)
    assert held("sglang", ranks) == expected


@pytest.mark.parametrize(("engine", "layers"), [("vllm", 20), ("sglang", 35)])
def test_engines_keep_what_their_own_code_keeps_of_shared_layers(engine: str, layers: int) -> None:
    answer = infer({**ALONE, "dtype": "bfloat16"}, engine=engine, gpus="1xH100-80GB", max_model_len=4096)
    assert answer.serving is not None
    assert answer.serving["kv_bytes_per_token"] == layers * 2 * 2 * 2 * 256


def test_vllm_keeps_a_batch_of_vectors_for_all_layers() -> None:
    """Rows of a batch by 35 layers by 256 in bf16 (gemma3n_mm.py:638)."""
    asked: dict[str, Any] = {"gpus": "1xH100-80GB", "engine": "vllm", "max_model_len": 4096}
    answer = infer({"model_type": "gemma3n", "dtype": "bfloat16"}, max_batched_tokens=2048, **asked)
    (buffer,) = [item for item in answer.sheets[0].items if item.path == "per_layer_embeddings"]
    assert buffer.at[Instant.DECODE].value == 2048 * 35 * 256 * 2


@pytest.mark.parametrize(("config", "field"), [
    ({"num_kv_shared_layers": 8}, "num_kv_shared_layers"),
    ({"intermediate_size": [1, 2]}, "intermediate_size"),
])  # fmt: skip
def test_refusals_name_the_field(config: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refusal:
        read_hf_config({**ALONE, **TEXT, **config})
    assert any(problem.field == field for problem in refusal.value.problems), str(refusal.value)


def test_another_tower_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="mobilenetv5_300m_enc is"):
        read_hf_config({"model_type": "gemma3n", "vision_config": {"architecture": "resnet50"}})
