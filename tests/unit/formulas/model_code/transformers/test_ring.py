"""Sequences shared by ranks under fsdp2, as accelerate has torch run them."""

from __future__ import annotations

from typing import Any

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.questions.traced import Options, trace_with_timelines
from memsheet.sheet import Component, Instant, Sheet

pytestmark = pytest.mark.usefixtures("warm_children")

TINY: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 1000, "tie_word_embeddings": False, "head_dim": 64,
}  # fmt: skip
ASKED: dict[str, Any] = {"engine": "fsdp2", "dp_shard": 1, "cp": 4, "gpus": "4xH100-80GB", "seq_len": 2048}


def sheet(config: dict[str, Any] = TINY, **asked: Any) -> Sheet:
    return memsheet.train(config, **{**ASKED, **asked}, fix=False).sheets[0]


def saved(held: Sheet) -> int:
    return held.of(Component.SAVED_ACTIVATIONS, instant=Instant.FORWARD).value


@pytest.mark.parametrize(
    ("asked", "family"),
    [
        ({"microbatch": 2}, {}),
        ({"recompute": "full", "precision": "bf16-pure"}, {"model_type": "qwen3", "num_key_value_heads": 8}),
        ({"global_batch": 3, "zero": 2}, {"model_type": "qwen2"}),
    ],
    ids=str,
)
def test_every_instant_is_that_of_the_real_ring(asked: dict[str, Any], family: dict[str, Any]) -> None:
    """On a rank that merges whole parts and halves, which all but the first and the last do."""
    config, plan = {**TINY, **family}, {**ASKED, **asked}
    answer, _ = trace_with_timelines(config, Options(scratch=False, rank=1), **plan)
    traced, predicted = answer.sheets[0], sheet(config, **asked)
    for instant in traced.instants:
        assert predicted.at(instant).value == pytest.approx(
            traced.at(instant).value, abs=1e-3 * traced.peak.value
        ), instant


def test_of_two_ranks_a_sheet_holds_what_either_does() -> None:
    """The first merges halves and copies what comes of it, the second merges whole parts and does not."""
    asked = {"cp": 2, "gpus": "2xH100-80GB", "seq_len": 1024}
    plan, predicted = {**ASKED, **asked}, sheet(**asked)
    traces = [
        trace_with_timelines(TINY, Options(scratch=False, rank=rank), **plan)[0].sheets[0] for rank in (0, 1)
    ]
    for instant in predicted.instants:
        most = max(one.at(instant).value for one in traces)
        assert 0.999 * most <= predicted.at(instant).value <= 1.02 * most, instant


def test_a_rank_keeps_its_part_of_every_sequence_and_of_the_states() -> None:
    alone = sheet(cp=1, dp_shard=4, seq_len=512, recompute="full")
    shared = sheet(recompute="full")
    assert saved(alone) == pytest.approx(saved(shared), rel=0.05)  # of as many tokens
    states = [one.of(Component.OPTIMIZER_STATES, instant=Instant.LOAD) for one in (alone, shared)]
    assert states[0] == states[1]


def test_a_fused_loss_is_of_the_tokens_that_a_rank_has() -> None:
    """Liger's takes the labels that were shifted before sequences were cut."""
    alone, shared = sheet(cp=1, dp_shard=4, seq_len=512, loss="fused"), sheet(loss="fused")
    of_loss = [
        {one.path: one.at for one in held.items if one.path.startswith("loss/")} for held in (alone, shared)
    ]
    assert of_loss[0]
    assert of_loss[0] == of_loss[1]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"lora_rank": 8}, "with adapters"),
        ({"attention": "eager"}, "with eager attention"),
        ({"seq_len": 2044}, "are not 2 pieces"),
        ({"precision": "fp32"}, "in fp32"),
        ({"context_parallel_comm": "ring"}, "not modelled for fsdp2"),
    ],
)
def test_what_was_not_compared_is_refused(asked: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        sheet(**asked)


def test_windows_are_not_shared_out() -> None:
    with pytest.raises(InputError, match="accelerate refuses"):
        memsheet.train("gemma-3-1b", **ASKED, fix=False)
