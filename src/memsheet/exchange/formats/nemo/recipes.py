"""What NeMo 2's recipes take where nothing is said: a model, how it is divided, and the batch.

Read from NVIDIA/NeMo 8cfedd7 nemo/collections/llm/recipes, one file a name; of finetuning, from
finetune_default.py and nemo/collections/llm/peft/lora.py:674-679.
"""

from __future__ import annotations

from collections.abc import Mapping

from memsheet.frozen import NamedTuple

Degrees = Mapping[str, int]


class Recipe(NamedTuple):
    """One name: the model, degrees to pretrain, (length, sequences of a step, of a micro-batch, nodes),
    degrees to finetune whole and with LoRA, its rank, whether its optimizer is whole on each rank then, and
    the nodes of both.
    """

    model: str
    degrees: Degrees
    batch: tuple[int, int, int, int]
    whole: Degrees
    lora: Degrees
    rank: int
    undivided: bool
    nodes: tuple[int, int]


RECIPES: Mapping[str, Recipe] = {
    "llama2_7b": Recipe("meta-llama/Llama-2-7b-hf", {"tp": 2}, (4096, 512, 1, 1), {"tp": 2}, {}, 8, True, (1, 1)),
    "llama3_8b": Recipe("meta-llama/Meta-Llama-3-8B", {"cp": 2}, (8192, 512, 1, 1), {"tp": 2}, {}, 8, True, (1, 1)),
    "llama3_70b": Recipe("meta-llama/Meta-Llama-3-70B", {"tp": 4, "pp": 4, "vpp": 5, "cp": 2, "sp": True}, (8192, 512, 1, 1), {"tp": 8, "pp": 4}, {"tp": 8}, 16, True, (4, 1)),
    "llama31_8b": Recipe("meta-llama/Llama-3.1-8B", {"cp": 2}, (8192, 512, 1, 1), {"tp": 2}, {}, 8, True, (1, 1)),
    "llama31_70b": Recipe("meta-llama/Llama-3.1-70B", {"tp": 4, "pp": 4, "vpp": 5, "cp": 2, "sp": True}, (8192, 512, 1, 1), {"tp": 8, "pp": 4}, {"tp": 8}, 16, True, (4, 1)),
    "llama32_1b": Recipe("meta-llama/Llama-3.2-1B", {}, (8192, 512, 1, 1), {}, {}, 8, True, (1, 1)),
    "llama32_3b": Recipe("meta-llama/Llama-3.2-3B", {}, (8192, 512, 1, 1), {}, {}, 8, True, (1, 1)),
    "mistral_7b": Recipe("mistralai/Mistral-7B-v0.3", {"cp": 2}, (4096, 512, 1, 1), {"tp": 2}, {}, 32, False, (1, 1)),
    "mistral_nemo_12b": Recipe("mistralai/Mistral-Nemo-Base-2407", {"tp": 2, "cp": 2, "sp": True}, (8192, 512, 1, 1), {}, {}, 32, False, (1, 1)),
    "mixtral_8x7b": Recipe("mistralai/Mixtral-8x7B-v0.1", {"pp": 4, "vpp": 8, "ep": 8}, (4096, 512, 1, 8), {"pp": 4, "vpp": 8}, {}, 32, False, (1, 1)),
    "mixtral_8x22b": Recipe("mistralai/Mixtral-8x22B-v0.1", {"tp": 2, "pp": 4, "vpp": 14, "cp": 2, "sp": True, "ep": 8}, (4096, 512, 1, 16), {"pp": 4, "vpp": 14}, {}, 32, False, (8, 8)),
    "gemma_2b": Recipe("google/gemma-2b", {"cp": 2}, (8192, 512, 1, 1), {"cp": 2}, {}, 32, False, (1, 1)),
    "gemma_7b": Recipe("google/gemma-7b", {"tp": 2, "cp": 2}, (8192, 512, 1, 1), {"tp": 2}, {}, 32, False, (1, 1)),
    "gemma2_2b": Recipe("google/gemma-2-2b", {"tp": 2}, (4096, 32, 2, 1), {}, {}, 32, False, (1, 1)),
    "gemma2_9b": Recipe("google/gemma-2-9b", {"tp": 8}, (4096, 32, 2, 1), {"tp": 4}, {}, 32, False, (1, 1)),
    "gemma2_27b": Recipe("google/gemma-2-27b", {"tp": 8, "pp": 2}, (4096, 32, 2, 2), {"tp": 8, "pp": 2}, {"tp": 4}, 32, False, (1, 1)),
    "qwen2_500m": Recipe("Qwen/Qwen2-0.5B", {}, (4096, 32, 2, 1), {}, {}, 32, False, (1, 1)),
    "qwen2_1p5b": Recipe("Qwen/Qwen2-1.5B", {}, (4096, 32, 2, 1), {}, {}, 32, False, (1, 1)),
    "qwen2_7b": Recipe("Qwen/Qwen2-7B", {"tp": 2}, (4096, 32, 2, 1), {"tp": 2}, {}, 32, False, (1, 1)),
    "qwen2_72b": Recipe("Qwen/Qwen2-72B", {"tp": 8, "pp": 4}, (4096, 32, 2, 4), {"tp": 8, "pp": 4}, {"tp": 8}, 32, False, (1, 1)),
    "qwen25_500m": Recipe("Qwen/Qwen2.5-0.5B", {}, (4096, 32, 2, 1), {}, {}, 32, False, (1, 1)),
    "qwen25_1p5b": Recipe("Qwen/Qwen2.5-1.5B", {}, (4096, 32, 2, 1), {}, {}, 32, False, (1, 1)),
    "qwen25_7b": Recipe("Qwen/Qwen2.5-7B", {"tp": 2}, (4096, 32, 2, 1), {"tp": 2}, {}, 32, False, (1, 1)),
    "qwen25_14b": Recipe("Qwen/Qwen2.5-14B", {"tp": 4}, (4096, 32, 2, 1), {"tp": 4}, {}, 32, False, (1, 1)),
    "qwen25_32b": Recipe("Qwen/Qwen2.5-32B", {"tp": 8, "pp": 2}, (4096, 32, 2, 2), {"tp": 8}, {"tp": 8}, 32, False, (1, 1)),
    "qwen25_72b": Recipe("Qwen/Qwen2.5-72B", {"tp": 8, "pp": 4}, (4096, 32, 2, 4), {"tp": 8, "pp": 4}, {"tp": 8}, 32, False, (1, 1)),
    "qwen3_600m": Recipe("Qwen/Qwen3-0.6B", {}, (4096, 32, 2, 1), {}, {}, 32, False, (1, 1)),
    "qwen3_1p7b": Recipe("Qwen/Qwen3-1.7B", {}, (4096, 32, 2, 1), {}, {}, 32, False, (1, 1)),
    "qwen3_4b": Recipe("Qwen/Qwen3-4B", {"tp": 2}, (4096, 32, 2, 1), {"tp": 2}, {}, 32, False, (1, 1)),
    "qwen3_8b": Recipe("Qwen/Qwen3-8B", {"tp": 4}, (4096, 32, 2, 1), {"tp": 4}, {}, 32, False, (1, 1)),
    "qwen3_14b": Recipe("Qwen/Qwen3-14B", {"tp": 8}, (4096, 32, 2, 1), {"tp": 8}, {}, 32, False, (1, 1)),
    "qwen3_32b": Recipe("Qwen/Qwen3-32B", {"tp": 8, "pp": 2}, (4096, 32, 2, 2), {"tp": 8, "pp": 2}, {"tp": 8}, 32, False, (2, 2)),
    "qwen3_30b_a3b": Recipe("Qwen/Qwen3-30B-A3B", {"tp": 4, "pp": 2, "sp": True, "ep": 4}, (4096, 32, 2, 1), {"tp": 4, "pp": 2, "sp": True, "ep": 4, "etp": 1}, {"tp": 4, "sp": True, "ep": 4, "etp": 1}, 32, False, (1, 1)),
    "qwen3_235b_a22b": Recipe("Qwen/Qwen3-235B-A22B", {"tp": 4, "pp": 16, "cp": 2, "sp": True, "ep": 8}, (4096, 32, 1, 16), {"tp": 4, "pp": 16, "sp": True, "ep": 4, "etp": 1}, {"tp": 4, "pp": 4, "sp": True, "ep": 4, "etp": 1}, 32, False, (8, 8)),
    "starcoder2_3b": Recipe("bigcode/starcoder2-3b", {"tp": 2}, (4096, 32, 2, 1), {"tp": 2}, {}, 32, False, (1, 1)),
    "starcoder2_7b": Recipe("bigcode/starcoder2-7b", {"tp": 2}, (4096, 32, 2, 1), {"tp": 2}, {}, 32, False, (1, 1)),
    "starcoder2_15b": Recipe("bigcode/starcoder2-15b", {"tp": 4, "pp": 2}, (4096, 32, 2, 1), {"tp": 4}, {}, 32, False, (1, 1)),
    "phi3_mini_4k_instruct": Recipe("microsoft/Phi-3-mini-4k-instruct", {}, (4096, 512, 1, 1), {}, {}, 8, True, (1, 1)),
    "deepseek_v2_lite": Recipe("deepseek-ai/DeepSeek-V2-Lite", {"ep": 8}, (4096, 512, 1, 1), {"tp": 4, "sp": True}, {}, 32, True, (1, 1)),
    "nemotron3_4b": Recipe("nvidia/Minitron-4B-Base", {"tp": 2}, (4096, 32, 2, 1), {}, {}, 32, False, (1, 1)),
}  # fmt: skip
RECOMPUTED = ("qwen3_32b", "qwen3_30b_a3b")
"""Recipes that recompute every layer to pretrain (qwen3_32b.py:175-177, qwen3_30b_a3b.py:179-181)."""
TUNED_BATCH = (2048, 128, 1)
"""Length, sequences of a step and of a micro-batch of recipes that finetune (finetune_default.py:78)."""
