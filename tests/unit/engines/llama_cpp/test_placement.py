"""Where rules of names and counts of layers put tensors (-ot, --n-cpu-moe)."""

from __future__ import annotations

from typing import Any

import pytest

from memsheet import infer
from memsheet.engines.llama_cpp import buffers
from memsheet.engines.llama_cpp.build import JOINED_OR_APART, Reserved
from memsheet.engines.llama_cpp.graph import reserved_graph
from memsheet.errors import InputError
from memsheet.sheet import Component, Instant

MOE = {
    "model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 4,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 16, "num_experts_per_tok": 4,
    "moe_intermediate_size": 768, "tie_word_embeddings": False, "max_position_embeddings": 40960,
}  # fmt: skip
MATRIX = 16 * 2048 * 768 * 2
"""Bytes of one matrix of a layer's experts."""


def served(**options: Any) -> Any:
    return infer(MOE, **{"engine": "llama.cpp", "max_model_len": 4096, "attention": "flash", **options})


def weights(answer: Any, device: int = 0) -> int:
    return int(answer.sheets[device].of(Component.PARAMETERS, instant=Instant.DECODE).value)


@pytest.mark.parametrize(
    "rules", ["exps=CPU", r"\.ffn_.*_exps\.=CPU", r"blk\.[0-9]+\.ffn_(up|down|gate)_exps\.weight=CPU"]
)
def test_every_expert_by_a_rule_is_every_layer_by_a_count(rules: str) -> None:
    ruled, counted = served(tensor_overrides=rules), served(host_experts=4)
    assert [(i.path, i.at) for i in ruled.sheets[0].items] == [
        (i.path, i.at) for i in counted.sheets[0].items
    ]


@pytest.mark.parametrize(
    ("rules", "matrices"),
    [
        (r"blk\.[1-2]\.ffn_.*_exps=CPU", 6), (r"ffn_up_exps=CPU", 4), (r"blk\.3\.ffn_(up|down)_exps=CPU", 2), (r"blk\.(7|8)\.ffn_.*_exps=CPU", 0),
        (r"blk\.0\.ffn_.*_exps=CUDA0,exps=CPU", 9),
    ],
)  # fmt: skip
def test_a_rule_takes_what_it_names_off_the_card(rules: str, matrices: int) -> None:
    assert weights(served()) - weights(served(tensor_overrides=rules)) == matrices * MATRIX


def test_a_rule_moves_tensors_between_cards() -> None:
    two = {"gpus": "2xRTX3090"}
    before, after = served(**two), served(**two, tensor_overrides=r"blk\.0\.ffn_.*_exps=CUDA1")
    assert weights(before, 0) - weights(after, 0) == weights(after, 1) - weights(before, 1) == 3 * MATRIX


def test_a_rule_of_other_tensors_leaves_what_is_computed_with_open() -> None:
    moved = served(tensor_overrides=r"blk\.\d+\.attn_(q|output)\.=CPU")
    assert weights(served()) - weights(moved) == 4 * 2 * 32 * 128 * 2048 * 2
    size = moved.sheets[0].of(Component.TEMPORARIES, instant=Instant.DECODE)
    assert size.low < size.value < size.high


def test_a_rule_for_a_card_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="CUDA1"):
        served(gpus="1xRTX3090", tensor_overrides="exps=CUDA1")


@pytest.mark.parametrize(
    "model", ["mixtral-8x7b", "deepseek-v2", "gpt-oss-20b", "qwen3-30b-a3b", "glm-4.5-air", "gemma-4-26b-a4b"]
)
def test_a_family_calls_its_experts_as_the_graph_does(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Reserved]()

    def graph(spec: Any, how: Reserved, sizes: Any) -> Any:
        asked.append(how)
        return reserved_graph(spec, how, sizes)

    monkeypatch.setattr(buffers, "reserved_graph", graph)
    infer(model, engine="llama.cpp", max_model_len=2048, host_experts=200, quantize="gguf:Q4_K_M")
    assert {module for how in asked for _, module in how.expert_devices} <= {*JOINED_OR_APART, "down_proj"}
