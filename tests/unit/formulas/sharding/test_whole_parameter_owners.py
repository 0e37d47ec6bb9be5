"""InternEvo: how parameters are dealt to ranks, what its layers save, what its optimizer keeps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memsheet.account import account_bare, account_rank
from memsheet.errors import InputError
from memsheet.formulas.sharding.whole_parameter_owners import partition_whole_parameters
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant, Sheet

H, F, HEADS, VOCAB, LAYERS, LENGTH = 512, 1408, 8, 4000, 4, 256
CONFIG = {
    "model_type": "llama", "hidden_size": H, "intermediate_size": F, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS, "vocab_size": VOCAB, "max_position_embeddings": LENGTH, "tie_word_embeddings": False,
    "attention_bias": True,
}  # fmt: skip
BLOCK = 3 * H * H + 3 * H + H * H + H + 3 * H * F + 2 * H
TOTAL = LAYERS * BLOCK + 2 * VOCAB * H + H


def sheet(over: dict[str, Any] | None = None, **asked: Any) -> Sheet:
    spec = read_hf_config({**CONFIG, **(over or {})}, name="tiny")
    request = {
        "engine": "internevo",
        "task": "train",
        "mesh.dp_shard": 8,
        "microbatch": 2,
        "seq_len": LENGTH,
        "attention": "flash",
        **asked,
    }
    return account_rank(spec, resolve_request(request, spec).plan)


# what a step takes beyond what is there before it: PackedFlashBaseLayer1D's forward and its checkpoints on
# tensors without memory, the
# kernels of flash-attn and apex stood in for by functions that keep what they keep, no optimizer
TRACED = [
    (4000, "none", 45_860_932, 50_477_128),
    (30_000, "none", 72_484_932, 103_725_128),
    (64, "none", 42_285_120, 45_102_152),
    (4000, "full", 8_925_184, 40_389_656),
]


@pytest.mark.parametrize(("vocab", "recompute", "forward", "backward"), TRACED)
def test_a_step_is_that_of_its_own_code(vocab: int, recompute: str, forward: int, backward: int) -> None:
    """Recomputed layers run to their end there and hold on to their output, which is left out here."""
    found = sheet({"vocab_size": vocab}, **{"mesh.dp_shard": 1, "recompute.mode": recompute})
    before = found.at(Instant.LOAD).value
    bucket = next(i.at[Instant.BACKWARD].value for i in found.items if i.path == "zero/flat_bucket")
    assert max(found.at(i).value for i in (Instant.FORWARD, Instant.LOSS)) - before == pytest.approx(
        forward, rel=2e-3
    )
    assert found.at(Instant.BACKWARD).value - before - bucket == pytest.approx(
        backward, rel=0.015 if recompute == "full" else 1e-3
    )


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=60), st.integers(1, 16))
def test_every_parameter_is_dealt_once(sizes: list[int], ranks: int) -> None:
    found = partition_whole_parameters(sizes, ranks)
    assert sum(found) == sum(sizes)
    assert len(found) == ranks


def test_one_rank_has_everything() -> None:
    assert partition_whole_parameters([5, 3, 2], 1) == [10]


def test_what_exceeds_a_share_goes_to_the_next_rank() -> None:
    """The first parameter is more than the share of 7, so rank 0 has none; it is not counted on rank 1, which
    takes 4 and 2 besides. Nor is the 5 on rank 2, so nothing is left for the last.
    """
    assert partition_whole_parameters([10, 4, 2, 5, 7], 4) == [0, 16, 12, 0]


def test_parameters_and_gradients_are_whole() -> None:
    found = sheet(global_batch=64)
    assert found.of(Component.PARAMETERS, instant=Instant.LOAD).value == 2 * TOTAL
    assert found.of(Component.GRADIENTS, instant=Instant.FORWARD).value == 2 * TOTAL


def test_states_are_of_the_rank_that_has_most() -> None:
    found = sheet()
    moments, master = (
        found.of(c, instant=Instant.LOAD).value
        for c in (Component.OPTIMIZER_STATES, Component.MASTER_WEIGHTS)
    )
    assert moments == 2 * master
    assert master > 4 * TOTAL / 8
    assert master < 4 * TOTAL / 2


def test_what_a_layer_saves_when_norms_are_recomputed() -> None:
    """Two norms' inputs and results, joined projections, attention's result, gate, its activation, up and
    their product, rotary tables.
    """
    saved = sheet().of(Component.SAVED_ACTIVATIONS, instant=Instant.FORWARD).value
    tokens = 2 * LENGTH
    layer = tokens * (2 * (2 * H + 2 * H + 3 * H + H + 4 * F) + 2 * H // HEADS + 4 * HEADS)
    assert saved == pytest.approx(LAYERS * layer, rel=0.02)


def test_logits_become_their_gradient() -> None:
    """The loss adds next to nothing in backward to the logits that are there."""
    wide = sheet({"vocab_size": 100_000}, microbatch=8)
    logits = 2 * 8 * LENGTH * 100_000
    held = [
        i
        for i in wide.items
        if i.path.startswith(("loss", "lm_head")) and i.component is not Component.PARAMETERS
    ]
    kinds = (Component.SAVED_ACTIVATIONS, Component.TEMPORARIES)
    assert (
        sum(i.at[Instant.LOSS].value for i in held if Instant.LOSS in i.at and i.component in kinds)
        < 1.1 * logits
    )


def test_whole_layers_recomputed_save_less() -> None:
    assert sheet(**{"recompute.mode": "full"}).peak.value < sheet().peak.value


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"attention": "sdpa"}, "attention"),
        ({"zero": 2}, "zero"),
        ({"dropout": 0.1}, "dropout"),
        ({"mesh.tp": 2}, "mesh.tp"),
    ],
)
def test_refusals_name_the_field(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        sheet(**asked)
    assert field in {problem.field for problem in caught.value.problems}


def test_states_of_a_count_alone_are_divided() -> None:
    plan = resolve_request({"engine": "internevo", "task": "train", "mesh.dp_shard": 8}, None).plan
    found = account_bare(8_000_000, plan)
    assert found.of(Component.MASTER_WEIGHTS, instant=Instant.LOAD).value == 4 * 1_000_000
    assert found.of(Component.PARAMETERS, instant=Instant.LOAD).value == 2 * 8_000_000


def test_grouped_heads_are_refused() -> None:
    with pytest.raises(InputError):
        sheet({"num_key_value_heads": 2})
