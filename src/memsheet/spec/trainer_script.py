"""What a training script for transformers' Trainer says in its text: the arguments, and what else of it changes memory.

Nothing is run. What stands beside the arguments (adapters, quantized loading, a model's attention) is told and not accounted: flags say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.spec.script import CLASS, LINE, SCOPE, WHOLE, calls, flattened, read_module

SFT = "SFTConfig"
ARGUMENTS = ("TrainingArguments", "Seq2SeqTrainingArguments", SFT)
"""transformers 5.23 training_args.py, training_args_seq2seq.py; huggingface/trl 016013e trl/trainer/sft_config.py, with other defaults and its own
fields. TRL's further configurations keep a second model, and are not read."""
SFT_OWN = (
    "model_init_kwargs", "chat_template_path", "dataset_text_field", "dataset_kwargs", "dataset_num_proc", "eos_token", "max_length", "truncation_mode",
    "shuffle_dataset", "packing", "packing_strategy", "padding_free", "pad_to_multiple_of", "eval_packing", "completion_only_loss", "assistant_only_loss",
    "loss_type", "activation_offloading", "pad_token",
)  # fmt: skip
BESIDE = {
    "apply_liger_kernel_to_llama": "a fused loss: --loss fused",
    "AutoLigerKernelForCausalLM": "a fused loss: --loss fused",
}  # fmt: skip
LORA, BITS = "LoraConfig", "BitsAndBytesConfig"
WITHOUT_BYTES = ("lora_alpha", "bias", "task_type", "inference_mode", "use_rslora", "init_lora_weights", "bnb_4bit_compute_dtype")
RECOMPUTE = ("gradient_checkpointing_enable", "activation_checkpointing_enable")
SCRIPT, OURS = "script", (CLASS, LINE, SCOPE, WHOLE)


def arguments_of(text: str) -> Mapping[str, Any]:
    """The last ``TrainingArguments`` of a script, with ``script.*`` for the rest; nothing where there are none. Raises ValueError for no Python."""
    if not any(name in text for name in ARGUMENTS):
        return {}
    module = read_module(text, {})
    made = list(calls(module, ARGUMENTS))
    if not made:
        return {}
    last = max(made, key=lambda one: int(one[LINE]))
    name, places = last[CLASS], {"0": "output_dir"}
    said = {
        places.get(key, key): value if key.endswith("config") and isinstance(value, dict) else flattened(value)
        for key, value in last.items()
    }
    said = {key: value for key, value in said.items() if key not in OURS}
    own = _sft(said) if name == SFT else {}
    said = {key: value for key, value in said.items() if key not in own}
    if any(calls(module, RECOMPUTE)) and "gradient_checkpointing" not in said:
        said["gradient_checkpointing"] = True
    told = f"{name} of line {last[LINE]}" + (f", the last of {len(made)}" if len(made) > 1 else "")
    beside = {held[CLASS]: BESIDE[held[CLASS]] for held in calls(module, BESIDE)}
    for held in calls(module, (LORA,)):
        beside |= _adapter(held)
    for held in calls(module, (BITS,)):
        beside |= _bits(held)
    for held in calls(module, ("from_pretrained",)):
        beside |= _loaded(held)
    return {SCRIPT: {"reads": told, **own, **beside}, **said}


def _sft(said: dict[str, Any]) -> dict[str, Any]:
    """TRL's own fields, and in ``said`` its defaults for what is not said."""
    said.setdefault("gradient_checkpointing", True)
    if said.get("fp16") is not True:
        said.setdefault("bf16", True)
    usual = "nll" if said.get("use_liger_kernel") is True else "chunked_nll"
    return {"max_length": 1024, "loss_type": usual, **{key: said[key] for key in SFT_OWN if key in said}}


def _adapter(held: Mapping[str, Any]) -> dict[str, Any]:
    """LoRA of chosen modules: what of it a plan says, and the names of the rest (peft tuners/lora/config.py)."""
    targets = held.get("target_modules")
    listed = isinstance(targets, list) and all(isinstance(name, str) for name in targets)
    rest = [name for name in held if name not in (*OURS, "r", "lora_dropout", *WITHOUT_BYTES, *(("target_modules",) if listed else ()))]
    made = {"lora_rank": held.get("r", 8), "lora_dropout": held.get("lora_dropout", 0.0), **({"lora_targets": targets} if listed else {})}
    return {**made, **({LORA: ", ".join(sorted(rest))} if rest else {})}


def _bits(held: Mapping[str, Any]) -> dict[str, Any]:
    """A model that is loaded in four or eight bits (transformers utils/quantization_config.py); the rest by name."""
    four, eight = held.get("load_in_4bit") is True, held.get("load_in_8bit") is True
    own = ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type", "bnb_4bit_use_double_quant")
    rest = [name for name in held if name not in (*OURS, *own, *WITHOUT_BYTES)]
    weights = held.get("bnb_4bit_quant_type", "fp4") if four else "int8" if eight else None
    made = {"quantized": weights, **({"double_quant": held.get("bnb_4bit_use_double_quant", False)} if four else {})}
    return {**(made if weights else {}), **({BITS: ", ".join(sorted(rest))} if rest or not weights else {})}


def _loaded(held: Mapping[str, Any]) -> dict[str, Any]:
    """How a model is loaded: the dtype and the attention that the call names."""
    dtype, attention = held.get("dtype", held.get("torch_dtype")), held.get("attn_implementation")
    return {
        **({"dtype": str(dtype).removeprefix("torch.")} if dtype is not None else {}), **({"attention": attention} if attention is not None else {}),
    }  # fmt: skip
