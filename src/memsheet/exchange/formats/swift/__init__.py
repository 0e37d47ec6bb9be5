"""ms-swift's training command (``swift sft --model … --tuner_type lora``), with its own words and defaults.

It trains with transformers' Trainer: LoRA on every linear layer, layers recomputed and one sequence a GPU,
unless that is said otherwise. Lines are of modelscope/ms-swift at 3602360 (4.x).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange import find_format
from memsheet.exchange.formats.swift.commands import (
    CARDS,
    METHOD,
    METHODS,
    NODES,
    PROCESSES,
    read_processes,
    swift_flags,
    swift_preferences,
    trained_method,
)
from memsheet.exchange.formats.swift.config_files import config_file_values
from memsheet.exchange.formats.swift.names import KNOWN, OF_METHODS
from memsheet.exchange.formats.swift.written import (
    KERNELS,
    ZERO,
    adapter_dtype,
    command_problems,
    compose_swift_command,
    deepspeed_word,
    four_bits,
    liger_switch,
    loaded_dtype,
    quantized_bits,
    recompute_switch,
    with_adapter,
)
from memsheet.exchange.plan_files import values_of
from memsheet.exchange.shared.colocated_server import MODE, SHARE, SWITCH, colocated_moves
from memsheet.exchange.shared.config_commands import SWIFT_FILE
from memsheet.exchange.shared.file_format import Format, Key, Moved, Values, plan_word, read_format_values
from memsheet.exchange.shared.packed_storage import packed_storage, storage_word
from memsheet.exchange.shared.script_places import SCRIPT
from memsheet.exchange.shared.smoothed_losses import smoothing_moves
from memsheet.exchange.shared.trainers import (
    comma_separated_names,
    row_of,
    with_master,
)
from memsheet.plan.adapter_targets import LINEAR_MODULES
from memsheet.plan.defaults import ALL_LINEAR
from memsheet.plan.library_defaults import own_default

TRANSFORMERS = find_format("transformers")
VERSION = "ms-swift 4"  # of its commit 3602360
A, B, S = "swift/trainers/arguments.py", "swift/arguments/base_args", "swift/arguments/sft_args.py"
T = "swift/arguments/tuner_args.py"
STEP = 16
"""Sequences of a step that it fills up with rounds where none are said (A, gradient_accumulation_steps)."""


def _trains_adapter(values: Values) -> bool:
    return _tuner(values) != "full"


def _tuner(values: Values) -> str:
    return str(values.get("tuner_type") or "lora")


def _of_adapter(key: str) -> Any:
    return lambda value, values: {key: value} if _trains_adapter(values) else {}


def _read_engine(value: Any, _: Values) -> Mapping[str, Any]:
    """One of its own DeepSpeed files by name, or another that says the rest (sft_args.py:258-268)."""
    stage, states, parameters = ZERO.get(str(value), (None, 0, 0))
    if stage is None:
        none = value in (NO_ENGINE, "")
        return {"?engine": "transformers", "?zero": 0} if none else {"engine": "deepspeed"}
    host = {"offload.optimizer": states, "offload.parameters": parameters}
    return {"engine": "deepspeed", "zero": stage, **{key: held for key, held in host.items() if held}}


def _read_fsdp(value: Any, _: Values) -> Mapping[str, Any]:
    """Its own file, which recomputes each layer whatever else is said (swift/config/fsdp2.json,
    sft_args.py:347-354), or one that says that itself.
    """
    own = {"engine": "fsdp2", "zero": 3}
    return {**own, "recompute.mode": "full"} if value == OWN_FSDP else own if value else {}


NO_ENGINE, OWN_FSDP, NAMED_FILE = "none", "fsdp2", "$.deepspeed"
FSDP_FILE = (
    "fsdp (a file says what is resharded, recomputed and offloaded: taken for its own without recompute)"
)
"""Another than its own (sft_args.py:300-320)."""
INLINE = "deepspeed (a configuration in the command)"
SPREAD = "device_map (a process spreads the layers over the cards that it sees)"


HALVES = ("fp16", "bf16")


def _read_dtype(value: Any, values: Values) -> Mapping[str, Any]:
    """Weights in the dtype that is said or the checkpoint's own, and mixed precision of the same, unless
    switches say another (base_args/model_args.py:124-142); DeepSpeed's own dtypes where it is the engine.
    """
    word = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(str(value), str(value))
    usual = "fp16" if word == "fp32" else word
    switches = {half: values.get(half) is True for half in HALVES if values.get(half) is not None}
    on = [half for half in HALVES if switches.get(half, half == usual)]
    mixed = on[0] if on else usual if usual not in HALVES else "fp32"
    if values.get("deepspeed"):
        return with_master(mixed)
    own = {**values, mixed: True, **({f"{SCRIPT}.lora_rank": 1} if _trains_adapter(values) else {})}
    own |= {f"{SCRIPT}.quantized": True} if _quant_method(values) and values.get("quant_bits") else {}
    half = row_of(TRANSFORMERS, mixed).read(value=True, values=own) if mixed in HALVES else {}
    return {**half, **row_of(TRANSFORMERS, f"{SCRIPT}.dtype").read(value, own)}


def _read_accumulation(value: Any, values: Values) -> Mapping[str, Any]:
    """Rounds as said, or as many as fill sixteen sequences (A, gradient_accumulation_steps); one of GRPO
    (swift/arguments/rlhf_args.py:527-530).
    """
    if value != STEP_FILLED:
        return {"@accumulation": value}
    if values.get("rlhf_type") == "grpo":
        return {"@accumulation": 1}
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


def _quant_method(values: Values) -> Any:
    """The method that quantizes: nothing does where none is named (base_args/quant_args.py:46-47), but
    Unsloth (swift/model/register.py:82).
    """
    return values.get("quant_method") or ("bnb" if values.get("tuner_backend") == "unsloth" else None)


def _read_bits(value: Any, values: Values) -> Mapping[str, Any]:
    method = _quant_method(values)
    if method is None:
        return {}
    if method != "bnb":
        return {"quantization.weights": f"{method} {value}"}
    if value == 4:
        own = {"quantization.weights": values.get("bnb_4bit_quant_type", "nf4")}
        double = values.get("bnb_4bit_use_double_quant", True) is True
        kept = packed_storage(values.get("bnb_4bit_quant_storage"))
        return {**own, "quantization.double_quant": double, "quantization.storage": kept}
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
    return {"loss": "fused" if value is True and not own else "plain"}


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


TRAINER_BYTES = {
    at: TRANSFORMERS.unmodelled[at]
    for at in (
        "auto_find_batch_size", "ddp_bucket_cap_mb", "ddp_static_graph", "parallelism_config", "torch_compile", "use_cpu",
    )
}  # fmt: skip
"""The Trainer's own arguments among the command's flags, with bytes that nobody accounts."""


def _plan_key(at: str, back: Any, source: str, out: Any = lambda _: None, **more: Any) -> Key:
    return Key(at=at, out=out, back=back, source=source, **more)


def _as_asked(key: str) -> Any:
    return lambda asked: asked.get(key)


def _no_request(*_: Any) -> Mapping[str, Any]:
    return {}


OPTIM = row_of(TRANSFORMERS, "optim")
KEYS = (
    _plan_key("model", lambda v, _: {"@model": v}, f"{B}/model_args.py:62", _as_asked("@model")),
    _plan_key(PROCESSES, read_processes, "swift/cli/main.py:66", lambda a: a["@per_node"] if a["@per_node"] > 1 else None), _plan_key(NODES, _no_request, "swift/cli/main.py:66"),
    _plan_key("per_device_train_batch_size", lambda v, _: {"microbatch": v}, f"{A}:129", _as_asked("microbatch"), usual=1),
    _plan_key("gradient_accumulation_steps", _read_accumulation, f"{A}:131", _as_asked("@accumulation"), usual=STEP_FILLED),
    _plan_key("torch_dtype", _read_dtype, f"{B}/model_args.py:74", loaded_dtype, usual="bfloat16"),
    _plan_key("gradient_checkpointing", lambda v, _: {"recompute.mode": "full" if v is True else "none"}, f"{A}:134", recompute_switch, usual=True),
    _plan_key("deepspeed", _read_engine, f"{S}:258-268", deepspeed_word, usual=NO_ENGINE),
    _plan_key("fsdp", _read_fsdp, f"{S}:300", lambda a: OWN_FSDP if a["engine"] == "fsdp2" else None), _plan_key("bf16", _no_request, f"{B}/model_args.py:141"), _plan_key("fp16", _no_request, f"{B}/model_args.py:139"),
    _plan_key("tuner_type", _read_tuner, f"{B}/base_args.py:93", lambda a: "lora" if a.get("adapter.rank") else "full", usual="lora"),
    _plan_key("lora_rank", _of_adapter("adapter.rank"), f"{T}:130", _as_asked("adapter.rank"), usual=8),
    _plan_key("lora_dropout", _of_adapter("adapter.dropout"), f"{T}:132", with_adapter(lambda a: a.get("adapter.dropout", 0.0)), usual=0.05),
    _plan_key("target_modules", _read_targets, f"{T}:122", with_adapter(lambda a: a.get("adapter.targets")), usual="all-linear"),
    _plan_key("use_dora", _no_request, f"{T}:137", lambda a: True if a.get("adapter.kind") == "dora" else None),
    _plan_key("lora_dtype", _no_request, f"{T}:134", with_adapter(adapter_dtype)),
    _plan_key(
        "modules_to_save", lambda v, values: {"adapter.full_modules": comma_separated_names(v)} if _trains_adapter(values) else {}, f"{T}:126",
        with_adapter(lambda a: a.get("adapter.full_modules") or None),
    ),
    _plan_key("quant_bits", _read_bits, f"{B}/quant_args.py:36-60", quantized_bits),
    _plan_key("quant_method", _no_request, f"{B}/quant_args.py:33", lambda a: "bnb" if quantized_bits(a) else None),
    _plan_key("bnb_4bit_quant_type", _no_request, f"{B}/quant_args.py:40", four_bits(_as_asked("quantization.weights"))),
    _plan_key("bnb_4bit_use_double_quant", _no_request, f"{B}/quant_args.py:41", four_bits(lambda a: bool(a.get("quantization.double_quant")))),
    _plan_key("bnb_4bit_quant_storage", _no_request, f"{B}/quant_args.py:43", four_bits(storage_word)),
    _plan_key("attn_impl", _read_attention, f"{B}/model_args.py:79", lambda a: KERNELS.get(str(a.get("attention")))),
    _plan_key("max_length", _read_length, f"{B}/template_args.py:130", _as_asked("seq_len")), _plan_key("packing", _no_request, S),
    _plan_key("packing_length", lambda v, values: {"seq_len": v} if values.get("packing") is True else {}, f"{B}/base_args.py:106, 198"),
    _plan_key("optim", OPTIM.read, "transformers training_args.py:806-813", OPTIM.write, usual=own_default("trl", "optim")),
    _plan_key("use_liger_kernel", _read_liger, f"{A}:55; swift/trainers/seq2seq_trainer.py:134-139", liger_switch),
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


def _swift_values(text: str) -> Mapping[str, Any]:
    """Flags of a command, or the keys of the file that it may be given, with the DeepSpeed file among
    them.
    """
    found = config_file_values(text, megatron=False) or swift_flags(text, "swift", SWIFT_FILE)
    named = found.get("deepspeed")
    return {**found, NAMED_FILE: named} if str(named).endswith(".json") else found


def _method_notes(values: Values) -> Mapping[str, Any]:
    """What trains by another method keeps further models or several sequences, and is told by its name; so
    is an engine's configuration that is none of its own and no file of DeepSpeed's.
    """
    sharded, divided = values.get("fsdp"), values.get("deepspeed")
    return {
        METHOD: trained_method(values),
        **({FSDP_FILE: sharded} if sharded not in (None, "", OWN_FSDP) else {}),
        **({SPREAD: values[CARDS]} if CARDS in values and not (sharded or divided) else {}),
        **({INLINE: divided} if divided not in (None, "", *ZERO, values.get(NAMED_FILE)) else {}),
    }


SHARE_OF_VLLM = 0.9
"""Of the card, where nothing is said (swift/rlhf_trainers/args_mixin.py:37)."""


def _swift_moves(values: Values, asked: Values) -> Iterator[Moved]:
    """Its own vLLM, where that runs on the same cards, and the Trainer's noise and smoothed labels."""
    yield from smoothing_moves(values, asked)
    if values.get(SWITCH) is True and values.get(MODE) == "colocate":
        yield from colocated_moves(SHARE, values.get(SHARE, SHARE_OF_VLLM), asked)


