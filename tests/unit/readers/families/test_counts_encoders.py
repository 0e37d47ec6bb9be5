"""Parameters of encoders: every name, shape and count as in the real model on the meta device."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[3]))

from memsheet.errors import InputError
from memsheet.formulas.states.params import parameter_count
from memsheet.readers.hf_config import read_hf_config
from oracle import assert_same_model

FOUR_LABELS = {"id2label": {"0": "a", "1": "b", "2": "c", "3": "d"}}
TASKS = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
TOKENS = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 1)
MODERN = {
    "hidden_size": 60, "num_attention_heads": 5, "intermediate_size": 100, "num_hidden_layers": 5, "vocab_size": 401, **TOKENS,
}  # fmt: skip
DISTIL = {
    "dim": 60,
    "n_layers": 3,
    "n_heads": 5,
    "hidden_dim": 130,
    "vocab_size": 401,
    "max_position_embeddings": 70,
}
BERT = {
    "hidden_size": 60, "num_hidden_layers": 3, "num_attention_heads": 5, "intermediate_size": 130, "vocab_size": 401,
    "max_position_embeddings": 70,
}  # fmt: skip
RELATIVE = {
    **BERT, "relative_attention": True, "position_buckets": 16, "norm_rel_ebd": "layer_norm", "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"], "position_biased_input": False,
}  # fmt: skip
FAMILIES = {
    "ModernBert": ("modernbert", MODERN),
    "DistilBert": ("distilbert", DISTIL),
    "Electra": ("electra", {**BERT, "embedding_size": 44}),
    "DebertaV2": ("deberta-v2", RELATIVE),
}


def _classes():
    for prefix, (model_type, sizes) in FAMILIES.items():
        more = ("PreTraining", "CausalLM") if prefix == "Electra" else ()
        for name in (*(f"{prefix}For{task}" for task in (*TASKS, *more)), f"{prefix}Model"):
            labels = {} if "QuestionAnswering" in name else FOUR_LABELS  # whose two are start and end
            yield name, {"model_type": model_type, **sizes, **labels, "architectures": [name]}
        yield f"{prefix}ForMaskedLM", {"model_type": model_type, **sizes, "tie_word_embeddings": False}


CHEAP: list[tuple[str, dict[str, Any]]] = [
    ("ModernBertForMaskedLM", {"model_type": "modernbert", **MODERN}),
    ("DistilBertForMaskedLM", {"model_type": "distilbert", **DISTIL}),
    ("ElectraForMaskedLM", {"model_type": "electra", **BERT}),
    ("DebertaV2ForMaskedLM", {"model_type": "deberta-v2", **RELATIVE}),
]
FULL: list[tuple[str, dict[str, Any]]] = [
    *_classes(),
    ("ModernBertForMaskedLM", {"model_type": "modernbert"}),
    ("DistilBertForMaskedLM", {"model_type": "distilbert"}),
    ("ElectraForMaskedLM", {"model_type": "electra"}),
    ("DebertaV2ForMaskedLM", {"model_type": "deberta-v2"}),
    ("ModernBertForMaskedLM", {
        "model_type": "modernbert", **MODERN, "norm_bias": True, "attention_bias": True, "mlp_bias": True, "decoder_bias": False,
        "tie_word_embeddings": False, "classifier_bias": True, "local_attention": 64, "global_attn_every_n_layers": 2,
    }),
    *(("ElectraForMultipleChoice", {"model_type": "electra", **BERT, **said, "embedding_size": 60, "architectures": ["ElectraForMultipleChoice"]})
      for said in ({"summary_use_proj": False}, {"summary_proj_to_labels": True, **FOUR_LABELS})),
    ("DebertaV2ForMaskedLM", {
        "model_type": "deberta-v2", **BERT, "legacy": False, "tie_word_embeddings": False, "type_vocab_size": 3, "conv_kernel_size": 3,
        "conv_groups": 2, "relative_attention": True, "pos_att_type": "c2p|p2c", "max_relative_positions": -1,
    }),
    ("DebertaV2ForMaskedLM", {
        "model_type": "deberta-v2", **BERT, "embedding_size": 44, "relative_attention": True, "pos_att_type": ["c2p"], "max_relative_positions": 33,
    }),
]  # fmt: skip


def _label(case: tuple[str, dict[str, Any]]) -> str:
    return case[0]


@pytest.mark.parametrize("case", CHEAP, ids=_label)
def test_names_counts_shapes_and_modules(case):
    assert_same_model(*case)


@pytest.mark.slow
@pytest.mark.parametrize("case", FULL, ids=_label)
def test_names_counts_shapes_and_modules_full(case):
    assert_same_model(*case)


@pytest.mark.parametrize(("config", "parameters"), [
    ({"model_type": "modernbert"}, 149_655_232),  # answerdotai/ModernBERT-base, masked LM
    ({"model_type": "distilbert"}, 66_985_530),  # distilbert/distilbert-base-uncased, masked LM
])  # fmt: skip
def test_released_models(config, parameters):
    assert parameter_count(read_hf_config(config)) == parameters


def test_every_third_layer_of_modernbert_is_full():
    stack = read_hf_config({"model_type": "modernbert", "num_hidden_layers": 7}).stacks[0]
    layers = [block for run in stack.runs for block in run.pattern * run.count]
    assert [layer.mixers[0].window for layer in layers] == [None, 128, 128, None, 128, 128, None]
    assert [len(layer.norms) for layer in layers] == [1, 2, 2, 2, 2, 2, 2]


@pytest.mark.parametrize(("config", "field"), [
    ({"model_type": "modernbert", "architectures": ["BertModel"]}, "architectures"),
    ({"model_type": "modernbert", "num_attention_heads": 7}, "hidden_size"),
    ({"model_type": "distilbert", "n_heads": 7}, "dim"),
    ({"model_type": "deberta-v2", "attention_head_size": 10}, "attention_head_size"),
    ({"model_type": "deberta-v2", "conv_groups": 7, "conv_kernel_size": 3}, "hidden_size"),
])  # fmt: skip
def test_refusals_name_the_field(config, field):
    with pytest.raises(InputError) as refusal:
        read_hf_config(config)
    assert any(problem.field == field for problem in refusal.value.problems), str(refusal.value)
