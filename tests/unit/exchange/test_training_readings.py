"""What must be read out of training configurations of further tools: values as they stand in the files, and
each tool's own defaults, read by hand. ``tests/wild_configs/index.json`` has licence, repository and commit.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.exchange.test_wild_configs import FOLDER
from tests.unit.exchange.test_wild_readings import read_out

import memsheet
from memsheet.formulas.states.params import parameter_count

QV, ALPHA = ["q_proj", "v_proj"], "stabilityai/stablelm-base-alpha-3b"
L3 = "meta-llama/Meta-Llama-3-8B"
READINGS: dict[str, dict[str, Any]] = {
    "lg-llama-3-8b-full.yaml": {"@model": L3, "engine": "litgpt", "zero": None, "@gpus": 4, "microbatch": 4, "@accumulation": 4, "seq_len": 512, "recompute.mode": "full", "precision.moments": "bf16", "optimizer.implementation": "foreach"},
    "lg-llama-3-8b-lora.yaml": {"@model": L3, "engine": "litgpt", "@gpus": 1, "microbatch": 1, "@accumulation": 8, "adapter.rank": 32, "adapter.targets": QV, "adapter.dtype": "bf16", "loss": "chunked", "quantization.weights": None},
    "lg-llama-3-8b-qlora.yaml": {"@model": L3, "engine": "litgpt", "microbatch": 2, "@accumulation": 4, "quantization.weights": "nf4", "quantization.double_quant": False, "optimizer.name": "paged_adamw", "seq_len_kind": "maximum"},
    "lg-gemma-2b-lora.yaml": {"@model": "google/gemma-2b", "@gpus": 1, "microbatch": 2, "@accumulation": 3, "adapter.rank": 8, "adapter.targets": ["all"]},
    "lg-falcon-7b-qlora.yaml": {"@model": "tiiuae/falcon-7b", "adapter.rank": 32, "adapter.targets": QV, "adapter.dropout": 0.05, "quantization.weights": "nf4"},
    "lg-stablelm-3b-full.yaml": {"@model": ALPHA, "engine": "litgpt", "@gpus": 2, "microbatch": 1, "@accumulation": 4, "adapter.rank": None},
    "lg-pretrain-tinystories.yaml": {"engine": "fsdp1", "@gpus": None, "microbatch": 128, "seq_len": 256, "seq_len_kind": None, "precision.parameters": "fp32", "precision.compute": "bf16", "precision.reduce": "bf16", "compile": True, "optimizer.implementation": "fused", "recompute.mode": None},
    "lg-pretrain-microllama.yaml": {"@model": "micro-llama-300M", "microbatch": 12, "@accumulation": 1, "seq_len": 2048},
    "lg-pretrain-debug.yaml": {"@model": "pythia-14m", "microbatch": 5, "@accumulation": 3, "seq_len": None},
    "mf-pretrain-mpt-7b.yaml": {"@model": None, "engine": "llm-foundry", "zero": 3, "microbatch": 8, "seq_len": 2048, "recompute.mode": "full", "attention": "flash", "loss": "fused", "precision.parameters": "fp32", "precision.compute": "bf16", "precision.reduce": "bf16", "optimizer.implementation": "loop", "allocator.expandable_segments": True},
    "mf-pretrain-mpt-70b.yaml": {"engine": "llm-foundry", "microbatch": 4, "seq_len": 2048},
    "mf-pretrain-opt-3b.yaml": {"@model": "facebook/opt-2.7b", "engine": "fsdp1", "microbatch": 4, "seq_len": 256, "attention": "eager", "loss": "plain", "recompute.mode": "none"},
    "mf-pretrain-hf-llama-3.1-8b.yaml": {"@model": "meta-llama/Meta-Llama-3.1-8B", "engine": "fsdp1", "microbatch": 1, "attention": "flash", "recompute.mode": "none"},
    "mf-finetune-mpt-7b-dolly.yaml": {"@model": "mosaicml/mpt-7b", "engine": "llm-foundry", "microbatch": 8, "seq_len": 2048, "recompute.mode": "full"},
    "mf-finetune-llama-3-8b.yaml": {"@model": L3, "engine": "fsdp1", "microbatch": 8, "seq_len": 4096, "attention": "eager", "recompute.mode": "full"},
    "mf-finetune-dbrx-lora.yaml": {"@model": "databricks/dbrx-instruct", "adapter.rank": 64, "adapter.targets": ["Wqkv"], "adapter.dropout": 0.05, "optimizer.name": "lion"},
    "mf-mcli-llama3-finetune.yaml": {"@model": L3, "@gpus": 8, "microbatch": None, "global_batch": 64, "seq_len": 4096, "optimizer.name": "lion", "attention": "flash"},
    "mf-mcli-1b-8k.yaml": {"@gpus": 8, "microbatch": 1, "seq_len": 8192, "engine": "llm-foundry", "recompute.mode": "none"},
    "mf-mcli-1b.yaml": {"@model": None, "microbatch": None},
    "nt-tiny-llama.yaml": {"engine": "megatron", "@gpus": 8, "mesh.tp": 2, "zero": 0, "microbatch": 3, "@accumulation": 1, "seq_len": 4096, "sequence_parallel": True, "precision.parameters": "bf16", "precision.gradients": "fp32", "precision.master_weights": "fp32", "recompute.mode": "none", "attention": "flash", "vocab_multiple": 2},
    "nt-qwen.yaml": {"@gpus": 4, "mesh.tp": 2, "microbatch": 3, "seq_len": 4096, "sequence_parallel": True},
    "nt-llamoe.yaml": {"@gpus": 2, "microbatch": 256, "@accumulation": 2, "seq_len": 256, "mesh.ep": 2, "precision.gradients": "bf16"},
    "nt-doremi-2.8b.yaml": {"@gpus": 16, "microbatch": 64, "seq_len": 1024, "optimizer.name": None},
    "nt-mup-350m.yaml": {"@gpus": 8, "microbatch": 32, "@accumulation": 8, "precision.gradients": "bf16"},
    "nt-nanoset.yaml": {"@gpus": 1, "microbatch": 2, "seq_len": 1024, "sequence_parallel": False},
    "nt-debug-tiny-llama.yaml": {"@gpus": 2, "microbatch": 2, "seq_len": 32},
    "nm-megatron-llama.yaml": {"engine": "megatron", "@gpus": 1, "microbatch": 4, "global_batch": 8, "seq_len": 4096, "mesh.tp": 1, "zero": 0, "dropout": 0.0, "recompute.mode": "none", "sequence_parallel": False, "vocab_multiple": 128},
    "nm-megatron-gpt.yaml": {"microbatch": 4, "global_batch": 8, "seq_len": 512, "dropout": 0.1, "precision.parameters": "bf16", "precision.gradients": "fp32", "precision.master_weights": "fp32"},
    "nm-megatron-qwen2.yaml": {"microbatch": 4, "seq_len": 32768, "zero": 1, "optimizer.name": "adamw"},
    "nm-megatron-gemma2.yaml": {"microbatch": 4, "seq_len": 8192, "mesh.pp": 1},
    "nm-megatron-falcon.yaml": {"microbatch": 1, "global_batch": 1, "seq_len": 2048, "zero": 1},
    "nm-megatron-starcoder2.yaml": {"microbatch": 1, "global_batch": 2, "seq_len": 4096, "zero": 1},
    "nm-gpt-finetuning.yaml": {"@model": None, "microbatch": 4, "global_batch": 128, "seq_len": 2048, "adapter.rank": None, "precision.parameters": "fp16"},
    "nm-megatron-mamba.yaml": {"microbatch": 1, "global_batch": 8, "seq_len": 4096},
    "nr-custom-recipe.py": {"@model": L3, "engine": "megatron", "@gpus": 8, "mesh.cp": 2, "seq_len": 8192, "microbatch": 1, "global_batch": 512, "zero": 1, "adapter.rank": None, "precision.name": "megatron-mixed"},
}  # fmt: skip
UNNAMED = (
    "nm-gpt-finetuning.yaml",
    "nm-megatron-mamba.yaml",
    "mf-finetune-dbrx-lora.yaml",
    "mf-mcli-1b.yaml",
)
"""Of a model that is not bundled, or that another file names."""
PARAMETERS = {
    "lg-stablelm-3b-full.yaml": 3_637_321_728, "lg-pretrain-tinystories.yaml": 15_191_712, "lg-pretrain-microllama.yaml": 304_636_928,
    "mf-pretrain-mpt-7b.yaml": 6_649_024_512, "mf-mcli-1b-8k.yaml": 1_311_213_568,
    "nt-tiny-llama.yaml": 2_420_754_432, "nt-mup-350m.yaml": 320_893_952,
    "nm-megatron-gpt.yaml": 124_046_592, "nm-megatron-qwen2.yaml": 3_950_369_280,
}  # fmt: skip
"""Of models that the file, or the tool by a name, describes."""


@pytest.mark.parametrize("name", READINGS)
def test_training_configurations(name: str) -> None:
    found, _ = read_out(name)
    assert {key: found.get(key) for key in READINGS[name]} == READINGS[name]


@pytest.mark.parametrize("name", [name for name in READINGS if name not in UNNAMED])
def test_each_gives_a_sheet_that_accounts_for_every_key(name: str) -> None:
    checked = memsheet.check(FOLDER / name, gpus="8xH100-80GB")
    assert checked.answer, checked.why_not
    assert not checked.stops
    assert not [key for read in checked.reads.values() for key in read.unknown]


@pytest.mark.parametrize("name", PARAMETERS)
def test_described_models_have_as_many_parameters(name: str) -> None:
    checked = memsheet.check(FOLDER / name, gpus="8xH100-80GB")
    assert checked.answer
    assert parameter_count(checked.answer.model) == PARAMETERS[name]
