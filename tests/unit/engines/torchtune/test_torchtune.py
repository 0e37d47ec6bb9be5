"""torchtune: layers, loss and states against traces of its own code (0.4.0 on tensors without memory), and
laws of compiled layers.
"""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.account import account_rank
from memsheet.errors import InputError
from memsheet.plan.engine_registry import find_engine
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve_request
from memsheet.sheet import Component, Instant, Sheet

CONFIG = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 2816, "num_hidden_layers": 3, "num_attention_heads": 16,
    "num_key_value_heads": 4, "vocab_size": 8000, "max_position_embeddings": 4096, "tie_word_embeddings": False,
}  # fmt: skip
LORA = {"adapter.rank": 8, "adapter.targets": ["q_proj", "v_proj"]}
ALONE = {"optimizer.name": "sgd", "optimizer_in_backward": True}


def sheet(over: dict[str, Any] | None = None, **asked: Any) -> Sheet:
    spec = read_hf_config({**CONFIG, **(over or {})}, name="tiny")
    request = {
        "engine": "torchtune",
        "task": "train",
        "microbatch": 2,
        "seq_len": 512,
        "loss": "chunked",
        "recompute.mode": "full",
        **asked,
    }
    return account_rank(spec, resolve_request(request, spec).plan)


# the peaks of two steps of lora_llama3_1 and llama3_1 (torchtune.models.llama3_1, torch 2.13), less what the
# trace calls inputs
TRACED = [
    ({}, 433_590_568),
    ({"recompute.mode": "none"}, 517_060_952),
    ({"microbatch": 1}, 404_189_472),
    ({"loss": "plain"}, 433_590_568),
    (ALONE, 177_596_568),
    (LORA, 165_705_968),
    ({**LORA, "microbatch": 1}, 133_820_648),
]


@pytest.mark.parametrize(("asked", "traced"), TRACED)
def test_peak_is_that_of_its_own_code(asked: dict[str, Any], traced: int) -> None:
    assert sheet(**asked).peak.value == pytest.approx(traced, rel=1e-4)


# the same of 0.1.1 (its own modules, a step as its recipe for one device writes it, its optimizer's), less
# inputs, where backward has most
OLDER = [
    ({"vocab_size": 1000}, {}, 374_026_832),
    ({"vocab_size": 1000}, {"recompute.mode": "none"}, 422_924_928),
    ({"vocab_size": 40_000}, {}, 1_394_692_472),
    ({"vocab_size": 1000, "num_key_value_heads": 4}, {}, 339_423_824),
    ({"vocab_size": 1000}, LORA, 150_985_296),
    ({}, {**LORA, "microbatch": 1}, 184_273_544),
    ({}, {**LORA, "recompute.mode": "none"}, 353_259_968),
]


@pytest.mark.parametrize(("over", "asked", "traced"), OLDER)
def test_the_first_releases_copy_all_logits(over: dict[str, Any], asked: dict[str, Any], traced: int) -> None:
    for version in ("0.1.1", "0.2"):
        found = sheet(
            {"num_key_value_heads": 16, **over}, **{"engine_version": version, "loss": "plain", **asked}
        )
        inputs = found.of(Component.INPUTS, instant=Instant.BACKWARD).value
        assert found.at(Instant.BACKWARD).value - inputs == pytest.approx(traced, rel=2e-4)


def test_a_larger_vocabulary_is_traced_too() -> None:
    assert sheet({"vocab_size": 40_000}).peak.value == pytest.approx(1_017_403_664, rel=1e-4)


# the same over 8 ranks that fully_shard every layer, and in full recipes embeddings and head too; the root
# stays gathered as in torch 2.5
OFFLOADED = {"offload.optimizer": 1, "offload.parameters": 1}
SHARDED = [
    ({}, {}, 183_138_344),
    ({"vocab_size": 40_000}, {}, 491_679_248),
    ({}, LORA, 153_623_008),
    ({"vocab_size": 40_000}, LORA, 409_200_104),
    ({"num_hidden_layers": 6}, {**LORA, "seq_len": 64}, 108_684_816),
    ({}, OFFLOADED, 140_615_856),
    ({"vocab_size": 40_000}, OFFLOADED, 404_871_320),
]


