"""NeMo 1's YAML of language models."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.shared.config_references import with_references
from memsheet.exchange.shared.file_format import FileReading
from memsheet.guard import parse_json, parse_yaml

GPT = """name: megatron_gpt
trainer: {devices: 4, num_nodes: 2, precision: bf16}
exp_manager: {name: a}
model:
  micro_batch_size: 2
  global_batch_size: 16
  tensor_model_parallel_size: 2
  pipeline_model_parallel_size: 2
  virtual_pipeline_model_parallel_size: null
  encoder_seq_length: 1024
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 8
  hidden_size: 512
  num_attention_heads: 8
  megatron_amp_O2: true
  sequence_parallel: true
  tokenizer: {type: GPT2BPETokenizer, model: "???"}
  data: {seq_length: "${model.encoder_seq_length}"}
  optim: {name: mcore_distributed_optim}
"""
TUNED = """trainer: {devices: 8, precision: bf16-mixed}
model:
  restore_from_path: /models/llama-3-8b.nemo
  tensor_model_parallel_size: 1
  micro_batch_size: 1
  global_batch_size: 8
  megatron_amp_O2: true
  peft: {peft_scheme: lora, lora_tuning: {target_modules: [attention_qkv, mlp], adapter_dim: 16, adapter_dropout: 0.1}}
  data: {train_ds: {max_seq_length: 2048}}
  optim: {name: fused_adam}
"""


def reading(text: str) -> FileReading:
    return read_text("config.yaml", text, {"json": parse_json, "yaml": parse_yaml})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (GPT, {"@gpus": 8, "@nodes": 2, "mesh.tp": 2, "mesh.pp": 2, "schedule": "1f1b", "sequence_parallel": True, "zero": 1, "seq_len": 1024}),
        (GPT, {"precision.parameters": "bf16", "precision.gradients": "fp32", "precision.moments": "fp32", "dropout": 0.1, "vocab_multiple": None}),
        (GPT.replace("l_size: null", "l_size: 2"), {"mesh.vpp": 2}),
        (GPT.replace("sequence_parallel: true", "activations_checkpoint_granularity: full\n  activations_checkpoint_num_layers: 1"), {"recompute.mode": "full", "sequence_parallel": False}),
        (GPT.replace("sequence_parallel: true", "activations_checkpoint_granularity: selective"), {"recompute.mode": "selective"}),
        (GPT.replace("precision: bf16", "precision: 16"), {"precision.parameters": "fp16"}),
        (TUNED, {"@model": "llama-3-8b", "adapter.rank": 16, "seq_len": 2048, "adapter.dropout": 0.1, "zero": 0}),
        (TUNED, {"adapter.targets": ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "down_proj"]}),
    ],
)  # fmt: skip
def test_what_is_read_of_it(text: str, wanted: dict) -> None:
    found = reading(text)
    assert (found.form.name, found.unknown) == ("nemo", ())
    assert {key: found.request.get(key) for key in wanted} == wanted


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (GPT.replace("_O2: true", "_O2: false"), "$.precision"),
        (GPT.replace("precision: bf16", "precision: 32"), "$.precision"),
        (GPT.replace("mcore_distributed_optim", "distributed_fused_adam"), "$.optimizer"),
        (GPT.replace("GPT2BPETokenizer", "null"), "$.vocabulary"),
        (GPT.replace("megatron_gpt", "megatron_retro"), "$.kind"),
        (TUNED.replace("peft_scheme: lora", "peft_scheme: ptuning"), "$.peft"),
        (GPT.replace("sequence_parallel: true", "fp8: true"), "model.fp8"),
    ],
)
def test_what_is_told(text: str, told: str) -> None:
    assert told in dict(reading(text).unmodelled)


@pytest.mark.parametrize(
    "text",
    [
        GPT + "inference: {greedy: true}\n",
        GPT.replace("optim:", "optimizer:"),
        GPT.replace("tensor_model_parallel_size", "devices"),
    ],
)
def test_what_is_none_of_its_files(text: str) -> None:
    with pytest.raises(InputError, match="recognised"):
        reading(text)


def test_a_sheet_that_may_be_sure(tmp_path: Path) -> None:
    (tmp_path / "gpt.yaml").write_text(GPT)
    checked = memsheet.check(tmp_path / "gpt.yaml", gpus="16xH100-80GB")
    assert checked.answer
    assert checked.result is Result.FITS
    assert (checked.answer.plan.mesh.tp, checked.answer.plan.mesh.pp) == (2, 2)
    assert any("takes no more of" in one for one in checked.assumed)


def test_names_of_other_keys_are_put_in_their_places() -> None:
    tree = {
        "a": {"b": 3, "c": "${.b}", "d": ["${a.b}"]},
        "e": "${a.c}",
        "f": "${a}",
        "g": "${no}",
        "h": "${m:${a.b}}",
        "i": "${j}",
        "j": "${i}",
    }
    found = with_references(tree)
    assert found["a"] == {"b": 3, "c": 3, "d": [3]}
    assert (found["e"], found["f"], found["g"], found["h"]) == (3, "${a}", "${no}", "${m:${a.b}}")
    assert found["i"].startswith("${")


ALIGNED = """trainer: {{devices: 8, num_nodes: 1, precision: bf16}}
model:
  mcore_gpt: true
  micro_batch_size: 1
  global_batch_size: 16
  megatron_amp_O2: true
  encoder_seq_length: 1024
  {method}: {{ref_policy_kl_penalty: 0.1}}
  optim: {{name: mcore_distributed_optim}}
pretrained_checkpoint: {{restore_from_path: /models/llama-3-8b.nemo}}
inference: {{greedy: false}}
"""


@pytest.mark.parametrize(
    ("method", "rows"), [("dpo", 2), ("spin", 2), ("kto", 1), ("ppo", 1), ("reinforce", 1)]
)
def test_a_method_of_the_aligner_is_told_and_nothing_bounds_it(
    tmp_path: Path, method: str, rows: int
) -> None:
    """A pair is two rows; what generates or is compared with is on no row."""
    (tmp_path / "gpt.yaml").write_text(ALIGNED.format(method=method))
    checked = memsheet.check(tmp_path / "gpt.yaml", gpus="8xH100-80GB")
    assert checked.answer
    assert checked.answer.verdict
    assert checked.answer.plan.training.microbatch == rows
    assert checked.answer.plan.training.global_batch == 16 * rows
    assert checked.result is Result.UNCERTAIN
    assert checked.answer.verdict.no_most
    assert not checked.answer.model.name.startswith("/")
