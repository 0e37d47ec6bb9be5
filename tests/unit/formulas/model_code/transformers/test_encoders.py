"""Encoders with dropout against peaks of their real code, the heads that are known and those that are
refused, and what older versions of torch kept. The traces ran transformers 5.23 on tensors without memory, as
those of ``traced_families.json`` did.
"""

from dataclasses import replace
from typing import Any

import pytest

from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.plan.torch_versions import READ, gradients_stay, softmax_keeps_input, torch_version
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant, Sheet

SHAPE: dict[str, Any] = {
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "vocab_size": 4000,
    "intermediate_size": 2048,
}
ROWS = {"bert": 512, "roberta": 514}
LENGTH, SEQUENCES = 512, 2
CLOSE = 1e-4


def config(kind: str, head: str | None = None, **more: Any) -> dict[str, Any]:
    named = {"architectures": [f"{kind.capitalize()}For{head}"]} if head else {}
    return {"model_type": kind, **SHAPE, "max_position_embeddings": ROWS[kind], **named, **more}


def sheet(description: dict[str, Any], **asked: Any) -> Sheet:
    model = read_hf_config(description)
    request = {
        "engine": "transformers", "seq_len": LENGTH, "microbatch": SEQUENCES, "optimizer.implementation": "fused", "attention": "eager",
        "precision.name": "fp32", "dropout": 0.1, **asked,
    }  # fmt: skip
    return account_rank(model, resolve_request(request, model).plan)


@pytest.mark.parametrize(
    ("kind", "head", "attention", "precision", "recompute", "forward", "backward"),
    [
        ("bert", "SequenceClassification", "eager", "fp16-autocast", "none", 441_878_868, 432_939_364),
        ("bert", "SequenceClassification", "eager", "fp16-autocast", "full", 254_636_372, 307_670_372),
        ("bert", None, "sdpa", "bf16-pure", "none", 184_832_844, 193_024_844),
        ("roberta", "SequenceClassification", "eager", "fp32", "none", 478_566_764, 489_580_924),
        ("bert", "TokenClassification", "sdpa", "bf16-autocast", "none", 304_648_596, 301_991_332),
    ],
)  # fmt: skip
def test_dropout_has_the_traced_high_water_marks(
    kind: str, head: str | None, attention: str, precision: str, recompute: str, forward: int, backward: int
) -> None:
    found = sheet(
        config(kind, head), attention=attention, **{"precision.name": precision, "recompute.mode": recompute}
    )
    assert max(found.at(Instant.FORWARD).value, found.at(Instant.LOSS).value) == pytest.approx(
        forward, rel=CLOSE
    )
    assert found.at(Instant.BACKWARD).value == pytest.approx(backward, rel=CLOSE)


def test_masked_words_cost_logits_and_classes_of_a_sequence_do_not() -> None:
    words, kinds = (sheet(config("bert", head), dropout=0.0) for head in (None, "SequenceClassification"))
    logits = 4 * SEQUENCES * LENGTH * SHAPE["vocab_size"]
    assert words.at(Instant.LOSS).value - kinds.at(Instant.LOSS).value > logits


def test_an_encoder_adds_no_mask_and_a_decoder_of_the_same_layers_one() -> None:
    both_ways, one_way = (sheet(config("bert", **more), dropout=0.0) for more in ({}, {"is_decoder": True}))
    assert one_way.at(Instant.BACKWARD).value == both_ways.at(Instant.BACKWARD).value
    assert one_way.at(Instant.FORWARD).value > both_ways.at(Instant.FORWARD).value


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        (config("bert", "QuestionAnswering"), "where an answer starts"),
        (config("bert", "PreTraining"), "the next sentence"),
        (config("bert", hidden_act="gelu_new"), "another activation"),
        (config("bert", tie_word_embeddings=False), "not the embedding table"),
    ],
)
def test_a_head_with_a_loss_that_is_not_known_is_refused(description: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        sheet(description)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("5.23.0 (torch 2.13.0)", (2, 13)), ("2023-11 (torch 2.0)", (2, 0)), ("2022", (1, 10)), ("2022-06", (1, 11)), ("2022-11", (1, 13)),
        ("2023", (1, 13)), ("2023-03", (1, 13)), ("2024", READ), ("4.51.3", READ), ("core_r0.5", READ), (None, READ), ("2019", (1, 9)),
    ],
)  # fmt: skip
def test_a_version_or_a_date_names_a_torch(text: str | None, version: tuple[int, int]) -> None:
    assert torch_version(text) == version


def test_older_versions_never_keep_less() -> None:
    dates = ("2021", "2022", "2023", "2024")
    assert [softmax_keeps_input(date) for date in dates] == [True, True, False, False]
    assert [gradients_stay(date) for date in dates] == [True, True, True, False]


def test_an_old_softmax_keeps_one_more_matrix_of_scores_a_layer() -> None:
    description = config("bert", "SequenceClassification")
    new, old = (sheet(description, engine_version=version) for version in (None, "2022"))
    scores = 4 * SEQUENCES * SHAPE["num_attention_heads"] * LENGTH * LENGTH
    saved = [one.of(Component.SAVED_ACTIVATIONS, instant=Instant.BACKWARD).value for one in (new, old)]
    assert saved[1] - saved[0] == SHAPE["num_hidden_layers"] * scores


def test_gradients_that_are_zeroed_are_there_in_forward() -> None:
    description = config("bert", "SequenceClassification")
    gone, zeroed = (sheet(description, engine_version=version) for version in ("2024", "2023"))
    parameters = zeroed.of(Component.PARAMETERS, instant=Instant.FORWARD).value
    assert gone.of(Component.GRADIENTS, instant=Instant.FORWARD).value == 0
    assert zeroed.of(Component.GRADIENTS, instant=Instant.FORWARD).value == parameters
    assert zeroed.at(Instant.BACKWARD).value > gone.at(Instant.BACKWARD).value


def test_a_pooler_that_no_head_takes_stays_with_the_model() -> None:
    model = read_hf_config(config("bert", "SequenceClassification"))
    held = (
        sheet(config("bert", "SequenceClassification"))
        .of(Component.PARAMETERS, instant=Instant.FORWARD)
        .value
    )
    pooler = sum(weight.elements for weight in model.extras)
    assert pooler == SHAPE["hidden_size"] * (SHAPE["hidden_size"] + 1)
    bare = replace(model, extras=())
    request: dict[str, Any] = {
        "engine": "transformers",
        "seq_len": LENGTH,
        "attention": "eager",
        "precision.name": "fp32",
    }
    assert (
        held
        - account_rank(bare, resolve_request(request, bare).plan)
        .of(Component.PARAMETERS, instant=Instant.FORWARD)
        .value
        == 4 * pooler
    )


def test_what_an_old_version_is_read_as_is_said() -> None:
    notes = sheet(config("bert"), engine_version="2022").notes
    assert any("torch 1.10" in note and "softmax" in note for note in notes)
    assert not any("torch" in note for note in sheet(config("bert")).notes)
