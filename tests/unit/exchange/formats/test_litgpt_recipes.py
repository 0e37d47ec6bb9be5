"""litgpt's YAML and commands."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.budget import Result
from memsheet.errors import InputError
from memsheet.exchange.file_texts import read_text
from memsheet.exchange.shared.file_format import FileReading
from memsheet.guard import parse_json, parse_yaml
from memsheet.questions.recognised_files import recognise_files

TUNED = """checkpoint_dir: checkpoints/meta-llama/Llama-2-7b-hf
precision: bf16-true
train: {micro_batch_size: 2, global_batch_size: 8, max_seq_length: 512}
"""


def reading(text: str, name: str = "config.yaml") -> FileReading:
    return read_text(name, text, {"json": parse_json, "yaml": parse_yaml})


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("litgpt finetune_lora meta-llama/Llama-2-7b-hf", {"@model": "meta-llama/Llama-2-7b-hf", "engine": "transformers", "precision.name": "bf16-autocast", "adapter.rank": 8, "microbatch": 1, "@accumulation": 16, "@gpus": 1}),
        ("litgpt finetune lora --checkpoint_dir checkpoints/a/b --lora_r 4 --precision bf16-true", {"@model": "a/b", "adapter.rank": 4, "engine": "litgpt"}),
        ("litgpt finetune_full a/b --devices 4 --train.micro_batch_size 4 --precision 32-true", {"engine": "fsdp1", "precision.parameters": "fp32", "@gpus": 4, "@accumulation": 1}),
        ("litgpt finetune_lora a/b --devices 2 --num_nodes 2 --precision bf16-true", {"engine": "litgpt", "loss": "chunked", "recompute.mode": "full", "@gpus": 4, "@nodes": 2}),
        ("litgpt finetune_lora a/b --devices 2 --precision bf16-mixed", {"engine": "fsdp2", "recompute.mode": "full"}),
        ("litgpt finetune_adapter a/b --devices 2 --precision bf16-true", {"engine": "fsdp1", "adapter.kind": "llama-adapter"}),
        ("litgpt finetune_full a/b --devices 8 --precision bf16-true", {"engine": "litgpt", "loss": None, "recompute.mode": "full"}),
        ("litgpt finetune_adapter_v2 a/b --precision bf16-true", {"adapter.kind": "llama-adapter-v2", "engine": "litgpt", "adapter.rank": None}),
        ("litgpt pretrain pythia-160m --train.max_seq_length 1024 --devices 8 --num_nodes 2", {"@model": "pythia-160m", "mesh.dp_replicate": 2, "@accumulation": 8, "microbatch": 4}),
        ("litgpt finetune_lora a/b --quantize bnb.nf4-dq --precision bf16-true --optimizer AdamW", {"quantization.double_quant": True, "optimizer.name": "paged_adamw"}),
        ("litgpt finetune_full a/b --optimizer SGD", {"optimizer.name": "sgd", "optimizer.implementation": "foreach"}),
    ],
)  # fmt: skip
def test_what_is_read_of_a_command(command: str, wanted: dict) -> None:
    found = reading(command + "\n", "train.sh")
    assert (found.form.name, found.unknown) == ("litgpt", ())
    assert {key: found.request.get(key) for key in wanted} == wanted


def test_a_command_names_the_file_that_says_the_rest(tmp_path: Path) -> None:
    (tmp_path / "full.yaml").write_text(TUNED)
    (tmp_path / "train.sh").write_text(
        "litgpt finetune_full --config conf/full.yaml --train.micro_batch_size 1\n"
    )
    checked = memsheet.check(tmp_path / "train.sh", tmp_path / "full.yaml", gpus="H100-80GB")
    assert checked.answer
    assert (checked.answer.plan.training.microbatch, checked.answer.plan.training.seq_len) == (1, 512)
    alone = memsheet.check(tmp_path / "train.sh", model="llama-2-7b", gpus="H100-80GB", seq_len=512)
    assert alone.answer


@pytest.mark.parametrize(
    "text",
    [
        "checkpoint_dir: a/b\ntrain: {learning_rate: 1}\n",
        "model_name: resnet\ntrain: {micro_batch_size: 1, crops: 3, mixup: 1}\n",
        "checkpoint_dir: a/b\ntrain: 3\n",
        "litgpt generate a/b\n",
        "litgpt download a/b --train: 1\n",
    ],
)
def test_what_is_none_of_its_files(text: str) -> None:
    with pytest.raises(InputError, match="recognised"):
        reading(text)


def test_more_cards_than_it_starts_processes_for_are_left(tmp_path: Path) -> None:
    (tmp_path / "lora.yaml").write_text(TUNED + "devices: 1\nlora_r: 8\n")
    checked = memsheet.check(tmp_path / "lora.yaml", gpus="8xH100-80GB")
    assert checked.answer
    assert len(checked.answer.sheets) == 1
    assert any("takes no more of" in one for one in checked.assumed)


def test_a_model_of_other_layers_is_accounted_by_the_library(tmp_path: Path) -> None:
    (tmp_path / "full.yaml").write_text(TUNED.replace("meta-llama/Llama-2-7b-hf", "google/gemma-2b"))
    checked = memsheet.check(tmp_path / "full.yaml", gpus="H100-80GB")
    assert checked.answer
    assert checked.answer.plan.engine == "transformers"
    assert checked.result is not Result.FITS
    assert "no model of litgpt" in checked.doubt


def test_an_embedding_made_anew_beside_a_quantized_base_is_weighed(tmp_path: Path) -> None:
    (tmp_path / "qlora.yaml").write_text(TUNED + "devices: 1\nlora_r: 8\nquantize: bnb.nf4\n")
    checked = memsheet.check(tmp_path / "qlora.yaml", gpus="H100-80GB")
    (moved,) = checked.moved
    assert moved.low_bytes == 2 * 32_000 * 4096 < moved.high_bytes


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("devices: 2\nquantize: bnb.nf4\nlora_r: 8\n", "$.quantize"),
        ("devices: auto\n", "activations"),
        ("lora_r: 8\nlora_head: true\n", "lora_head"),
    ],
)
def test_what_is_told(more: str, told: str) -> None:
    assert told in dict(reading(TUNED + more).unmodelled)


def test_lengths_of_samples_are_told_where_nobody_bounds_them() -> None:
    found = reading(TUNED.replace(", max_seq_length: 512", ""))
    assert "lengths of samples" in dict(found.unmodelled)


def test_it_reads_no_other_tools_fixture() -> None:
    reads, _ = recognise_files({"a.yaml": "num_nodes: 2\nrun: python train.py\n"}, ())
    assert [read.form.name for read in reads.values()] == ["skypilot"]
