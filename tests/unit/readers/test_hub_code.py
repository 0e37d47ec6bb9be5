"""Families whose code lies on the hub, read as the library's of the same layers."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest

import memsheet
from memsheet.errors import InputError
from memsheet.formulas.states.params import parameter_count
from memsheet.readers.hf_config import read_hf_config
from memsheet.readers.hub_code import HUB_CODE, library_values
from memsheet.readers.registry import FAMILIES
from memsheet.sheet import Instant

BUNDLED = {
    "internlm-7b": "internlm", "internlm2-7b": "internlm2", "qwen-1.8b": "qwen", "qwen-7b": "qwen", "baichuan2-7b": "baichuan",
    "orion-14b": "orion", "chatglm3-6b": "chatglm", "minicpm-2b": "minicpm",
}  # fmt: skip


def config_of(name: str) -> dict[str, Any]:
    text = files("memsheet.catalog").joinpath("models", f"{name}.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)["config"]
    return found


def counted_by_hand(config: dict[str, Any]) -> int:
    """Matrices, biases and norms as each family's own code makes them, by its own keys."""
    kind, h = config["model_type"], config["hidden_size"]
    layers = config.get("num_hidden_layers") or config["num_layers"]
    vocab = config["padded_vocab_size"] if kind == "chatglm" else config["vocab_size"]
    wide = {"qwen": config.get("intermediate_size", 0) // 2, "chatglm": config.get("ffn_hidden_size")}.get(
        kind, config.get("intermediate_size")
    )
    heads = config["num_attention_heads"]
    groups = config.get("multi_query_group_num") or config.get("num_key_value_heads") or heads
    kv = groups * (h // heads)
    joined = h + 2 * kv
    biases = {"internlm": joined + h, "qwen": joined, "chatglm": joined}.get(kind, 0)
    norms = 2 * h * (2 if kind == "orion" else 1)
    layer = h * joined + h * h + 3 * h * wide + biases + norms
    tables = (1 if config.get("tie_word_embeddings", kind == "minicpm") else 2) * vocab * h
    return layers * layer + tables + norms // 2


@pytest.mark.parametrize("name", BUNDLED)
def test_it_has_the_parameters_of_its_own_code(name: str) -> None:
    config = config_of(name)
    assert config["model_type"] == BUNDLED[name]
    spec = read_hf_config(config)
    assert parameter_count(spec) == counted_by_hand(config)
    assert spec.source.own_code == BUNDLED[name]
    assert any(BUNDLED[name] in note for note in spec.source.notes)


def test_what_it_becomes_is_a_family_of_the_library_and_stays_so() -> None:
    for kind, hub in HUB_CODE.items():
        assert kind not in FAMILIES
        assert hub.family in FAMILIES
    config = config_of("internlm2-7b")
    once = library_values(config)
    assert library_values(once) is once
    assert library_values({"model_type": "llama"}) == {"model_type": "llama"}


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({**config_of("baichuan2-7b"), "hidden_size": 5120}, "linear biases"),
        ({"model_type": "chatglm", "num_layers": 28, "vocab_size": 130528}, "first generation"),
        ({**config_of("minicpm-2b"), "num_experts": 8}, "experts"),
    ],
)
def test_a_member_with_other_layers_is_refused_by_name(changed: dict[str, Any], word: str) -> None:
    with pytest.raises(InputError, match=word):
        read_hf_config(changed)


def internvl(text: dict[str, Any]) -> dict[str, Any]:
    tower = {"hidden_size": 1024, "image_size": 448, "intermediate_size": 4096, "norm_type": "layer_norm"}
    tower |= {"num_attention_heads": 16, "num_hidden_layers": 24, "qk_normalization": False, "qkv_bias": True}
    return {"model_type": "internvl_chat", "llm_config": text, "vision_config": tower}


def test_internvl_of_its_own_code_is_the_librarys_with_the_same_tower() -> None:
    text = config_of("internlm2-7b")
    whole, alone = read_hf_config(internvl(text)), read_hf_config(text)
    h, wide, patches = 1024, 4096, (448 // 14) ** 2
    layer = 3 * h * h + 3 * h + h * h + h + 2 * h * wide + h + wide + 4 * h + 2 * h
    tower = 24 * layer + (patches + 1) * h + h + 3 * 14 * 14 * h + h
    joint = 2 * 4 * h + 4 * h * 4096 + 4096 + 4096 * 4096 + 4096
    assert parameter_count(whole) - parameter_count(alone) == tower + joint


JOB = {"gpus": "1xA100-80GB", "engine": "transformers", "seq_len": 512, "slack": "bounds"}


@pytest.mark.parametrize(
    ("name", "targets", "outs"),
    [
        ("internlm2-7b", "wqkv", 4096 + 2 * 1024),
        ("qwen-1.8b", "c_attn", 3 * 2048),
        ("baichuan2-7b", "W_pack", 3 * 4096),
        ("chatglm3-6b", "query_key_value", 4096 + 2 * 256),
    ],
)
def test_an_adapter_on_its_joined_matrix_is_one(name: str, targets: str, outs: int) -> None:
    config, rank = config_of(name), 8
    layers, hidden = config.get("num_hidden_layers") or config["num_layers"], config["hidden_size"]
    found = memsheet.train(name, lora_rank=rank, lora_targets=targets, **JOB)
    moments = sum(
        item.largest.value for item in found.sheets[0].items if item.component.value == "optimizer_states"
    )
    assert moments == pytest.approx(8 * layers * rank * (hidden + outs), rel=0.002)


@pytest.mark.parametrize("name", ["internlm2-7b", "baichuan2-7b", "chatglm3-6b"])
def test_its_own_code_keeps_no_less_than_the_librarys(name: str) -> None:
    own = memsheet.train(name, attention="sdpa", **JOB)
    library = memsheet.train(dict(library_values(config_of(name))), attention="sdpa", **JOB)
    assert own.sheets[0].at(Instant.LOSS).value > library.sheets[0].at(Instant.LOSS).value


def test_its_own_code_writes_scores_unless_it_is_told_otherwise() -> None:
    assert memsheet.train("internlm2-7b", **JOB).plan.attention.value == "eager"
    assert memsheet.train("baichuan2-7b", **JOB).plan.attention.value == "sdpa"
