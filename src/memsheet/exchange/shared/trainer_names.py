"""Classes and functions of trainers and of their arguments, by their names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.patterns import late_pattern

SFT = "SFTConfig"
METHODS = {
    f"{name}Config": name
    for name in (
        "GRPO",
        "AsyncGRPO",
        "GRPOWithReplayBuffer",
        "GMPO",
        "A2PO",
        "TPO",
        "SDPO",
        "SDFT",
        "SSD",
        "GOLD",
        "MiniLLM",
        "Distillation",
        "ServerDistillation",
        "IWOPD",
        "PRM",
        "DPO",
        "KTO",
        "ORPO",
        "CPO",
        "RLOO",
        "Reward",
        "PPO",
        "GKD",
        "XPO",
        "OnlineDPO",
        "NashMD",
        "BCO",
    )
}
ARGUMENTS = ("SentenceTransformerTrainingArguments",
    "TrainingArguments", "Seq2SeqTrainingArguments", "UnslothTrainingArguments", SFT, *METHODS,
)  # fmt: skip
"""transformers 5.23 training_args.py, training_args_seq2seq.py; huggingface/trl 016013e
trl/trainer/sft_config.py, with other defaults and its own fields. TRL's further configurations keep a second
model or several sequences of each, which the name of the method tells.
"""
SFT_OWN = (
    "model_init_kwargs", "chat_template_path", "dataset_text_field", "dataset_kwargs", "dataset_num_proc", "eos_token", "max_length", "truncation_mode",
    "shuffle_dataset", "packing", "packing_strategy", "padding_free", "pad_to_multiple_of", "eval_packing", "completion_only_loss", "assistant_only_loss",
    "loss_type", "activation_offloading", "pad_token",
)  # fmt: skip
LIGER = (
    "AutoLigerKernelForCausalLM", *(f"apply_liger_kernel_to_{name}" for name in (
        "llama", "mistral", "mixtral", "gemma", "gemma2", "gemma3", "gemma3_text", "qwen2", "qwen3", "qwen3_moe", "phi3", "granite", "olmo2",
    ))
)  # fmt: skip
"""What makes a model's loss a fused one (linkedin/Liger-Kernel src/liger_kernel/transformers/auto_model.py).
"""
OWN_LOSS = "fused_linear_cross_entropy"
SFT_TRAINER = "SFTTrainer"
TRAINERS = (
    "Trainer",
    "Seq2SeqTrainer",
    "UnslothTrainer",
    SFT_TRAINER,
    *(f"{name}Trainer" for name in METHODS.values()),
)
PREPARES = ("prepare_model_for_kbit_training", "prepare_model_for_int8_training")
"""The second before peft 0.10 (src/peft/utils/other.py)."""
PARSERS = ("HfArgumentParser", "TrlParser")
TRAINER_WORDS = late_pattern(r"\b[A-Z]\w*Trainer\b")
MOST_TRAINERS = 4
_DEFINED = late_pattern(r"class\s+(\w+)\(([^()]*)\)")


def own_trainers(text: str) -> str:
    """Trainers that a script takes from elsewhere and that are none of the libraries', by their names; a
    class of its own that stands on one of theirs is read where it is.
    """
    found = dict.fromkeys(name for name in TRAINER_WORDS.findall(text) if name not in TRAINERS)
    for name, bases in _DEFINED.findall(text):
        if not found.keys().isdisjoint({name}) and any(
            base in TRAINERS for base in TRAINER_WORDS.findall(bases)
        ):
            found.pop(name)
    taken = [name for name in found if f"{name}(" in text or f"= {name}" in text or f"else {name}" in text]
    return ", ".join(taken[:MOST_TRAINERS])


RECOMPUTE = ("gradient_checkpointing_enable", "activation_checkpointing_enable")
MODELS_BESIDE = (
    "ref_model",
    "teacher_model",
    "reward_model",
    "reward_funcs",
    "reward_model_path",
    "value_model",
)


def keys_left_to_release(said: Mapping[str, Any]) -> list[str]:
    """Those of TRL's whose default it has changed, and that nobody says; a fused kernel's loss is its own."""
    fused = said.get("use_liger_kernel") is True
    changed = ("gradient_checkpointing",) if fused else ("gradient_checkpointing", "loss_type")
    return [name for name in changed if name not in said]
