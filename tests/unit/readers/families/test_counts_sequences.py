"""Parameters of models that read one sequence and write another: every name, shape and count as in the real
model on the meta device.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from memsheet.errors import InputError
from memsheet.formulas.serving.kv_cache import bytes_per_token, cache_bytes
from memsheet.plan.dtypes import BF16
from memsheet.plan.model import CrossAttention
from memsheet.readers.hf_config import read_hf_config
from oracle import assert_same_model

SMALL: dict[str, Any] = {
    "d_model": 60, "encoder_layers": 3, "decoder_layers": 2, "encoder_attention_heads": 5, "decoder_attention_heads": 6,
    "decoder_ffn_dim": 100, "encoder_ffn_dim": 90, "vocab_size": 401, "pad_token_id": 0,
}  # fmt: skip
PLACED = {**SMALL, "max_position_embeddings": 70}
HEARD = {**SMALL, "num_mel_bins": 20, "max_source_positions": 50, "max_target_positions": 40}
CHEAP: list[tuple[str, dict[str, Any]]] = [
    ("WhisperForConditionalGeneration", {"model_type": "whisper", **HEARD}),
    ("BartForConditionalGeneration", {"model_type": "bart", **PLACED}),
    ("MBartForConditionalGeneration", {"model_type": "mbart", **PLACED}),
    ("PegasusForConditionalGeneration", {"model_type": "pegasus", **PLACED}),
]
UNTIED = [(name, {**config, "tie_word_embeddings": False}) for name, config in CHEAP]
OTHERS = [
    (name, {"model_type": model_type, **PLACED, **labels, "architectures": [name]})
    for model_type, names in {
        "bart": ("BartModel", "BartForSequenceClassification", "BartForQuestionAnswering"),
        "mbart": ("MBartModel", "MBartForSequenceClassification", "MBartForQuestionAnswering"),
        "pegasus": ("PegasusModel",),
    }.items()
    for name in names
    for labels in ({}, *([{"num_labels": 5}] if "Sequence" in name else []))
]
FULL = [
    *UNTIED,
    *OTHERS,
    ("BartModel", {**OTHERS[0][1], "tie_word_embeddings": False}),
    *((name, {"model_type": config["model_type"]}) for name, config in CHEAP),
]


def _label(case: tuple[str, dict[str, Any]]) -> str:
    return case[0]


@pytest.mark.parametrize("case", CHEAP, ids=_label)
def test_names_counts_shapes_and_modules(case):
    assert_same_model(*case)


@pytest.mark.slow
@pytest.mark.parametrize("case", FULL, ids=_label)
def test_names_counts_shapes_and_modules_full(case):
    assert_same_model(*case)


def test_cross_attention_of_whisper_keeps_what_the_encoder_heard():
    """1,500 positions in each layer, whatever is written; a token adds to self-attention alone."""
    spec = read_hf_config({"model_type": "whisper"})
    layer = 2 * 384 * 2  # keys and values of 6 heads of 64 in two bytes
    assert bytes_per_token(spec, BF16) == 4 * layer
    kept = cache_bytes(spec, BF16, 100, 3, memory_tokens=spec.towers[0].tokens_per_image)
    assert kept == {
        "model.decoder.layers.*.self_attn": 4 * 3 * 100 * layer,
        "model.decoder.layers.*.encoder_attn": 4 * 3 * 1500 * layer,
    }


@pytest.mark.parametrize("kind", ["bart", "mbart", "pegasus", "whisper"])
def test_only_decoders_cross(kind):
    spec = read_hf_config({"model_type": kind})
    for stack in (*spec.stacks, *(tower.stack for tower in spec.towers)):
        mixers = [mixer for run in stack.runs for block in run.pattern for mixer in block.mixers]
        assert any(isinstance(mixer, CrossAttention) for mixer in mixers) == (stack.role == "decoder")
        assert mixers[0].causal == (stack.role == "decoder")


@pytest.mark.parametrize(("config", "field"), [
    ({"model_type": "whisper", "architectures": ["WhisperForAudioClassification"]}, "architectures"),
    ({"model_type": "whisper", "decoder_attention_heads": 7}, "d_model"),
    ({"model_type": "bart", "encoder_attention_heads": 7}, "d_model"),
    ({"model_type": "pegasus", "architectures": ["PegasusForSequenceClassification"]}, "architectures"),
])  # fmt: skip
def test_refusals_name_the_field(config, field):
    with pytest.raises(InputError) as refusal:
        read_hf_config(config)
    assert any(problem.field == field for problem in refusal.value.problems), str(refusal.value)
