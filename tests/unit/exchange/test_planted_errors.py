"""Errors planted in configurations that run: each is one at which the tool's own parser or start-up check
stops, and what is said names the key, and the value where that is what is wrong.

The unplanted files are those of ``test_wild_configs``, where none is told that it does not start.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memsheet.cli import main

FOLDER = Path(__file__).parents[2] / "wild_configs"
# file, what stands there, what is planted, the key that is named, the value that is named
PLANTED = [
    ("ah-zephyr-7b-beta-sft-config_full.yaml", "gradient_accumulation_steps: 1", "gradient_accumulation_steps: two", "gradient_accumulation_steps", "two"),
    ("ah-smollm-sft-config.yaml", "bf16: true", "bf16: true\nfp16: true", "fp16", ""),
    ("tr-example-config.yaml", "lr_scheduler_type:\n  cosine", "lr_scheduler_type: cosinee", "lr_scheduler_type", "cosinee"),
    ("ah-smollm3-sft-sft.yaml", "per_device_train_batch_size", "per_device_train_batchsize", "per_device_train_batchsize", ""),
    ("oi-tulu3-sft.yaml", "gradient_accumulation_steps", "gradient_acumulation_steps", "gradient_acumulation_steps", ""),
    ("dc-clm-gpt2.sh", "--fp16", "--fp16 --bf16", "fp16", ""),
    ("dc-clm-gpt2.sh", "PER_DEVICE_TRAIN_BATCH_SIZE=1", "PER_DEVICE_TRAIN_BATCH_SIZE=one", "per_device_train_batch_size", "one"),
    ("ax-llama-3-lora-8b.yml", "micro_batch_size: 2", "micro_batch_size: two", "micro_batch_size", "two"),
    ("ax-llama-3-lora-8b.yml", "load_in_8bit: true\nload_in_4bit: false", "load_in_8bit: true\nload_in_4bit: true", "load_in_4bit", ""),
    ("ax-qwen3-32b-qlora.yaml", "load_in_4bit: true", "load_in_4bit: false", "load_in_4bit", ""),
    ("ax-llama-3-fft-8b.yaml", "bf16: auto", "bf16: true\nfp16: true", "fp16", ""),
    ("ax-qwen2-dpo.yaml", "rl: dpo", "rl: dpoo", "rl", "dpoo"),
    ("lf-train_lora-qwen3_lora_sft.yaml", "finetuning_type: lora", "finetuning_type: lorra", "finetuning_type", "lorra"),
    ("lf-train_full-qwen3_full_sft.yaml", "finetuning_type: full", "finetuning_type: full\nquantization_bit: 4", "quantization_bit", "4"),
    ("lf-train_lora-qwen3_lora_dpo.yaml", "cutoff_len", "cutof_len", "cutof_len", ""),
    ("lf-train_lora-qwen3_lora_pretrain.yaml", "stage: pt", "stage: ptt", "stage", "ptt"),
    ("ds-bf16-master-full.json", '"gradient_accumulation_steps": 1', '"train_batch_size": 30,\n    "gradient_accumulation_steps": 4', "train_batch_size", "30"),
    ("ds-imagenet-fp16-z1.json", '"stage": 1', '"stage": 4', "stage", "4"),
    ("ds-bf16-master-full.json", '"overlap_comm"', '"overlap_com"', "overlap_com", ""),
    ("ds-imagenet-fp16-z1.json", '"train_batch_size": 256', '"train_batch_size": "many"', "train_batch_size", "many"),
    ("ac-trl-fsdp2.yaml", "num_processes: 8", "num_proceses: 8", "num_proceses", ""),
    ("ac-trl-fsdp2.yaml", "fsdp_reshard_after_forward: true", "fsdp_reshard_after_forward: FULL_SHARD", "fsdp_reshard_after_forward", "FULL_SHARD"),
    ("ac-trl-deepspeed-zero3.yaml", "mixed_precision: bf16", "mixed_precision: bf17", "mixed_precision", "bf17"),
    ("mg-gpt3-175b.sh", "--tensor-model-parallel-size 8", "--tensor-model-parallel-size 5", "tensor-model-parallel-size", "5"),
    ("mg-llama3-8b-fp8.sh", "GLOBAL_BATCH_SIZE=128", "GLOBAL_BATCH_SIZE=100", "global-batch-size", "100"),
    ("mg-llama3-8b-fp8.sh", "--bf16\n", "--bf16\n    --fp16\n", "fp16", ""),
    ("mg-llama3-8b-fp8.sh", "--hidden-size 4096", "--hiden-size 4096", "hiden-size", ""),
    ("mg-gpt3-175b.sh", "--num-layers 96", "--num-layers ninety", "num-layers", "ninety"),
    ("tu-llama2-7b-qlora.yaml", "dtype: bf16", "dtype: bf61", "dtype", "bf61"),
    ("tu-llama4-scout-full.yaml", "tensor_parallel_dim: 2", "tensor_parallel_dim: 3", "tensor_parallel_dim", "3"),
    ("ms-full-dft.sh", "--tuner_type full", "--tuner_type ful", "tuner_type", "ful"),
    ("ms-dpo-lora.sh", "--gradient_accumulation_steps 16", "--gradient_acumulation_steps 16", "gradient_acumulation_steps", ""),
    ("ve-ppo-deepseek7b-sp2.sh", "actor_rollout_ref.actor.ppo_mini_batch_size=256", "actor_rollout_ref.actor.ppo_mini_bacth_size=256", "ppo_mini_bacth_size", ""),
    ("ve-ppo-deepseek7b-sp2.sh", "data.train_batch_size=1024", "data.train_batch_size=128", "train_batch_size", "128"),
    ("ry-llama-3.1-8b-tp2.yaml", "tensor_parallel_size: 2", "tensor_parallel_size: 3", "tensor-parallel-size", "3"),
    ("mo-vllm-inference.py", '"--tensor-parallel-size"', '"--tensor-paralel-size"', "tensor-paralel-size", ""),
    ("dy-sglang-disagg-v1beta1.yaml", '- --tp\n          - "1"', '- --tp\n          - "one"', "tp", "one"),
    ("ls-aider-qwq-coder.yaml", "--cache-type-k q8_0", "--cache-type-k q80", "cache-type-k", "q80"),
    ("tg-falcon-40b.yaml", "value: bitsandbytes-nf4", "value: bitsandbytes-nf5", "quantize", "bitsandbytes-nf5"),
    ("tl-curated-llama-3.3-70b.yaml", "free_gpu_memory_fraction: 0.9", "free_gpu_memory_fraction: 1.9", "free_gpu_memory_fraction", "1.9"),
    ("tt-llama3-8b.toml", "tensor_parallel_degree = 1", 'tensor_parallel_degree = "two"', "tensor_parallel_degree", "two"),
]  # fmt: skip
"""Whose source says that it stops stands at the rules: ``exchange/mistakes/taken_values.py`` and its kin."""


@pytest.mark.parametrize(("file", "stands", "planted", "key", "value"), PLANTED)
def test_a_planted_error_is_named(
    file: str,
    stands: str,
    planted: str,
    key: str,
    value: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    text = (FOLDER / file).read_text()
    assert stands in text
    path = tmp_path / file
    path.write_text(text.replace(stands, planted))
    code = main(["check", str(path), "--gpus", "8xH100-80GB", "--json"])
    told = json.loads(capsys.readouterr().out)
    assert code == (2 if told.get("problems") else 10)
    launches = told["schema"] == "memsheet/launches/1"
    checked = [one["checked"] for one in told["launches"]] if launches else [told]
    stops = [
        f"{found['where']}: {found['says']}"
        for one in checked
        for found in one.get("mistakes", ())
        if found["stops"]
    ]
    refused = [f"{one['field']}: {one['value']}" for one in told.get("problems", ())]
    assert any(key in words and value in words for words in (*stops, *refused)), told
