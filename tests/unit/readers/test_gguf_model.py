"""A GGUF file describes the same model as the config.json it was converted from."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gguf_files import COMMON, GROUPED, HIDDEN, write_gguf
from memsheet.errors import InputError
from memsheet.formulas.states.params import parameter_count
from memsheet.plan.model import ModelSpec
from memsheet.questions.accounted import infer
from memsheet.readers.gguf import read_header, stored_bytes
from memsheet.readers.gguf_model import ARCHITECTURES, model_from_gguf
from memsheet.readers.hf_config import FAMILIES, read_hf_config
from memsheet.readers.model import find_config

VOCAB = 96
WIDE = {**GROUPED, "attention.key_length": 32, "attention.value_length": 32}
HF = {
    "num_hidden_layers": 3,
    "max_position_embeddings": 128,
    "hidden_size": HIDDEN,
    "intermediate_size": 160,
    "num_attention_heads": 4,
    "vocab_size": VOCAB,
}
HF_GROUPED = {**HF, "num_key_value_heads": 2}
EXPERTS = {"expert_count": 8, "expert_used_count": 2, "expert_feed_forward_length": 48}
LATENT = {
    **COMMON, **EXPERTS, "attention.head_count_kv": 1, "attention.kv_lora_rank": 32, "rope.dimension_count": 8, "expert_shared_count": 2,
    "leading_dense_block_count": 1, "attention.key_length": 40, "attention.value_length": 32, "attention.key_length_mla": 24,
    "attention.value_length_mla": 20,
}  # fmt: skip
HF_LATENT = {
    **HF, "num_key_value_heads": 4, "kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 20, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "moe_intermediate_size": 48, "n_shared_experts": 2, "first_k_dense_replace": 1,
}  # fmt: skip

DELTA = {
    **WIDE, "ssm.conv_kernel": 4, "ssm.inner_size": 64, "ssm.state_size": 16, "ssm.time_step_rank": 4, "ssm.group_count": 2,
    "rope.dimension_count": 8,
}  # fmt: skip
ROUTED_DELTA = {**DELTA, **EXPERTS, "expert_shared_feed_forward_length": 96}
HF_DELTA = {
    **HF_GROUPED, "head_dim": 32, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 16, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_value_head_dim": 16, "full_attention_interval": 3, "partial_rotary_factor": 0.25,
}  # fmt: skip
HF_ROUTED_DELTA = {
    **HF_DELTA, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 96,
}  # fmt: skip

# architecture, its keys, names of tensors that tell something, config.json
SAME: dict[str, tuple[str, dict[str, Any], tuple[str, ...], dict[str, Any]]] = {
    "llama": ("llama", GROUPED, (), {"model_type": "llama", **HF_GROUPED, "tie_word_embeddings": True}),
    "llama without grouping": ("llama", COMMON, ("output.weight",), {"model_type": "llama", **HF}),
    "llama with biases": ("llama", GROUPED, ("blk.0.attn_q.bias", "blk.0.ffn_up.bias"), {"model_type": "llama", **HF_GROUPED, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "mixtral": ("llama", {**GROUPED, "expert_count": 8, "expert_used_count": 2}, ("output.weight",), {"model_type": "mixtral", **HF_GROUPED, "num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 16}),
    "qwen2": ("qwen2", GROUPED, (), {"model_type": "qwen2", **HF_GROUPED, "tie_word_embeddings": True}),
    "qwen3": ("qwen3", WIDE, ("output.weight",), {"model_type": "qwen3", **HF_GROUPED, "head_dim": 32}),
    "phi3": ("phi3", {**GROUPED, "rope.dimension_count": 12, "attention.sliding_window": 64}, ("output.weight",), {"model_type": "phi3", **HF_GROUPED, "partial_rotary_factor": 0.75, "sliding_window": 64}),
    "starcoder2": ("starcoder2", GROUPED, ("blk.0.attn_q.bias",), {"model_type": "starcoder2", **HF_GROUPED, "use_bias": True, "tie_word_embeddings": True}),
    "gemma2": ("gemma2", {**WIDE, "attention.sliding_window": 64, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}, (), {"model_type": "gemma2", **HF_GROUPED, "head_dim": 32, "sliding_window": 64, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
    "gemma3": ("gemma3", {**WIDE, "attention.sliding_window": 64}, (), {"model_type": "gemma3_text", **HF_GROUPED, "head_dim": 32, "sliding_window": 64}),
    "qwen2moe": ("qwen2moe", {**GROUPED, **EXPERTS, "expert_shared_feed_forward_length": 96}, ("output.weight",), {"model_type": "qwen2_moe", **HF_GROUPED, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 96}),
    "qwen3moe": ("qwen3moe", {**WIDE, **EXPERTS}, ("output.weight",), {"model_type": "qwen3_moe", **HF_GROUPED, "head_dim": 32, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 48}),
    "gpt-oss": ("gpt-oss", {**WIDE, **EXPERTS, "expert_feed_forward_length": 160, "attention.sliding_window": 64}, ("output.weight",), {"model_type": "gpt_oss", **HF_GROUPED, "head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": 64}),
    "qwen3next": ("qwen3next", {**ROUTED_DELTA, "attention.recurrent_layers": [True, True, False]}, ("output.weight",), {"model_type": "qwen3_next", **HF_ROUTED_DELTA, "mtp_num_hidden_layers": 0}),
    "qwen35": ("qwen35", {**DELTA, "full_attention_interval": 3}, ("output.weight",), {"model_type": "qwen3_5_text", **HF_DELTA, "mtp_num_hidden_layers": 0, "tie_word_embeddings": False}),
    "qwen35moe": ("qwen35moe", {**ROUTED_DELTA, "full_attention_interval": 3}, ("output.weight",), {"model_type": "qwen3_5_moe_text", **HF_ROUTED_DELTA, "mtp_num_hidden_layers": 0, "tie_word_embeddings": False}),
    "deepseek v2": ("deepseek2", LATENT, ("output.weight",), {"model_type": "deepseek_v2", **HF_LATENT, "q_lora_rank": None}),
    "deepseek v2 of before": ("deepseek2", {**{k: v for k, v in LATENT.items() if "_mla" not in k}, "attention.key_length": 24, "attention.value_length": 20}, ("output.weight",), {"model_type": "deepseek_v2", **HF_LATENT, "q_lora_rank": None}),
    "deepseek v3": ("deepseek2", {**LATENT, "attention.q_lora_rank": 24}, ("output.weight", "blk.1.exp_probs_b.bias"), {"model_type": "deepseek_v3", **HF_LATENT, "q_lora_rank": 24}),
    "gpt2": ("gpt2", {**COMMON, "feed_forward_length": 256}, (), {"model_type": "gpt2", "n_embd": HIDDEN, "n_head": 4, "n_layer": 3, "n_positions": 128, "vocab_size": VOCAB}),
    "mamba": ("mamba", {"block_count": 3, "context_length": 128, "embedding_length": HIDDEN, "ssm.inner_size": 128, "ssm.state_size": 16, "ssm.conv_kernel": 4, "ssm.time_step_rank": 4}, (), {"model_type": "mamba", "hidden_size": HIDDEN, "num_hidden_layers": 3, "state_size": 16, "conv_kernel": 4, "time_step_rank": 4, "intermediate_size": 128, "vocab_size": VOCAB, "tie_word_embeddings": True}),
}  # fmt: skip


def bare(spec: ModelSpec) -> ModelSpec:
    """A description without where it came from and what its file is stored as."""
    return replace(
        spec, name="", source=read_hf_config({"model_type": "llama"}).source, dtype=None, quantization=None
    )


@pytest.mark.parametrize("case", SAME)
def test_it_is_the_model_of_its_config(case: str, tmp_path: Path):
    architecture, keys, telling, config = SAME[case]
    shapes = {
        "token_embd.weight": (VOCAB, HIDDEN),
        **dict.fromkeys((f"blk.{i}.attn_norm.weight" for i in range(3)), (HIDDEN,)),
    }
    write_gguf(tmp_path / "a.gguf", architecture, keys, shapes | dict.fromkeys(telling, (HIDDEN,)))
    spec = model_from_gguf(tmp_path / "a.gguf")
    assert spec.source.kind == "gguf"
    assert bare(spec) == bare(read_hf_config(config))


def test_every_architecture_has_a_family():
    assert {model_type for model_type, _ in ARCHITECTURES.values()} <= set(FAMILIES)


def llama_shapes(layers: int) -> dict[str, tuple[int, ...]]:
    """Every tensor of a small Llama with its own head, by llama.cpp's names."""
    block = {
        "attn_norm.weight": (HIDDEN,), "ffn_norm.weight": (HIDDEN,), "attn_q.weight": (HIDDEN, HIDDEN), "attn_k.weight": (32, HIDDEN),
        "attn_v.weight": (32, HIDDEN), "attn_output.weight": (HIDDEN, HIDDEN), "ffn_gate.weight": (160, HIDDEN), "ffn_up.weight": (160, HIDDEN),
        "ffn_down.weight": (HIDDEN, 160),
    }  # fmt: skip
    outer = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
        "output.weight": (VOCAB, HIDDEN),
    }
    return outer | {f"blk.{i}.{name}": shape for i in range(layers) for name, shape in block.items()}