@pytest.mark.parametrize(("over", "asked", "traced"), SHARDED)
def test_a_rank_s_backward_is_that_of_its_own_code(
    over: dict[str, Any], asked: dict[str, Any], traced: int
) -> None:
    assert sheet(over, **asked, **{"mesh.dp_shard": 8}).at(Instant.BACKWARD).value == pytest.approx(
        traced, rel=1e-4
    )


def test_the_first_layer_is_gathered_beside_the_root_s_buffer() -> None:
    found = sheet({"num_hidden_layers": 6}, **LORA, **{"mesh.dp_shard": 8, "seq_len": 64})
    assert found.at(Instant.FORWARD).value == pytest.approx(133_183_984, rel=1e-4)


# one table for embeddings and head: the peaks of backward of llama3_2 and lora_llama3_2
# (torchtune.models.llama3_2 of 0.4.0, torch 2.13) on one device, then over 8 ranks whose root has the table
WIDE = {"vocab_size": 40_000, "tie_word_embeddings": True}
TIED = [
    (WIDE, {}, 771_635_460),
    (WIDE, {"loss": "plain"}, 955_955_460),
    (WIDE, {"loss": "plain", "seq_len": 64}, 763_158_788),
    (WIDE, {**LORA, "microbatch": 1}, 258_744_544),
    (WIDE, {**ALONE, "seq_len": 64}, 405_891_728),
    (WIDE, {"mesh.dp_shard": 8}, 483_491_332),
    (WIDE, {"mesh.dp_shard": 8, "loss": "plain"}, 645_262_852),
    (WIDE, {"mesh.dp_shard": 8, **LORA}, 317_023_712),
    ({"tie_word_embeddings": True}, {"mesh.dp_shard": 8}, 207_697_948),
]


@pytest.mark.parametrize(("over", "asked", "traced"), TIED)
def test_a_tied_table_is_accounted_as_its_own_code_runs(
    over: dict[str, Any], asked: dict[str, Any], traced: int
) -> None:
    found = sheet(over, **asked)
    inputs = found.of(Component.INPUTS, instant=Instant.BACKWARD).value
    assert found.at(Instant.BACKWARD).value - inputs == pytest.approx(traced, rel=3e-5)


@pytest.mark.parametrize("asked", [{}, ALONE, LORA, {"mesh.dp_shard": 8}])
def test_a_tied_model_has_one_table_less(asked: dict[str, Any]) -> None:
    """Parameters and optimizer states of an untied one, less those of a table."""
    table, ranks = 2 * 8000 * 1024, asked.get("mesh.dp_shard", 1)
    one, two = (sheet({"tie_word_embeddings": tied}, **asked) for tied in (True, False))
    moments = 0 if asked in (ALONE, LORA) else 2 * table + 4  # AdamW's, and its step
    for component, less in ((Component.PARAMETERS, table), (Component.OPTIMIZER_STATES, moments)):
        sizes = [each.of(component, instant=Instant.FORWARD).value for each in (one, two)]
        assert sizes[1] - sizes[0] == pytest.approx(less / ranks, abs=4)


# peaks of forward and loss, over 8 ranks: a loss of what the root returned finds no gathered buffer, and a
# head of its own is gathered for every piece
LOSSES = [
    (WIDE, {}, 419_999_276),
    (WIDE, LORA, 378_472_936),
    ({"vocab_size": 40_000}, {}, 421_817_856),
    ({"vocab_size": 40_000}, {"seq_len": 16}, 336_374_912),
]


@pytest.mark.parametrize(("over", "asked", "traced"), LOSSES)
def test_a_rank_s_loss_is_that_of_its_own_code(
    over: dict[str, Any], asked: dict[str, Any], traced: int
) -> None:
    found = sheet(over, **asked, **{"mesh.dp_shard": 8})
    assert max(found.at(Instant.FORWARD).value, found.at(Instant.LOSS).value) == pytest.approx(
        traced, rel=1e-4
    )


@pytest.mark.parametrize("adapter", [{}, LORA])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_compiled_layers_need_less(adapter: dict[str, Any], recompute: str) -> None:
    asked = {**adapter, "recompute.mode": recompute}
    assert sheet(**asked, compile=True).peak.value < sheet(**asked).peak.value


def test_what_a_compiled_layer_saves() -> None:
    """Per position: norms' results, queries, keys and values for all heads, attention's result and
    projection, gate, up and product.
    """
    saved = (
        sheet(**{"recompute.mode": "none", "compile": True})
        .of(Component.SAVED_ACTIVATIONS, instant=Instant.FORWARD)
        .value
    )
    h, f, tokens = 1024, 2816, 2 * 512
    layer = tokens * (2 * (8 * h + 3 * f) + 4 * (2 + 16))
    assert saved == pytest.approx(3 * layer, rel=2e-3)


