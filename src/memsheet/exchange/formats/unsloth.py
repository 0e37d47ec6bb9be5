"""A plan as a script of Unsloth's: its model and adapters, and TRL's trainer on one GPU
(``python train_unsloth.py``). Such scripts are read as any of the Trainer's are.

Lines are of unslothai/unsloth at 015bdef, under unsloth/models.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange import find_format
from memsheet.exchange.shared.allocator_env import ALLOCATOR, ALLOCATOR_CONF, switched_conf_text
from memsheet.exchange.shared.file_format import Format, Values
from memsheet.exchange.shared.script_places import OWN_LAYERS, SCRIPT
from memsheet.exchange.shared.trainers import plain_recompute, uniform_precision_keys
from memsheet.frozen import replace
from memsheet.plan.library_defaults import WORTH_OFFLOADING

TRAINER = find_format("transformers")
BITS = {"nf4": "load_in_4bit", "int8": "load_in_8bit"}
OF_ADAPTERS = {**uniform_precision_keys("fp32"), "precision.parameters": "bf16", "precision.compute": "bf16", "adapter.dtype": "fp32", "adapter.kind": "lora"}  # fmt: skip
"""What is in which dtype beside frozen weights (llama.py:3060-3085)."""
KERNELS = ("sdpa", "xformers")
"""What it chooses by the card and by what is installed (../utils/attention_dispatch.py:231-241)."""
OF_THE_RUN = ("per_device_train_batch_size", "gradient_accumulation_steps", "bf16", "gradient_checkpointing", "optim")  # fmt: skip


def _recompute_word(asked: Values) -> Any:
    """Its own way keeps the layers' inputs on the host where rows are long (_utils.py:376)."""
    if asked.get("recompute.mode") != "full" or not plain_recompute(asked):
        return False
    return "unsloth" if _offloads_inputs(asked) else True


def _offloads_inputs(asked: Values) -> bool | None:
    long = asked.get("seq_len", 0) >= WORTH_OFFLOADING and asked.get("recompute.mode") == "full"
    return True if long and asked.get("offload.activations") else None


def _stored_bits(asked: Values) -> str | None:
    weights = asked.get("quantization.weights")
    return weights if weights in BITS and asked.get("adapter.rank") else None


def _whole_dtype(asked: Values) -> str | None:
    """Its one dtype of weights that are not quantized (loader.py:405-425)."""
    return None if _stored_bits(asked) else "bfloat16"


def _of_the_adapter(key: str, usual: Any = None) -> Any:
    return lambda asked: asked.get(key, usual) if asked.get("adapter.rank") else None


WRITTEN = {
    f"{SCRIPT}.model": lambda asked: asked["@model"], f"{SCRIPT}.max_length": lambda asked: asked.get("seq_len"), f"{SCRIPT}.unsloth": lambda _: True, f"{SCRIPT}.{OWN_LAYERS}": lambda _: True,
    f"{SCRIPT}.{ALLOCATOR_CONF}": switched_conf_text, f"{SCRIPT}.dtype": _whole_dtype, f"{SCRIPT}.quantized": _stored_bits,
    f"{SCRIPT}.double_quant": lambda asked: True if _stored_bits(asked) == "nf4" else None, f"{SCRIPT}.experts": lambda asked: True if _stored_bits(asked) == "nf4" and asked.get("@experts") else None,
    f"{SCRIPT}.offload": _offloads_inputs,
    f"{SCRIPT}.lora_rank": _of_the_adapter("adapter.rank"), f"{SCRIPT}.lora_targets": _of_the_adapter("adapter.targets"),
    f"{SCRIPT}.lora_dropout": _of_the_adapter("adapter.dropout", 0.0), "gradient_checkpointing": lambda asked: bool(_recompute_word(asked)),
    "bf16": lambda _: True, "fp16": lambda _: None, "fsdp": lambda _: None,
}  # fmt: skip
"""By place of a script that is read, what is written there."""
KEYS = tuple(replace(row, out=WRITTEN.get(row.at, row.out)) for row in TRAINER.keys)


