"""llm-foundry's YAML, objects of a cluster around it, and commands that start its trainer."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.exchange.test_wild_configs import FOLDER

import memsheet
from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.shared.file_format import FileReading
from memsheet.guard import parse_json, parse_yaml

MPT = """variables: {length: 1024, of: "${length}"}
max_seq_len: ${variables.length}
model: {name: mpt_causal_lm, d_model: 768, n_heads: 12, n_layers: 12}
train_loader: {name: text}
optimizer: {name: decoupled_adamw}
device_train_microbatch_size: 2
global_train_batch_size: 64
precision: amp_bf16
fsdp_config: {sharding_strategy: FULL_SHARD, mixed_precision: PURE}
"""
LLAMA = MPT.replace(
    "name: mpt_causal_lm, d_model: 768, n_heads: 12, n_layers: 12",
    "name: hf_causal_lm, pretrained_model_name_or_path: meta-llama/Llama-3.2-1B",
)


def reading(text: str, name: str = "train.yaml") -> FileReading:
    return read_text(name, text, {"json": parse_json, "yaml": parse_yaml})


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (MPT, {"seq_len": 1024, "microbatch": 2, "engine": "llm-foundry", "precision.reduce": "bf16", "recompute.mode": None}),
        (MPT.replace("PURE", "DEFAULT"), {"precision.reduce": "fp32", "precision.compute": "bf16"}),
        (MPT.replace("amp_bf16", "fp32"), {"precision.parameters": "fp32", "precision.compute": "fp32"}),
        (MPT.replace("n_layers: 12", "n_layers: 12, attn_config: {attn_impl: torch}"), {"attention": "eager", "engine": "fsdp1"}),
        (MPT.replace("FULL_SHARD", "SHARD_GRAD_OP"), {"zero": 2, "engine": "fsdp1"}),
        (MPT.partition("fsdp_config")[0], {"engine": "transformers", "zero": 0, "precision.name": "bf16-autocast"}),
        (LLAMA, {"@model": "meta-llama/Llama-3.2-1B", "attention": "eager", "loss": "plain"}),
        (LLAMA.replace("Llama-3.2-1B", "Llama-3.2-1B, use_flash_attention_2: true"), {"attention": "flash"}),
        (LLAMA.replace("Llama-3.2-1B", "Llama-3.2-1B, attn_implementation: sdpa"), {"attention": "sdpa"}),
        (f"name: a-run\ncompute: {{gpus: 16}}\nparameters:\n  {MPT.replace(chr(10), chr(10) + '  ')}", {"@gpus": 16, "microbatch": 2}),
    ],
)  # fmt: skip
def test_what_is_read_of_it(text: str, wanted: dict) -> None:
    found = reading(text)
    assert (found.form.name, found.unknown) == ("llm-foundry", ())
    assert {key: found.request.get(key) for key in wanted} == wanted


@pytest.mark.parametrize(
    "text",
    [
        MPT.replace("model:", "network:"),
        MPT.replace("name: mpt_causal_lm, ", ""),
        MPT.replace("train_loader", "loader"),
        "composer eval.py a.yaml\n",
    ],
)
def test_what_is_none_of_its_files(text: str) -> None:
    with pytest.raises(InputError, match="recognised"):
        reading(text)


def test_references_that_name_one_another_end() -> None:
    found = reading(
        MPT.replace("length: 1024", 'length: "${variables.of}"').replace(
            '"${length}"', '"${variables.length}"'
        )
    )
    assert str(found.request.get("seq_len")).startswith("${")


def test_a_share_of_the_step_that_is_smaller_than_a_micro_batch_is_taken() -> None:
    checked = memsheet.check(FOLDER / "mf-finetune-mpt-7b-dolly.yaml", gpus="8xH100-80GB")
    assert checked.answer
    assert (checked.answer.plan.training.microbatch, checked.answer.plan.training.global_batch) == (6, 48)
    asked = memsheet.check(FOLDER / "mf-finetune-mpt-7b-dolly.yaml", gpus="8xH100-80GB", microbatch=2)
    assert asked.answer
    assert asked.answer.plan.training.microbatch == 2


def test_what_composer_decides_itself_is_told() -> None:
    assert "device_train_microbatch_size" in dict(reading(MPT.replace("size: 2", "size: auto")).unmodelled)
    assert "precision" in dict(reading(MPT.replace("amp_bf16", "amp_fp8")).unmodelled)
    assert "$.gathered" in dict(reading(MPT.replace("PURE", "FULL")).unmodelled)


def test_a_described_model_that_the_library_has_not_is_no_sheet(tmp_path: Path) -> None:
    (tmp_path / "moe.yaml").write_text(
        MPT.replace("n_layers: 12", "n_layers: 12, ffn_config: {ffn_type: mb_dmoe}")
    )
    checked = memsheet.check(tmp_path / "moe.yaml", gpus="8xH100-80GB")
    assert checked.answer is None
    named = memsheet.check(tmp_path / "moe.yaml", model="llama-3.2-1b", gpus="8xH100-80GB")
    assert named.result is not Result.FITS


def test_a_named_model_with_more_positions_than_it_has(tmp_path: Path) -> None:
    overrides = "gpt2, config_overrides: {n_positions: 2048, attn_config: {a: 1}}"
    text = LLAMA.replace("meta-llama/Llama-3.2-1B", overrides).replace("length: 1024", "length: 2048")
    (tmp_path / "gpt2.yaml").write_text(text)
    checked = memsheet.check(tmp_path / "gpt2.yaml", gpus="8xH100-80GB")
    assert checked.answer
    assert (checked.answer.model.max_positions, checked.answer.model.hidden) == (2048, 768)


def test_a_command_with_the_file_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "mpt.yaml").write_text(MPT)
    (tmp_path / "run.sh").write_text(
        "composer -n 8 train/train.py yamls/mpt.yaml max_seq_len=512 save_folder=a\n"
    )
    checked = memsheet.check(tmp_path / "run.sh", tmp_path / "mpt.yaml", gpus="8xH100-80GB")
    assert checked.answer
    assert checked.answer.plan.training.seq_len == 512


def test_logits_that_composer_keeps_of_the_librarys_models_are_weighed(tmp_path: Path) -> None:
    (tmp_path / "llama.yaml").write_text(LLAMA)
    (moved,) = memsheet.check(tmp_path / "llama.yaml", gpus="8xH100-80GB").moved
    assert (moved.low_bytes, moved.high_bytes) == (0, 4 * 128_256 * 2 * 1024)