def test_the_tensors_hold_the_parameters_of_the_model(tmp_path: Path):
    write_gguf(tmp_path / "a.gguf", "llama", GROUPED, llama_shapes(3))
    spec, header = model_from_gguf(tmp_path / "a.gguf"), read_header(tmp_path / "a.gguf")
    assert parameter_count(spec) == sum(t.elements for t in header.tensors)
    assert spec.dtype == "fp16"
    assert spec.quantization is None
    assert (
        stored_bytes(header)
        == sum(t.nbytes for t in header.tensors)
        == 2 * parameter_count(spec) + 2 * 7 * HIDDEN
    )  # norms are in fp32


def test_a_quantized_file_says_in_what(tmp_path: Path):
    write_gguf(tmp_path / "a.gguf", "llama", GROUPED, llama_shapes(3), quantized=True)
    spec = model_from_gguf(tmp_path / "a.gguf")
    assert spec.quantization is not None
    assert spec.quantization.weights == "gguf:Q4_0"
    assert "Q4_0 9" in spec.source.notes[0]


def test_the_parts_of_a_split_file_are_one_model(tmp_path: Path):
    shapes = llama_shapes(3)
    first = {
        name: shape
        for name, shape in shapes.items()
        if not name.startswith("blk.2") and name != "output.weight"
    }
    rest = {name: shape for name, shape in shapes.items() if name not in first}
    write_gguf(tmp_path / "m-00001-of-00002.gguf", "llama", {**GROUPED, "split.count": 2}, first)
    with pytest.raises(InputError, match="missing parts"):
        model_from_gguf(tmp_path / "m-00001-of-00002.gguf")
    write_gguf(tmp_path / "m-00002-of-00002.gguf", "llama", {"split.count": 2}, rest)
    spec = model_from_gguf(tmp_path / "m-00001-of-00002.gguf")
    assert not spec.head.tied
    assert spec.stacks[0].layers == 3
    with pytest.raises(InputError, match="first"):
        model_from_gguf(tmp_path / "m-00002-of-00002.gguf")


