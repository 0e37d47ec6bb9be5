"""The root's group of embeddings and head: freed before its gradients are reduced, in the sheet as in the
script of the step.
"""

from __future__ import annotations

import pytest

from memsheet.catalog import find_device
from memsheet.plan.device import cluster_of
from memsheet.questions.accounted import answer_for_model
from memsheet.readers.hf_config import read_hf_config
from memsheet.sheet import Component, Derived, Sheet

CONFIG = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 8, "num_attention_heads": 16,
    "num_key_value_heads": 8, "vocab_size": 32_000, "max_position_embeddings": 8192, "tie_word_embeddings": False,
}  # fmt: skip


def sheet(cards: int, version: str, *, compiled: bool) -> Sheet:
    request = {
        "engine": "torchtitan", "task": "train", "engine_version": version, "compile": compiled, "microbatch": 1,
        "seq_len": 1024, "recompute.mode": "none",
    }  # fmt: skip
    cluster = cluster_of(find_device("H100-80GB"), cards, per_node=cards)
    spec = read_hf_config(CONFIG, name="small")
    return answer_for_model(spec, request, cluster, fix=False).sheets[0]


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("version", ["9dec370", "v0.1.0", "b5bcd76"])
def test_every_step_is_replayed_and_more_cards_reserve_no_more(version: str, compiled: bool) -> None:
    found = [sheet(cards, version, compiled=compiled) for cards in (2, 4, 8)]
    for each in found:
        (slack,) = (item for item in each.items if item.component is Component.ALLOCATOR_SLACK)
        assert isinstance(slack.evidence, Derived)
    reserved = [each.reserved.value for each in found]
    assert reserved == sorted(reserved, reverse=True)
