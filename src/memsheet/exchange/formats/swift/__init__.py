"""ms-swift's training command (``swift sft --model … --tuner_type lora``), with its own words and defaults.

It trains with transformers' Trainer: LoRA on every linear layer, layers recomputed and one sequence a GPU,
unless that is said otherwise. Lines are of modelscope/ms-swift at 3602360 (4.x).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange import find_format
from memsheet.exchange.formats.swift.commands import (
    METHOD,
    METHODS,
    NODES,
    PROCESSES,
    read_processes,
    swift_flags,
)
from memsheet.exchange.formats.swift.names import KNOWN
from memsheet.exchange.shared.file_format import Format, Key, Values, plan_word
from memsheet.exchange.shared.trainer_script import SCRIPT
from memsheet.exchange.shared.trainers import (
    comma_separated_names,
    row_of,
    with_master,
)
from memsheet.plan.adapter_targets import ALL_LINEAR, LINEAR_MODULES
from memsheet.plan.library_defaults import own_default

TRANSFORMERS = find_format("transformers")
VERSION = "ms-swift 4"  # of its commit 3602360
A, B, S = "swift/trainers/arguments.py", "swift/arguments/base_args", "swift/arguments/sft_args.py"
T = "swift/arguments/tuner_args.py"
ZERO = {
    "zero0": (0, 0, 0), "zero1": (1, 0, 0), "zero2": (2, 0, 0), "zero3": (3, 0, 0), "zero2_offload": (2, 1, 0), "zero3_offload": (3, 1, 1),
}  # fmt: skip
"""Its own DeepSpeed files by name: the stage, and whether optimizer states and parameters are in host memory
(sft_args.py:258-268, swift/config/*.json).
"""
STEP = 16
"""Sequences of a step that it fills up with rounds where none are said (A, gradient_accumulation_steps)."""


def _trains_adapter(values: Values) -> bool:
    return _tuner(values) != "full"


def _tuner(values: Values) -> str:
    return str(values.get("tuner_type") or "lora")


def _of_adapter(key: str) -> Any:
    return lambda value, values: {key: value} if _trains_adapter(values) else {}


def _read_engine(value: Any, _: Values) -> Mapping[str, Any]:
    if value == "fsdp2":
        return {"engine": "fsdp2", "zero": 3}
    stage, states, parameters = ZERO.get(str(value), (None, 0, 0))
    if stage is None:
        return {"?engine": "transformers", "?zero": 0}
    host = {"offload.optimizer": states, "offload.parameters": parameters}
    return {"engine": "deepspeed", "zero": stage, **{key: held for key, held in host.items() if held}}


HALVES = ("fp16", "bf16")


def _read_dtype(value: Any, values: Values) -> Mapping[str, Any]:
    """Weights in the dtype that is said or the checkpoint's own, and mixed precision of the same
    (base_args/model_args.py:124-142); DeepSpeed's own dtypes where it is the engine.
    """
    word = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(str(value), str(value))
    mixed = "fp16" if word == "fp32" else word
    if values.get("deepspeed"):
        return with_master(mixed)
    own = {**values, mixed: True, **({f"{SCRIPT}.lora_rank": 1} if _trains_adapter(values) else {})}
    own |= {f"{SCRIPT}.quantized": True} if values.get("quant_bits") else {}
    half = row_of(TRANSFORMERS, mixed).read(value=True, values=own) if mixed in HALVES else {}
    return {**half, **row_of(TRANSFORMERS, f"{SCRIPT}.dtype").read(value, own)}


def _read_accumulation(value: Any, values: Values) -> Mapping[str, Any]:
    """Rounds as said, or as many as fill sixteen sequences (A, gradient_accumulation_steps)."""
    if value != STEP_FILLED:
        return {"@accumulation": value}
    micro, ranks = values.get("per_device_train_batch_size", 1), values.get(PROCESSES, 1)
    told = all(
        isinstance(count, int) and not isinstance(count, bool) and count > 0 for count in (micro, ranks)
    )
    return {"@accumulation": max(1, -(-STEP // (micro * ranks)))} if told else {}


STEP_FILLED = f"as many as make {STEP} sequences"


def _read_tuner(value: Any, values: Values) -> Mapping[str, Any]:
    if value == "full":
        return {}
    kind = "dora" if values.get("use_dora") is True and value == "lora" else str(value)
    if values.get("deepspeed"):
        return {"adapter.kind": kind}  # which casts the whole model
    return {
        "adapter.kind": kind,
        "adapter.dtype": {"bfloat16": "bf16", "float16": "fp16"}.get(str(values.get("lora_dtype")), "fp32"),
    }


def _read_targets(value: Any, values: Values) -> Mapping[str, Any]:
    named = comma_separated_names(value)
    found = [LINEAR_MODULES] if named == [ALL_LINEAR] else named  # found by itself
    return {"adapter.targets": found} if _trains_adapter(values) else {}


def _read_bits(value: Any, values: Values) -> Mapping[str, Any]:
    if values.get("quant_method", "bnb") != "bnb":
        return {"quantization.weights": f"{values['quant_method']} {value}"}
    if value == 4:
        own = {"quantization.weights": values.get("bnb_4bit_quant_type", "nf4")}
        return {**own, "quantization.double_quant": values.get("bnb_4bit_use_double_quant", True) is True}
    return {"quantization.weights": plan_word({8: "int8"}, value)}


def _read_attention(value: Any, _: Values) -> Mapping[str, Any]:
    return {"attention": "flash" if str(value).startswith(("flash_attn", "flash_attention")) else value}


OWN_LOSSES = ("enable_dft_loss", "enable_channel_loss", "label_smoothing_factor")
UNSCALED = frozenset({"default", "last_round", "all", "ignore_empty_think"})
"""Scales of nothing but zero and one, for which labels stand (swift/loss_scale/base.py:21)."""


def _read_liger(value: Any, values: Values) -> Mapping[str, Any]:
    """Its loss, unless the trainer makes one of its own of whole logits."""
    scaled = not {*str(values.get("loss_scale") or "default").split("+")} <= UNSCALED
    shared = values.get("sequence_parallel_size", 1) != 1
    own = scaled or shared or any(values.get(at) for at in OWN_LOSSES)
    return {"loss": "plain" if own else "fused"} if value is True else {}


GENERATE, ANSWERS, MOST_ANSWER = (
    ("grpo", "gkd", "ppo"),
    ("response_length", "max_new_tokens", "max_completion_length"),
    512,
)


def _read_length(value: Any, values: Values) -> Mapping[str, Any]:
    """Tokens of a row; a prompt's where the method generates, and its answer comes behind it."""
    packed = values.get("packing") is True
    return {"seq_len": _with_answer(value, values), **({} if packed else {"?seq_len_kind": "maximum"})}


def _with_answer(prompt: Any, values: Values) -> Any:
    """Both together, and no more than vLLM takes where it generates on the same cards
    (swift/arguments/rlhf_args.py:241, 471, 703).
    """
    if values.get("rlhf_type") not in GENERATE:
        return prompt
    answer = next((values[at] for at in ANSWERS if values.get(at)), MOST_ANSWER)
    beside = values.get("use_vllm") is True and values.get("vllm_mode") == "colocate"
    most = values.get("vllm_max_model_len") if beside else None
    if not isinstance(prompt, int) or not isinstance(answer, int):
        return prompt
    return min(prompt + answer, most) if isinstance(most, int) else prompt + answer


def _read_only_key(at: str, back: Any, source: str, **more: Any) -> Key:
    return Key(at=at, out=lambda _: None, back=back, source=source, **more)


def _no_request(*_: Any) -> Mapping[str, Any]:
    return {}


KEYS = (
    _read_only_key("model", lambda v, _: {"@model": v}, f"{B}/model_args.py:62"),
    _read_only_key(PROCESSES, read_processes, "swift/cli/main.py:66"), _read_only_key(NODES, _no_request, "swift/cli/main.py:66"),
    _read_only_key("per_device_train_batch_size", lambda v, _: {"microbatch": v}, f"{A}:129", usual=1),
    _read_only_key("gradient_accumulation_steps", _read_accumulation, f"{A}:131", usual=STEP_FILLED),
    _read_only_key("torch_dtype", _read_dtype, f"{B}/model_args.py:74", usual="bfloat16"),
    _read_only_key("gradient_checkpointing", lambda v, _: {"recompute.mode": "full" if v is True else "none"}, f"{A}:134", usual=True),
    _read_only_key("deepspeed", _read_engine, f"{S}:258-268", usual="none"), _read_only_key("fsdp", lambda v, _: _read_engine(v, {}) if v == "fsdp2" else {}, f"{S}:300"),
    _read_only_key("tuner_type", _read_tuner, f"{B}/base_args.py:93", usual="lora"),
    _read_only_key("lora_rank", _of_adapter("adapter.rank"), f"{T}:130", usual=8), _read_only_key("lora_dropout", _of_adapter("adapter.dropout"), f"{T}:132", usual=0.05),
    _read_only_key("target_modules", _read_targets, f"{T}:122", usual="all-linear"), _read_only_key("use_dora", _no_request, f"{T}:137"), _read_only_key("lora_dtype", _no_request, f"{T}:134"),
    _read_only_key("modules_to_save", lambda v, values: {"adapter.full_modules": comma_separated_names(v)} if _trains_adapter(values) else {}, f"{T}:126"),
    _read_only_key("quant_bits", _read_bits, f"{B}/quant_args.py:36-60"), _read_only_key("quant_method", _no_request, f"{B}/quant_args.py:33"),
    _read_only_key("bnb_4bit_quant_type", _no_request, f"{B}/quant_args.py:40"), _read_only_key("bnb_4bit_use_double_quant", _no_request, f"{B}/quant_args.py:41"),
    _read_only_key("attn_impl", _read_attention, f"{B}/model_args.py:79"), _read_only_key("max_length", _read_length, f"{B}/template_args.py:130"), _read_only_key("packing", _no_request, S),
    _read_only_key("optim", row_of(TRANSFORMERS, "optim").read, "transformers training_args.py:806-813", usual=own_default("trl", "optim")),
    _read_only_key("use_liger_kernel", _read_liger, f"{A}:55; swift/trainers/seq2seq_trainer.py:134-139"),
)  # fmt: skip
RENAMED = {
    "train_type": "tuner_type",
    "sft_type": "tuner_type",
    "model_id_or_path": "model",
    "lora_target_modules": "target_modules",
    "dtype": "torch_dtype",
}
"""Older names (ms-swift 3: train_type; 2: sft_type, model_id_or_path)."""


def _rename_swift_key(at: str) -> str:
    return RENAMED.get(at, at)


def _method_of(values: Values) -> Mapping[str, Any]:
    """What trains by another method keeps further models or several sequences, and is told by its name."""
    return {
        METHOD: values.get("rlhf_type", "dpo") if values.get(METHOD) == "rlhf" else values.get(METHOD, "sft")
    }


FORMAT = Format(
    name="swift", file="train.sh", kind="shell", tested=VERSION, engines=(), keys=KEYS, said={"task": "train"}, marks=frozenset({METHOD}),
    parse=lambda text: swift_flags(text, "swift"), rename=_rename_swift_key, absent=_method_of, program_known=lambda _: False,
    unmodelled={
        METHOD: METHODS[:2], "task_type": ("causal_lm",), "sequence_parallel_size": (1,), "use_galore": (False,), "lisa_activated_layers": (0,),
        "freeze_llm": (False,), "freeze_vit": (True,), "freeze_aligner": (True,), "freeze_parameters": (), "freeze_parameters_ratio": (0, 0.0),
        "freeze_parameters_regex": (), "trainable_parameters": (), "trainable_parameters_regex": (), "target_regex": (), "target_parameters": (),
        "vit_gradient_checkpointing": (True,), "neftune_noise_alpha": (), "deepspeed_autotp_size": (1,), "zero_hpz_partition_size": (),
        "gradient_checkpointing_kwargs": (), "optimizer": (), "device_map": (), "tuner_backend": ("peft",), "init_weights": ("true", True),
        "lora_ga_batch_size": (), "use_chunked_loss": (False,), "experts_impl": (), "init_strategy": (), "fsdp_config": (), "loss_type": (), "ref_model": (),
        "reward_model": (), "teacher_model": (), "use_vllm": (False,), "label_smoothing_factor": (0, 0.0), "use_cpu_offload": (), "config_file": (),
    },
    known=KNOWN - {key.at for key in KEYS},
)  # fmt: skip
