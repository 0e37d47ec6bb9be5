"""What real files of axolotl's and LLaMA-Factory's examples say, read by a person: model, engine, sequences,
accumulated batches, length, the adapter's rank, weights, recompute and attention.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from laws import every
from memsheet.exchange.file_texts import read_text
from memsheet.guard import parse_json, parse_yaml

FOLDER = Path(__file__).parents[2] / "wild_configs"
KEYS = ("@model", "engine", "microbatch", "@accumulation", "seq_len", "adapter.rank", "quantization.weights", "recompute.mode", "attention")  # fmt: skip
L3, Q3, V1 = "meta-llama/Meta-Llama-3-8B-Instruct", "Qwen/Qwen3-4B-Instruct-2507", "Qwen/Qwen3-0.6B"
NF4, DDP = "nf4", "transformers"
AXOLOTL = {
    "llama-3-lora-8b.yml": ("NousResearch/Meta-Llama-3-8B", DDP, 2, 4, 4096, 32, "int8", "full", "flash"),
    "llama-3-fft-8b.yaml": ("NousResearch/Meta-Llama-3.1-8B", DDP, 1, 8, 8192, None, None, "full", "flash"),
    "llama-2-fft_optimized.yml": ("NousResearch/Llama-2-7b-hf", DDP, 1, 1, 4096, None, None, "full", "flash"),
    "llama-2-loftq.yml": ("NousResearch/Llama-2-7b-hf", DDP, 2, 4, 4096, 32, None, "full", "flash"),
    "mistral-config.yml": ("mistralai/Mistral-7B-v0.1", DDP, 2, 4, 8192, None, None, "full", "flash"),
    "mistral-lora.yml": ("mistralai/Mistral-7B-v0.1", DDP, 2, 4, 8192, 32, "int8", "full", "flash"),
    "phi-phi-ft.yml": ("microsoft/phi-1_5", DDP, 2, 1, 2048, None, None, "full", "flash"),
    "phi-phi3-ft-fsdp.yml": ("microsoft/Phi-3-mini-4k-instruct", "fsdp1", 12, 2, 4096, None, None, "full", "flash"),
    "qwen2-qlora-fsdp.yaml": ("Qwen/Qwen2-7B", "fsdp1", 1, 4, 2048, 32, NF4, "full", "flash"),
    "qwen3-qlora-fsdp.yaml": ("Qwen/Qwen3-8B", "fsdp1", 1, 4, 2048, 32, NF4, "full", "flash"),
    "gemma3-gemma-3-4b-vision-qlora.yml": ("google/gemma-3-4b-it", DDP, 2, 4, 2048, 32, NF4, "full", "flash"),
    "gpt-oss-gpt-oss-20b-fft-fsdp2.yaml": ("openai/gpt-oss-20b", "fsdp2", 1, 2, 4096, None, None, "full", "flash"),
    "distributed-parallel-qwen3-8b-fsdp-tp-cp.yaml": ("Qwen/Qwen3-8B", "fsdp2", 1, 1, 8192, None, None, None, "flash"),
    "llama-4-scout-qlora-flexattn-fsdp2.yaml": ("axolotl-quants/Llama-4-Scout-17B-16E-Linearized-bnb-nf4-bf16", "fsdp2", 2, 1, 4096, 32, NF4, "full", "sdpa"),
    "archived-falcon-config-7b-qlora.yml": ("tiiuae/falcon-7b", DDP, 1, 2, 2048, 64, NF4, "full", "xformers"),
    "llama-3-instruct-dpo-lora-8b.yml": ("meta-llama/Meta-Llama-3-8B-Instruct", DDP, 2, 4, 4096, 32, "int8", "full", "flash"),
    "qwen2-dpo.yaml": ("Qwen/Qwen2.5-0.5B", DDP, 2, 4, 2048, None, None, "full", "flash"),
    "llama-3-lora-1b.yml": ("NousResearch/Llama-3.2-1B", DDP, 2, 2, 2048, 16, None, "full", "flash"),
    "ebft-qwen35-4b-ebft-structured.yaml": ("Qwen/Qwen3.5-4B", DDP, 1, 4, 1024, 16, None, "full", "flash"),
    "llama-2-qlora-fsdp.yml": ("NousResearch/Llama-2-7b-hf", "fsdp1", 4, 4, 512, 32, NF4, "full", "flash"),
    "magistral-magistral-small-qlora.yaml": ("mistralai/Magistral-Small-2506", DDP, 2, 4, 2048, 32, NF4, "full", "flash"),
}  # fmt: skip
FACTORY = {
    "train_lora-qwen3_lora_kto.yaml": (Q3, DDP, 1, 8, 2048, 8, None, "full", "sdpa"),
    "train_lora-qwen3_lora_pretrain.yaml": (Q3, DDP, 1, 8, 2048, 8, None, "full", "sdpa"),
    "train_lora-qwen3_lora_reward.yaml": (Q3, DDP, 1, 8, 2048, 8, None, "full", "sdpa"),
    "train_lora-qwen3_lora_sft.yaml": (Q3, DDP, 1, 8, 2048, 8, None, "full", "sdpa"),
    "train_full-qwen3_full_sft.yaml": (Q3, "deepspeed", 1, 2, 2048, None, None, "full", "sdpa"),
    "train_qlora-qwen3_lora_sft_otfq.yaml": (Q3, DDP, 1, 8, 2048, 8, NF4, "full", "sdpa"),
    "extras-adam_mini-qwen2_full_sft.yaml": ("Qwen/Qwen2-1.5B-Instruct", DDP, 1, 8, 2048, None, None, "full", "sdpa"),
    "extras-apollo-llama3_full_sft.yaml": (L3, DDP, 1, 1, 2048, None, None, "full", "sdpa"),
    "extras-asft-qwen2_full_asft.yaml": ("models/Qwen2.5-7B", "deepspeed", 4, 8, 2048, None, None, "full", "sdpa"),
    "extras-badam-llama3_full_sft.yaml": (L3, DDP, 1, 8, 2048, None, None, "full", "sdpa"),
    "extras-eaft-qwen25_05b_eaft_full.yaml": ("Qwen/Qwen2.5-0.5B-Instruct", DDP, 2, 8, 2048, None, None, "full", "sdpa"),
    "extras-fp8-llama3_fp8_deepspeed_sft.yaml": (L3, "deepspeed", 1, 8, 1024, None, None, "full", "sdpa"),
    "extras-fsdp_qlora-llama3_lora_sft.yaml": (L3, DDP, 1, 8, 2048, 8, NF4, "full", "sdpa"),
    "extras-galore-llama3_full_sft.yaml": (L3, DDP, 1, 1, 2048, None, None, "full", "sdpa"),
    "extras-llama_pro-llama3_freeze_sft.yaml": ("models/llama3-8b-pro", DDP, 1, 8, 2048, None, None, "full", "sdpa"),
    "extras-muon-qwen2_full_sft.yaml": ("Qwen/Qwen2-1.5B-Instruct", DDP, 1, 8, 2048, None, None, "full", "sdpa"),
    "extras-oft-llama3_oft_sft.yaml": (L3, DDP, 1, 8, 2048, 8, None, "full", "sdpa"),
    "megatron-qwen3_moe_full.yaml": ("Qwen/Qwen3-30B-A3B-Instruct-2507", DDP, 1, 8, 4096, None, None, "full", "sdpa"),
    "ascend-qwen3_full_sft_fsdp2.yaml": ("Qwen/Qwen3-8B", DDP, 8, 1, 2048, None, None, "full", "flash"),
    "ascend-qwen3vlmoe_lora_sft_fsdp.yaml": ("Qwen/Qwen3-VL-30B-A3B-Instruct", DDP, 8, 1, 1024, 8, None, "full", "eager"),
    "v1-train_batching_strategy-train_full_fsdp2_batching_normal.yaml": (V1, "fsdp2", 2, None, 2048, None, None, "full", "sdpa"),
    "v1-train_batching_strategy-train_full_fsdp2_padding_free.yaml": (V1, "fsdp2", 4, None, 2048, None, None, "full", "flash"),
    "v1-train_freeze-train_freeze_sft.yaml": ("Qwen/Qwen3-4B", "fsdp2", 1, None, 2048, None, None, "full", "sdpa"),
    "v1-train_full-train_full_deepspeed.yaml": (V1, "deepspeed", 1, None, 2048, None, None, "full", "sdpa"),
    "v1-train_full-train_full_fsdp2.yaml": (V1, "fsdp2", 1, None, 2048, None, None, "full", "sdpa"),
    "v1-train_full-train_full_muon.yaml": (V1, "fsdp2", 1, None, 2048, None, None, "full", "sdpa"),
    "v1-train_full-train_full_ulysses_cp.yaml": (V1, "fsdp2", 1, None, 2048, None, None, "full", "flash"),
    "v1-train_lora-train_lora_dpo.yaml": ("Qwen/Qwen3-4B", "fsdp2", 1, None, 2048, 16, None, "full", "sdpa"),
    "v1-train_lora-train_lora_sft.yaml": ("Qwen/Qwen3-4B", "fsdp2", 1, None, 2048, 16, None, "full", "sdpa"),
    "v1-train_qlora-quantization.yaml": (V1, "fsdp2", 1, None, 2048, 16, NF4, "full", "sdpa"),
}  # fmt: skip
ALL = {**{f"ax-{name}": row for name, row in AXOLOTL.items()}, **{f"lf-{name}": row for name, row in FACTORY.items()}}  # fmt: skip
OPEN = {"recompute.mode": "none"}


@every("name", ALL)
def test_what_a_person_reads_is_read(name: str) -> None:
    read = read_text(name, (FOLDER / name).read_text(), {"json": parse_json, "yaml": parse_yaml})
    found = {key: _said(read.request, key) for key in KEYS}
    assert found == dict(zip(KEYS, ALL[name], strict=True))


def _said(request: Any, key: str) -> Any:
    held = request.get(key, request.get(f"?{key}"))
    return None if held == OPEN.get(key) else held