def test_one_value_for_all_layers_may_be_a_list(tmp_path: Path):
    write_gguf(
        tmp_path / "a.gguf",
        "llama",
        {**COMMON, "attention.head_count_kv": [2, 2, 2], "feed_forward_length": [160] * 3},
        llama_shapes(3),
    )
    write_gguf(tmp_path / "b.gguf", "llama", GROUPED, llama_shapes(3))
    assert bare(model_from_gguf(tmp_path / "a.gguf")) == bare(model_from_gguf(tmp_path / "b.gguf"))


def test_layers_that_predict_ahead_are_not_counted(tmp_path: Path):
    write_gguf(
        tmp_path / "a.gguf",
        "llama",
        {**GROUPED, "block_count": 4, "nextn_predict_layers": 1},
        llama_shapes(3),
    )
    assert model_from_gguf(tmp_path / "a.gguf").stacks[0].layers == 3


def test_layers_that_predict_ahead_are_not_loaded_where_a_file_has_them(tmp_path: Path):
    """llama.cpp skips the tensors of the last layers that nextn_predict_layers counts."""
    write_gguf(
        tmp_path / "a.gguf",
        "llama",
        {**GROUPED, "block_count": 4, "nextn_predict_layers": 1},
        llama_shapes(4),
    )
    write_gguf(tmp_path / "b.gguf", "llama", {**GROUPED, "block_count": 3}, llama_shapes(3))
    ahead, without = (
        infer(str(tmp_path / name), engine="llama.cpp", gpus="1xRTX4090", max_model_len=64)
        for name in ("a.gguf", "b.gguf")
    )
    assert ahead.sheets == without.sheets


def test_an_unknown_architecture_names_the_nearest(tmp_path: Path):
    write_gguf(tmp_path / "a.gguf", "qwen3moee", GROUPED, {})
    with pytest.raises(InputError, match="nearest known one is qwen3moe;"):
        model_from_gguf(tmp_path / "a.gguf")


def test_a_header_alone_is_the_same_model(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, "llama", GROUPED, llama_shapes(3), quantized=True)
    raw = path.read_bytes()
    whole = model_from_gguf(path)
    held = {
        "name": path.name,
        "bytes": len(raw),
        "header": b64encode(raw[: read_header(path).data_start]).decode(),
    }
    found = find_config({"gguf": held}, catalog=lambda _: None)
    assert found == replace(whole, source=replace(whole.source, path=found.source.path))


@pytest.mark.parametrize("held", [
    None, [], {}, {"name": "a", "bytes": True, "header": ""}, {"name": "a", "bytes": 9, "header": "%"}, {"name": "", "bytes": 10**15, "header": "R0dVRg=="},
    {"name": "../../etc/passwd", "bytes": -1, "header": ""},
])  # fmt: skip
def test_what_is_no_header_is_refused(held: Any) -> None:
    with pytest.raises(InputError):
        find_config({"gguf": held}, catalog=lambda _: None)
