"""vLLM: encoders, which it makes vectors and scores with and keeps nothing of."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.budget import Answer
from memsheet.errors import InputError
from memsheet.questions.accounted import infer
from memsheet.sheet import Component, Instant

SIZES = {"hidden_size": 384, "num_hidden_layers": 4, "num_attention_heads": 6, "intermediate_size": 1536}
POOLED = {
    "bert": ("BertModel", "BertForSequenceClassification"),
    "roberta": ("RobertaModel", "RobertaForSequenceClassification"),
    "xlm-roberta": ("XLMRobertaModel", "XLMRobertaForSequenceClassification"),
    "modernbert": ("ModernBertModel", "ModernBertForSequenceClassification"),
}
CASES = [(kind, name) for kind, names in POOLED.items() for name in names]


def served(kind: str, name: str, engine: str = "vllm", **options: Any) -> Answer:
    config = {"model_type": kind, **SIZES, "architectures": [name]}
    asked = {"gpus": "1xA100-80GB", "max_model_len": 256, **options}
    return infer(config, engine=engine, **asked)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_nothing_is_kept(kind, name):
    (sheet,) = served(kind, name).sheets
    kinds = {item.component for item in sheet.items}
    assert Component.KV_CACHE not in kinds
    assert not {"sampler", "sampler_states", "pool"} & {item.path for item in sheet.items}


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_batch_may_be_larger_than_anybody_said(kind, name):
    few, many = (served(kind, name, max_batched_tokens=tokens).sheets[0] for tokens in (1024, 65536))
    low, high = (sheet.of(Component.TEMPORARIES, instant=Instant.PREFILL) for sheet in (few, many))
    assert low.high > 8 * low.value  # up to 32,768 tokens in some releases
    assert high.value > 32 * low.value
    assert high.high < 2 * high.value  # not beyond what was asked for


@pytest.mark.parametrize("sequences", [1, 40])
def test_as_many_at_once_as_may_be_started(sequences):
    facts = dict(served("bert", "BertModel", sequences=sequences).serving or {})
    assert facts["max_sequences"] == {"256": sequences}
    assert facts["kv_bytes_per_token"] == 0
    assert "start_up" not in facts


def test_cut_over_two_cards():
    whole, half = (
        served("bert", "BertModel", tp=tp, gpus=f"{tp}xA100-80GB").sheets[0].of(Component.PARAMETERS)
        for tp in (1, 2)
    )
    assert whole.value / 2 < half.value < whole.value


@pytest.mark.parametrize(("kind", "name", "engine"), [
    ("bert", "BertForMaskedLM", "vllm"),
    ("deberta-v2", "DebertaV2Model", "vllm"),
    ("bert", "BertModel", "sglang"),
    ("bert", "BertModel", "llama.cpp"),
])  # fmt: skip
def test_what_is_not_pooled_is_refused_by_name(kind, name, engine):
    with pytest.raises(InputError) as refusal:
        served(kind, name, engine)
    assert f"{kind} is an encoder" in str(refusal.value)
