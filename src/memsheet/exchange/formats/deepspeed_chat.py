"""DeepSpeed-Chat's scripts (``deepspeed main.py --model_name_or_path … --zero_stage 3``): supervised
fine-tuning, reward models, DPO and RLHF, with flags and a DeepSpeed configuration of their own.

Lines are of deepspeedai/DeepSpeedExamples at 45b4b71, applications/DeepSpeed-Chat.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from memsheet.exchange import find_format
from memsheet.exchange.shared.file_format import Format, Key, Moved, Values
from memsheet.exchange.shared.trainers import row_of
from memsheet.late import late_functions

if TYPE_CHECKING:
    from memsheet.exchange.shared.preference_methods import Preferences
with late_functions(__name__):
    from memsheet.exchange.shared.preference_methods import preferences_of


DEEPSPEED = find_format("deepspeed")
VERSION = "DeepSpeed-Chat"  # of DeepSpeedExamples 45b4b71
S, A, U = (
    "training/step1_supervised_finetuning/main.py",
    "dschat/rlhf/rlhf_engine.py",
    "dschat/utils/ds_utils.py",
)
R = "training/step3_rlhf_finetuning/main.py"
METHOD, SUPERVISED = "$.method", "SFT"
EITHER = "SFT, as far as the flags say: DPO takes the same, and keeps a reference model and pairs"
RENAMED = {f"actor_{name}": name for name in (
    "model_name_or_path", "zero_stage", "gradient_checkpointing", "lora_dim", "lora_module_name", "dropout", "learning_rate", "weight_decay",
    "lora_learning_rate",
)} | {"per_device_training_batch_size": "per_device_train_batch_size", "gradient_checkpoint": "gradient_checkpointing"}  # fmt: skip
"""Of the third step's actor; and by a start that argparse takes for the whole."""
NAMED = {"model_name_or_path", "actor_model_name_or_path"}
PREFETCH = 30_000_000
"""Elements that it prefetches in the third stage (dschat/utils/ds_utils.py:45)."""


def _method(values: Values) -> str:
    """What the flags say that the script trains."""
    if "critic_model_name_or_path" in values:
        return "RLHF: the actor alone, without critic, reference and reward models, and generation"
    if "num_padding_at_beginning" in values:
        return "a reward model: one score in place of the vocabulary, and both sequences of a pair"
    if any(at in values for at in ("beta", "label_smoothing", "offload_reference_model")):
        return "DPO: both sequences of a pair, and the reference model"
    return SUPERVISED if "sft_only_data_path" in values else EITHER


def _preferences(values: Values) -> Preferences | None:
    """The method, which flags alone may leave open (training/step4_dpo_finetuning takes those of the first
    step). A batch of pairs has the chosen before the rejected (dschat/utils/data/data_utils.py,
    DataCollatorReward).
    """
    told = _method(values)
    if told.startswith("a reward model"):
        return preferences_of("reward")
    own = told == EITHER or told.startswith("DPO")
    return preferences_of("dpo", own_copy=True, sure=told != EITHER) if own else None


def _read_dtype(value: Any, _: Values) -> Mapping[str, Any]:
    """Sixteen bits with fp32 copies, as its configuration switches them on (ds_utils.py:28-33)."""
    at = f"{value}.enabled"
    return row_of(DEEPSPEED, at).read(value=True, values={at: True}) if value in ("fp16", "bf16") else {}


def _read_offload(value: Any, values: Values) -> Mapping[str, Any]:
    """Optimizer states, and in the third stage parameters, in host memory (ds_utils.py:27-43)."""
    stage = values.get("zero_stage", 0)
    if value is not True or not stage:
        return {}
    return {"offload.optimizer": 1, **({"offload.parameters": 1} if stage == 3 else {})}


def _read_length(value: Any, values: Values) -> Mapping[str, Any]:
    """Rows are padded to it; of the third step a prompt's and an answer's together
    (step3_rlhf_finetuning/main.py:133-139).
    """
    if "critic_model_name_or_path" not in values:
        return {"seq_len": value}
    parts = [values.get(f"max_{part}_seq_len", 256) for part in ("prompt", "answer")]
    return {"seq_len": sum(parts)} if all(type(part) is int for part in parts) else {}


def _read_lora_dim(value: Any, values: Values) -> Mapping[str, Any]:
    """In the base's dtype, which DeepSpeed casts the whole model to."""
    own = {
        "adapter.kind": "lora",
        "adapter.targets": ["all-linear"],
        "adapter.dtype": values.get("dtype", "fp16"),
    }
    return {**own, "adapter.rank": value} if value else {}