def test_a_compiled_layer_saves_what_it_dequantized() -> None:
    """All matrices of a layer in bf16, which two programs of one layer each would make twice."""
    asked = {
        "quantization.weights": "nf4",
        "adapter.rank": 8,
        "adapter.targets": ["all-linear"],
        "recompute.mode": "none",
    }
    compiled, eager = (
        sheet(**asked, compile=on, seq_len=8, microbatch=1)
        .of(Component.SAVED_ACTIVATIONS, instant=Instant.LOSS)
        .value
        for on in (True, False)
    )
    h, f = 1024, 2816
    assert compiled - eager == pytest.approx(3 * 2 * (2 * h * h + 2 * h * h // 4 + 3 * h * f), rel=0.01)


def test_gradients_of_a_compiled_layer_leave_together() -> None:
    """Even with a step inside backward a whole layer's gradients are there at once."""
    compiled, eager = (
        sheet({"vocab_size": 64}, **ALONE, compile=on, seq_len=16)
        .of(Component.GRADIENTS, instant=Instant.BACKWARD)
        .value
        for on in (True, False)
    )
    assert compiled > eager


def test_the_head_has_three_gradients_at_the_second_piece() -> None:
    found = sheet({"vocab_size": 128_000}, compile=True)
    table = 128_000 * 1024 * 2
    assert found.peak_instant is Instant.BACKWARD
    kinds = (Component.GRADIENTS, Component.TEMPORARIES)
    rows = [item for item in found.items if item.path.startswith("lm_head") and item.component in kinds]
    held = sum(item.at[Instant.BACKWARD].value for item in rows if Instant.BACKWARD in item.at)
    assert held >= 3 * table


def test_one_rotary_cache_for_all_layers() -> None:
    assert sheet().of(Component.BUFFERS, instant=Instant.LOAD).value == 4096 * 64 * 4


def test_one_device_does_not_shard_and_several_do() -> None:
    engine = find_engine("torchtune")
    assert engine is not None
    assert engine.alone is not None
    assert engine.alone.zero == (0,)
    eight = sheet(**{"mesh.dp_shard": 8})
    one = sheet()
    assert (
        eight.of(Component.PARAMETERS, instant=Instant.LOAD).value * 8
        == one.of(Component.PARAMETERS, instant=Instant.LOAD).value
    )
    assert eight.of(Component.UNSHARDED_PARAMETERS, instant=Instant.BACKWARD).value > 0


def test_frozen_ends_belong_to_the_root() -> None:
    """Embeddings and head of an adapter's recipe are gathered once, and stay."""
    root = sheet(**LORA, **{"mesh.dp_shard": 2})
    ends = 2 * 8000 * 1024 * 2
    held = {item.path: item.at[Instant.FORWARD].value for item in root.items if Instant.FORWARD in item.at}
    assert held["root/unsharded"] >= ends
    full = {item.path for item in sheet(**{"mesh.dp_shard": 2}).items}
    assert "root/unsharded" not in full


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"attention": "flash"}, "attention"),
        ({"engine_version": "0.1", "loss": "plain", "mesh.dp_shard": 2}, "engine_version"),
        ({"engine_version": "0.2.1", "loss": "plain", "mesh.dp_shard": 2}, "engine_version"),
        ({"engine_version": "0.1"}, "loss"),
        ({"engine_version": "0.2.1", "loss": "plain", "offload.activations": True}, "offload.activations"),
        ({"dropout": 0.1}, "dropout"),
        ({"mesh.tp": 2}, "mesh.tp"),
        ({"offload.optimizer": 1}, "offload.optimizer"),
        ({"offload.activations": True, "recompute.mode": "none"}, "offload.activations"),
    ],
)
def test_refusals_name_the_field(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as caught:
        sheet(**asked)
    assert field in {problem.field for problem in caught.value.problems}


def test_other_families_are_refused() -> None:
    spec = read_hf_config(
        {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128}, name="gpt2"
    )
    plan = resolve_request(
        {"engine": "torchtune", "task": "train", "microbatch": 1, "seq_len": 64}, spec
    ).plan
    with pytest.raises(InputError):
        account_rank(spec, plan)
