"""nanotron's YAML: a described model, and how it is divided."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.formats.nanotron import nanotron_described_sizes
from memsheet.exchange.shared.file_format import FileReading
from memsheet.guard import parse_json, parse_yaml

LLAMA = """general: {project: p}
model:
  dtype: bfloat16
  model_config: {hidden_size: 256, intermediate_size: 512, num_attention_heads: 4, num_hidden_layers: 4, vocab_size: 1024, is_llama_config: true}
optimizer: {accumulate_grad_in_fp32: true, zero_stage: 1, optimizer_factory: {name: adamW, torch_adam_is_fused: true}}
parallelism: {dp: 2, pp: 1, tp: 2, tp_mode: REDUCE_SCATTER, pp_engine: 1f1b}
tokens: {sequence_length: 128, micro_batch_size: 2, batch_accumulation_per_replica: 4}
"""


def reading(text: str) -> FileReading:
    return read_text("config.yaml", text, {"json": parse_json, "yaml": parse_yaml})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (LLAMA, {"zero": 1, "@gpus": 4, "mesh.tp": 2, "sequence_parallel": True, "microbatch": 2, "@accumulation": 4, "seq_len": 128}),
        (LLAMA, {"precision.gradients": "fp32", "optimizer.name": "adamw", "recompute.mode": "none", "vocab_multiple": 2}),
        (LLAMA.replace("tp_mode: REDUCE_SCATTER, ", ""), {"sequence_parallel": False}),
        (LLAMA.replace("pp: 1", "pp: 2, recompute_layer: true"), {"mesh.pp": 2, "schedule": "1f1b", "@gpus": 8, "recompute.mode": "full"}),
        (LLAMA.replace("in_fp32: true", "in_fp32: false"), {"precision.gradients": "bf16", "precision.master_weights": "fp32"}),
        (LLAMA.replace("  dtype: bfloat16", "  make_vocab_size_divisible_by: 64"), {"precision.parameters": "bf16", "vocab_multiple": 128}),
        (LLAMA.replace("tokens:", "tokens: # of a step\n ").replace("pp: 1", "pp: 1, context_parallel_size: 2"), {"mesh.cp": 2, "@gpus": 8}),
    ],
)  # fmt: skip
def test_what_is_read_of_it(text: str, wanted: dict) -> None:
    found = reading(text)
    assert (found.form.name, found.unknown) == ("nanotron", ())
    assert {key: found.request.get(key) for key in wanted} == wanted


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (LLAMA, "activations"),
        (LLAMA.replace("in_fp32: true", "in_fp32: false"), "$.states"),
        (LLAMA.replace("pp: 1", "pp: 2"), "$.stages"),
        (LLAMA.replace("pp: 1", "pp: 2").replace("1f1b", "afab"), "$.schedule"),
        (LLAMA.replace("fused: true", "fused: false"), "optimizer.optimizer_factory.torch_adam_is_fused"),
    ],
)
def test_what_the_engine_that_stands_in_does_otherwise(text: str, told: str) -> None:
    assert told in dict(reading(text).unmodelled)


def test_models_of_other_kinds() -> None:
    routed = LLAMA.replace(
        "is_llama", "moe_config: {num_experts: 4, top_k: 1, enable_shared_expert: true}, is_qwen2"
    )
    sizes = nanotron_described_sizes(reading(routed).values)
    assert sizes
    assert (
        sizes["num_experts"],
        sizes["moe_ffn_hidden_size"],
        sizes["moe_shared_expert_intermediate_size"],
    ) == (4, 1408, 5632)
    assert nanotron_described_sizes(reading(LLAMA.replace("is_llama", "is_mamba")).values) is None
    plain = nanotron_described_sizes(
        reading(LLAMA.replace("is_llama", "multi_query: true, is_starcoder2")).values
    )
    assert plain
    assert (
        plain["num_query_groups"],
        plain.get("swiglu"),
        plain.get("untie_embeddings_and_output_weights"),
    ) == (1, None, None)


def test_a_sheet_that_is_never_sure_to_fit(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(LLAMA)
    checked = memsheet.check(tmp_path / "config.yaml", gpus="8xH100-80GB")
    assert checked.answer
    assert checked.result is Result.UNCERTAIN
    (moved,) = checked.moved
    layer = 2 * 256 * 256 + 2 * 256 * 256 + 3 * 256 * 512
    assert moved.high_bytes == 2 * (4 * layer + 2 * 1024 * 256) // 2