def _chat_moves(values: Values, asked: Values) -> Iterable[Moved]:
    """The bucket of its configuration that is not DeepSpeed's own."""
    own = {"zero_optimization.stage": values.get("zero_stage", 0)}
    if own["zero_optimization.stage"] == 3 and DEEPSPEED.moves is not None:
        own["zero_optimization.stage3_prefetch_bucket_size"] = PREFETCH
        yield from DEEPSPEED.moves(own, asked)


def _read_only_key(at: str, back: Any, source: str, **more: Any) -> Key:
    return Key(at=at, out=lambda _: None, back=back, source=source, **more)


def _no_request(*_: Any) -> Mapping[str, Any]:
    return {}


KEYS = (
    _read_only_key("model_name_or_path", lambda v, _: {"@model": v} if isinstance(v, str) else {}, f"{S}:62"),
    _read_only_key("per_device_train_batch_size", lambda v, _: {"microbatch": v}, f"{S}:69", usual=16),
    _read_only_key("gradient_accumulation_steps", lambda v, _: {"@accumulation": v}, f"{S}:102", usual=1),
    _read_only_key("max_seq_len", _read_length, f"{S}:81", usual=512),
    _read_only_key("max_prompt_seq_len", _no_request, f"{R}:133"), _read_only_key("max_answer_seq_len", _no_request, f"{R}:137"),
    _read_only_key("zero_stage", lambda v, _: {"engine": "deepspeed", "zero": v}, f"{S}:154", usual=0),
    _read_only_key("offload", _read_offload, f"{S}:145"),
    _read_only_key("dtype", _read_dtype, f"{S}:148; {U}:28-33", usual="fp16"),
    _read_only_key("gradient_checkpointing", lambda v, _: {"recompute.mode": "full"} if v is True else {"recompute.mode": "none"}, f"{S}:135", usual=False),
    _read_only_key("dropout", lambda v, _: {"dropout": v}, f"{S}:139"),
    _read_only_key("lora_dim", _read_lora_dim, f"{S}:159", usual=0),
    _read_only_key("only_optimize_lora", _no_request, f"{S}:166"),
)  # fmt: skip


def _rename_key(at: str) -> str:
    return RENAMED.get(at, at)


def _is_launch(script: str, given: Values) -> bool:
    """Whether a script's name and flags are these: others are called main.py, too."""
    staged = {"zero_stage", "actor_zero_stage"} & given.keys()
    return script.rpartition("/")[2] == "main.py" and bool(staged) and bool(given.keys() & NAMED)


def _not_held(values: Values) -> Mapping[str, Any]:
    """The step where it is another, and what trains beside adapters: all that is no linear layer of the
    blocks (dschat/utils/module/lora.py:88-140).
    """
    adapted = values.get("lora_dim") not in (None, 0) and values.get("only_optimize_lora") is not True
    return {
        METHOD: _method(values),
        **({"$.trained": "what LoRA does not wrap trains too"} if adapted else {}),
    }


FORMAT = Format(
    name="deepspeed-chat", file="run.sh", kind="shell", tested=VERSION, engines=(), keys=KEYS, said={"task": "train", "optimizer.name": "adamw"},
    marks=frozenset(), parse=lambda _: {}, rename=_rename_key, absent=_not_held, preferences=_preferences, moves=_chat_moves, starts=_is_launch, program_known=lambda _: False,
    unmodelled={
        METHOD: (SUPERVISED,), "$.trained": (), "lora_module_name": ("decoder.layers.", "layers.", "model.layers."), "enable_mixed_precision_lora": (False,),
        "inference_tp_size": (), "enable_ema": (False,), "unsupervised_dataset_name": (), "critic_lora_dim": (0,),
    },
    known=frozenset({
        "deepspeed", "deepspeed_config", "data_path", "data_split", "sft_only_data_path", "data_output_path", "per_device_eval_batch_size", "learning_rate",
        "weight_decay", "num_train_epochs", "lr_scheduler_type", "num_warmup_steps", "output_dir", "seed", "local_rank", "lora_learning_rate", "compute_fp32_loss",
        "enable_tensorboard", "tensorboard_path", "add_eot_token", "eot_token", "print_loss", "eval_interval", "eval_iters", "beta", "label_smoothing",
        "offload_reference_model", "offload_reward_model", "num_padding_at_beginning", "critic_model_name_or_path", "critic_zero_stage", "critic_dropout",
        "critic_gradient_checkpointing", "critic_lora_module_name", "critic_learning_rate", "critic_weight_decay", "critic_lora_learning_rate", "ppo_epochs",
        "per_device_generation_batch_size", "generation_batches", "enable_hybrid_engine", "unpin_actor_parameters", "release_inference_cache",
        "tp_gather_partition_size", "unsupervised_dataset_config_name", "unsup_coef", "print_answers", "print_answers_interval", "enable_test_mode",
        "test_stop_step", "align_overflow", "preprocessing_num_workers",
    }),
)  # fmt: skip
