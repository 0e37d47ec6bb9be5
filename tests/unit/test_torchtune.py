"""torchtune: layers, loss and states against traces of its own code (0.4.0 on tensors without memory), and laws of compiled layers."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet.account import account
from memsheet.engines import find_engine
from memsheet.errors import InputError
from memsheet.readers.hf_config import read_hf_config
from memsheet.resolve import resolve
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
    return account(spec, resolve(request, spec).plan)


# the peaks of two steps of lora_llama3_1 and llama3_1 (torchtune.models.llama3_1, torch 2.13), less what the trace calls inputs
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


def test_a_larger_vocabulary_is_traced_too() -> None:
    assert sheet({"vocab_size": 40_000}).peak.value == pytest.approx(1_017_403_664, rel=1e-4)


@pytest.mark.parametrize("adapter", [{}, LORA])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_compiled_layers_need_less(adapter: dict[str, Any], recompute: str) -> None:
    asked = {**adapter, "recompute.mode": recompute}
    assert sheet(**asked, compile=True).peak.value < sheet(**asked).peak.value


def test_what_a_compiled_layer_saves() -> None:
    """Per position: norms' results, queries, keys and values for all heads, attention's result and projection, gate, up and product."""
    saved = sheet(**{"recompute.mode": "none", "compile": True}).of(Component.SAVED_ACTIVATIONS, instant=Instant.FORWARD).value
    h, f, tokens = 1024, 2816, 2 * 512
    layer = tokens * (2 * (8 * h + 3 * f) + 4 * (2 + 16))
    assert saved == pytest.approx(3 * layer, rel=2e-3)


def test_gradients_of_a_compiled_layer_leave_together() -> None:
    """Even with a step inside backward a whole layer's gradients are there at once."""
    compiled, eager = (
        sheet({"vocab_size": 64}, **ALONE, compile=on, seq_len=16).of(Component.GRADIENTS, instant=Instant.BACKWARD).value
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
    assert eight.of(Component.PARAMETERS, instant=Instant.LOAD).value * 8 == one.of(Component.PARAMETERS, instant=Instant.LOAD).value
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
    spec = read_hf_config({"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 128}, name="gpt2")
    plan = resolve({"engine": "torchtune", "task": "train", "microbatch": 1, "seq_len": 64}, spec).plan
    with pytest.raises(InputError):
        account(spec, plan)
