"""FullyShardedDataParallel around transformers' layers, against traces of torch's own code on tensors without
memory (torch 2.13).
"""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.formulas.states.params import parameter_count
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant, Sheet

CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 4, "vocab_size": 8000, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
SHORT = {"microbatch": 1, "seq_len": 8}
WIDE = {"vocab_size": 40_000}


def sheet(over: dict[str, Any] | None = None, **asked: Any) -> Sheet:
    spec = read_hf_config({**CONFIG, **(over or {})}, name="tiny")
    request = {
        "engine": "fsdp1",
        "task": "train",
        "mesh.dp_shard": 8,
        "microbatch": 2,
        "seq_len": 512,
        **asked,
    }
    return account_rank(spec, resolve_request(request, spec).plan)


# what one of 8 ranks holds at most in backward: fully sharded decoder layers, bf16 with fp32 shards, fused
# AdamW
TRACED = [
    ({}, {}, 435_035_932),
    ({}, {"recompute.mode": "full"}, 266_657_492),
    (WIDE, {"recompute.mode": "full"}, 885_370_556),
    ({"tie_word_embeddings": True}, {"recompute.mode": "full"}, 237_985_492),
    ({**WIDE, "tie_word_embeddings": True}, {"recompute.mode": "full"}, 742_010_556),
    ({}, {"mesh.dp_shard": 2}, 711_704_912),
    ({}, {"mesh.dp_shard": 7, "recompute.mode": "full"}, 281_442_856),
    ({**WIDE, "num_hidden_layers": 1}, SHORT, 677_916_952),
    ({**WIDE, "num_hidden_layers": 1, "tie_word_embeddings": True}, SHORT, 411_674_392),
    ({**WIDE, "num_hidden_layers": 1}, {**SHORT, "precision.reduce": "bf16"}, 636_956_440),
    ({"vocab_size": 500}, SHORT, 179_735_956),
    ({"vocab_size": 500}, {**SHORT, "precision.reduce": "bf16"}, 174_098_836),
]


@pytest.mark.parametrize(("over", "asked", "traced"), TRACED)
def test_backward_is_that_of_its_own_code(over: dict[str, Any], asked: dict[str, Any], traced: int) -> None:
    named = {
        "precision.parameters": "fp32",
        "precision.compute": "bf16",
        "precision.gradients": "fp32",
        "precision.moments": "fp32",
    }
    assert sheet(over, **{**named, **asked}).at(Instant.BACKWARD).value == pytest.approx(traced, rel=5e-5)


def test_the_optimizer_steps_shards() -> None:
    assert sheet().at(Instant.OPTIMIZER_STEP).value == pytest.approx(122_980_536, rel=1e-5)


def test_more_ranks_keep_less_and_gather_as_much() -> None:
    few, many = sheet(**{"mesh.dp_shard": 2}), sheet(**{"mesh.dp_shard": 16})
    kept = Component.OPTIMIZER_STATES
    assert few.of(kept, instant=Instant.LOAD).value == pytest.approx(
        8 * many.of(kept, instant=Instant.LOAD).value, rel=1e-5
    )
    gathered = Component.UNSHARDED_PARAMETERS
    assert few.of(gathered, instant=Instant.FORWARD).value == pytest.approx(
        many.of(gathered, instant=Instant.FORWARD).value, rel=1e-5
    )


def test_replicas_of_the_shards_change_nothing() -> None:
    assert sheet(**{"mesh.dp_replicate": 4}).peak.value == sheet().peak.value


def test_adapters_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        sheet(**{"adapter.rank": 8, "adapter.targets": ["q_proj"]})
    assert "adapter.rank" in {problem.field for problem in caught.value.problems}


def test_other_zero_stages_are_refused() -> None:
    with pytest.raises(InputError) as caught:
        sheet(zero=1)
    assert "zero" in {problem.field for problem in caught.value.problems}


def test_gradients_that_only_the_last_microbatch_reduces_are_whole_until_then() -> None:
    several = {"global_batch": 64, "precision.compute": "bf16"}
    every, last, unknown = (
        sheet(**several, **said).of(Component.GRADIENTS, instant=Instant.LOSS)
        for said in ({"gradient_sync": "every"}, {"gradient_sync": "last"}, {})
    )
    whole = 2 * parameter_count(read_hf_config(CONFIG, name="tiny"))
    assert every.low == every.high < last.low == last.value == last.high == pytest.approx(whole, rel=1e-3)
    assert (unknown.value, unknown.high) == (every.value, every.high + last.high)