def _unsloth_plan_problems(asked: Values) -> Iterator[Problem]:
    if asked.get("@gpus", 1) > 1:
        card = str(asked.get("gpus") or "CARD").rpartition("x")[2]
        reason = "are more than this script trains on"
        yield Problem(field="gpus", value=asked["@gpus"], reason=reason, hint=f"plan it with --gpus 1x{card}")
    if asked.get("attention") not in (None, *KERNELS):
        reason = "cannot be said to Unsloth, which chooses its own kernel (llama.py:2651)"
        yield Problem(field="attention", value=asked["attention"], reason=reason, hint="sdpa")
    for key, held in OF_ADAPTERS.items() if asked.get("adapter.rank") else ():
        if asked.get(key, held) != held:
            reason = f"cannot be said to Unsloth, which would run {held} beside adapters"
            yield Problem(field=key, value=asked[key], reason=reason, hint=held)


def _load_arguments(asked: Values) -> Mapping[str, Any]:
    stored = _stored_bits(asked)
    whole = {"full_finetuning": True} if not asked.get("adapter.rank") else {}
    return {
        "model_name": asked["@model"],
        "max_seq_length": asked["seq_len"],
        **{word: stored == name for name, word in BITS.items()},
        **whole,
        "use_gradient_checkpointing": _recompute_word(asked),
    }


def _adapter_arguments(asked: Values) -> Mapping[str, Any]:
    return {
        "r": asked["adapter.rank"],
        "target_modules": asked["adapter.targets"],
        "lora_alpha": asked["adapter.rank"],
        "lora_dropout": asked.get("adapter.dropout", 0.0),
        "use_gradient_checkpointing": _recompute_word(asked),
    }


def _call_text(name: str, arguments: Mapping[str, Any], *given: str) -> str:
    """A call with an argument a line; texts in ASCII, with nothing that ends them."""
    lines = (*given, *(f"{at}={value!a}" for at, value in arguments.items()))
    return "\n".join([f"{name}(", *(f"    {line}," for line in lines), ")"])


def _allocator_lines(asked: Values) -> list[str]:
    """The variable before the import, which sets it where nobody has."""
    return ["import os", "", f'os.environ["{ALLOCATOR}"] = "{switched_conf_text(asked)}"', ""]


def _compose_unsloth_script(values: Values, asked: Values) -> str:
    run = {"output_dir": "output", **{at: values[at] for at in OF_THE_RUN}, "max_length": asked["seq_len"]}
    adapted = [f"model = {_call_text('FastLanguageModel.get_peft_model', _adapter_arguments(asked), 'model')}"] if asked.get("adapter.rank") else []  # fmt: skip
    trainer = ("model=model", "processing_class=tokenizer", "train_dataset=dataset", "args=args")
    return "\n".join([
        *_allocator_lines(asked), "from unsloth import FastLanguageModel  # before trl, which it changes", "from datasets import load_dataset", "from trl import SFTConfig, SFTTrainer", "",
        'DATASET = "train.jsonl"', f"model, tokenizer = {_call_text('FastLanguageModel.from_pretrained', _load_arguments(asked))}", *adapted,
        'dataset = load_dataset("json", data_files=DATASET, split="train")', f"args = {_call_text('SFTConfig', run)}",
        f"{_call_text('SFTTrainer', {}, *trainer)}.train()", "",
    ])  # fmt: skip


FORMAT: Format = replace(
    TRAINER, name="unsloth", file="train_unsloth.py", kind="python", tested="Unsloth 015bdef", engines=("transformers",), keys=KEYS, fixed=lambda _: {"output_dir": "output"},
    marks=frozenset(), parse=lambda _: {}, also=None, more=None, refers=(), differs={"attention": "Unsloth's own choice, by the card and by what is installed (../utils/attention_dispatch.py:231-241)"}, problems=_unsloth_plan_problems, compose=_compose_unsloth_script,
    beside=frozenset({
        "engine", "global_batch", "zero", "mesh.dp_shard", "mesh.dp_replicate", "attention", "adapter.kind", "adapter.dtype", "allocator.expandable_segments",
        *(f"precision.{name}" for name in ("parameters", "compute", "gradients", "reduce", "moments")),
    }),
    notes=(
        "DATASET is a stand-in: a file of your own, a JSON object with a \"text\" on each line; learning rate and epochs are the trainer's",
        "run it with `python train_unsloth.py`",
    ),
)  # fmt: skip
