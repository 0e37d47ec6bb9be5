"""Shares of a card that are none: the job stops, and its roles stay."""

from __future__ import annotations

from pathlib import Path

import pytest

import memsheet
from memsheet.jobs.templates.planned import known_share

GRPO = (
    "from trl import GRPOConfig, GRPOTrainer\n"
    "from datasets import load_dataset\n"
    "def score(completions, **more): return [1.0 for _ in completions]\n"
    "cfg = GRPOConfig('o', per_device_train_batch_size=8, num_generations=8, bf16=True, beta=0.04,\n"
    "    max_completion_length=256, use_vllm=True, vllm_mode='colocate',\n"
    "    vllm_gpu_memory_utilization={share})\n"
    "GRPOTrainer(model='Qwen/Qwen3-0.6B', reward_funcs=score, args=cfg,\n"
    "    train_dataset=load_dataset('trl-lib/tldr', split='train')).train()\n"
)
OPENRLHF = (
    "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-0.6B "
    "--reward.model_name_or_path Qwen/Qwen3-0.6B --actor.num_gpus_per_node 1 --ref.num_gpus_per_node 1 "
    "--critic.num_gpus_per_node 1 --reward.num_gpus_per_node 1 --vllm.num_engines 1 --train.colocate_all "
    "--vllm.gpu_memory_utilization {share} --train.micro_batch_size 2 --rollout.micro_batch_size 4 "
    "--data.max_len 1024\n"
)
NEMO_RL = (
    "policy:\n  model_name: Qwen/Qwen3-0.6B\n  train_global_batch_size: 32\n  train_micro_batch_size: 4\n"
    "  logprob_batch_size: 4\n  max_total_sequence_length: 1024\n  dtensor_cfg: {{enabled: true}}\n"
    "  generation:\n    backend: vllm\n    colocated: {{enabled: true}}\n"
    "    vllm_cfg: {{gpu_memory_utilization: {share}, tensor_parallel_size: 1}}\n"
    "grpo: {{num_prompts_per_step: 4, num_generations_per_prompt: 8}}\n"
    "loss_fn: {{reference_policy_kl_penalty: 0.01}}\n"
)
SWIFT = (
    "swift rlhf --rlhf_type grpo --model Qwen/Qwen3-0.6B --torch_dtype bfloat16 --use_vllm true "
    "--vllm_mode colocate "
    "--vllm_gpu_memory_utilization {share} --max_length 512 --max_completion_length 512 "
    "--per_device_train_batch_size 8 --num_generations 8 --beta 0.04\n"
)
FILES = {"grpo.py": GRPO, "run.sh": OPENRLHF, "grpo.yaml": NEMO_RL, "swift.sh": SWIFT}


@pytest.mark.parametrize("name", FILES)
def test_a_share_that_is_none_stops_and_keeps_every_role(tmp_path: Path, name: str) -> None:
    file = tmp_path / name
    roles = {}
    for share in ("0.4", "40"):
        file.write_text(FILES[name].format(share=share))
        found = memsheet.check(file, gpus="1xA100-80GB")
        assert found.answer is not None
        assert found.answer.job is not None
        roles[share] = set(found.answer.job["roles"])
        stops = [told for _, told in found.mistakes if "is more than 1" in str(told)]
        assert bool(stops) == (share == "40")
    assert roles["40"] == roles["0.4"]
    assert "rollout" in roles["40"]


@pytest.mark.parametrize("given", [0.4, 1, 1.6, 40, 0, -1])
def test_a_number_that_is_no_share_counts_as_the_usual_one(given: float) -> None:
    assert known_share(given, 0.6) == (given if 0 < given <= 1 else 0.6)


@pytest.mark.parametrize("given", [True, "0.4", None])
def test_what_is_no_number_is_no_share(given: object) -> None:
    assert known_share(given, 0.6) is None


QLORA = """import torch
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
bnb = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", quantization_config=bnb)
ref = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", quantization_config=bnb)
{trainer}
"""
PAIRS = (
    "args = DPOConfig('o', per_device_train_batch_size=2, max_length=512, bf16=True)\n"
    "DPOTrainer(model=model, ref_model=ref, args=args, peft_config=LoraConfig(r=16),\n"
    "    train_dataset=data).train()"
)
SCORED = (
    "args = GRPOConfig('o', per_device_train_batch_size=8, num_generations=8,\n"
    "    max_completion_length=256, bf16=True)\n"
    "GRPOTrainer(model=model, reward_funcs='Qwen/Qwen2.5-0.5B', args=args, peft_config=LoraConfig(r=16),\n"
    "    train_dataset=data).train()"
)


@pytest.mark.parametrize(("trainer", "role", "kept"), [(PAIRS, "reference", True), (SCORED, "reward", False)])
def test_models_beside_four_bits_stay(tmp_path: Path, trainer: str, role: str, *, kept: bool) -> None:
    """A reference is loaded as the model that trains; what rewards is loaded by itself, in whole bits."""
    file = tmp_path / "train.py"
    file.write_text(QLORA.format(trainer=trainer))
    found = memsheet.check(file, gpus="1xA100-80GB")
    assert found.answer is not None
    assert found.answer.job is not None
    assert bool(found.answer.job["roles"][role]["plan"].get("quantization")) == kept
