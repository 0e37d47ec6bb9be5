"""A model of text without a head, trained on pooled states: sheet and trace, and that it learns."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
from memsheet.sheet import Component, Instant  # noqa: E402 - torch is there
from technique_runs import at, predicted, recorded, training  # noqa: E402

BERT: dict[str, Any] = {
    "model_type": "bert", "architectures": ["BertModel"], "vocab_size": 1000, "hidden_size": 256, "intermediate_size": 1024,
    "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 512, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
ROBERTA = {**BERT, "model_type": "roberta", "architectures": ["RobertaModel"], "max_position_embeddings": 514}
SHAPE = {"seq_len": 128, "microbatch": 8, "attention": "sdpa"}


@pytest.mark.parametrize("config", [BERT, ROBERTA], ids=["bert", "roberta"])
@pytest.mark.parametrize(
    "asked",
    [{"precision": "bf16-autocast"}, {"precision": "fp32"}, {"precision": "bf16-pure", "recompute": "full"}],
    ids=["autocast", "fp32", "recompute"],
)
def test_the_sheet_is_the_traces(config: dict[str, Any], asked: dict[str, Any]) -> None:
    found = at(recorded(config, "cuda", fake=True, **SHAPE, **asked))
    said = at(predicted(config, "cuda", **SHAPE, **asked))
    most = max(found.values())
    for instant in ("load", "backward", "optimizer_step"):
        assert said[instant] == pytest.approx(found[instant], abs=0.002 * most), instant
    assert max(said.values()) == pytest.approx(most, rel=0.002)


def test_the_models_own_pooler_takes_no_gradient() -> None:
    """2 x 256 x 256 of states less than where a head takes what it makes."""
    sheet = predicted(BERT, "cuda", **SHAPE, precision="fp32")
    pooler = [item.component for item in sheet.items if "pooler" in item.path]
    assert Component.PARAMETERS in pooler
    assert not {Component.GRADIENTS, Component.OPTIMIZER_STATES} & set(pooler)
    assert sheet.at(Instant.LOAD).low == sheet.at(Instant.LOAD).high


def test_pairs_are_told_apart() -> None:
    """Sequences of the same words are partners: the loss falls."""
    step, losses = training(BERT, seq_len=16, microbatch=8, precision="fp32", attention="sdpa")
    ids = torch.randint(0, 1000, (4, 16), generator=torch.Generator().manual_seed(0)).repeat(2, 1)
    ids[4:, 8:] = torch.randint(0, 1000, (4, 8), generator=torch.Generator().manual_seed(1))
    for _ in range(12):
        step({"input_ids": ids, "labels": ids.clone()})
    assert losses[-1] < 0.5 * losses[0]