def _swift_plan_problems(asked: Values) -> Iterator[Problem]:
    yield from command_problems(asked, read_format_values(FORMAT, values_of(FORMAT, asked)).request)


BESIDE = frozenset({
    "engine", "global_batch", "mesh.dp_shard", "mesh.dp_replicate", "allocator.expandable_segments", "adapter.dtype",
    *(f"precision.{name}" for name in ("parameters", "compute", "gradients", "reduce", "moments", "master_weights")),
})  # fmt: skip
"""What ranks say, and dtypes that follow from those that are said."""
TOWER_RECOMPUTE = "vit_gradient_checkpointing"
"""Of a tower that is frozen, as it is where nobody says ``freeze_vit``: with it layers keep what goes into
them, without it nothing of the tower is kept, as nothing there needs a gradient (3602360a5
swift/trainers/mixin.py, _prepare_gradient_checkpointing: disable_input_require_grads). One that trains is
told by ``freeze_vit``.
"""
UNMODELLED: dict[str, tuple[Any, ...]] = {
    **TRAINER_BYTES, METHOD: METHODS[:2], "max_memory": (), "callbacks": (), "task_type": ("causal_lm",), "sequence_parallel_size": (1,), "use_galore": (False,), "lisa_activated_layers": (0,),
    "freeze_llm": (False,), "freeze_vit": (True,), "freeze_aligner": (True,), "freeze_parameters": (), "freeze_parameters_ratio": (0, 0.0),
    "freeze_parameters_regex": (), "trainable_parameters": (), "trainable_parameters_regex": (), "target_regex": (), "target_parameters": (),
    "deepspeed_autotp_size": (1,), "zero_hpz_partition_size": (),
    "gradient_checkpointing_kwargs": (), "optimizer": (), "device_map": (), "tuner_backend": ("peft",), "init_weights": ("true", True),
    "lora_ga_batch_size": (), "use_chunked_loss": (False,), "experts_impl": (), "init_strategy": (), "fsdp_config": (), "loss_type": (), "ref_model": (),
    "reward_model": (), "teacher_model": (), "use_vllm": (False,), "use_cpu_offload": (), "config_file": (), FSDP_FILE: (), INLINE: (), SPREAD: (),
}  # fmt: skip
FORMAT: Format = Format(
    name="swift", gradient_sync="last", file="train.sh", kind="shell", tested=VERSION, engines=TRANSFORMERS.engines, keys=KEYS, fixed=lambda _: {METHOD: "sft"},
    problems=_swift_plan_problems, beside=BESIDE, differs=TRANSFORMERS.differs, compose=compose_swift_command,
    notes=("data is yours: run it as `bash train.sh --dataset NAME --learning_rate 1e-4`",), said={"task": "train"}, marks=frozenset({METHOD}),
    parse=_swift_values, rename=_rename_swift_key, absent=_method_notes, keys_complete=False, strict=("",),  # swift/pipelines/base.py:36
    unmodelled=UNMODELLED,
    stored="torch_dtype", refers=(SWIFT_FILE, NAMED_FILE), known=(KNOWN | OF_METHODS | TRANSFORMERS.known | {SWIFT_FILE, NAMED_FILE, CARDS, TOWER_RECOMPUTE, "device_groups.*"}) - {key.at for key in KEYS} - UNMODELLED.keys(), moves=_swift_moves,
    preferences=swift_preferences,
)  # fmt: skip
