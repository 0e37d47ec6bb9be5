"""torchtune's recipes' YAML (``tune run … --config llama3_1/8B_lora``): components by their Python names, and
the switches of a recipe.

Everything that trains is in the dtype that is said, moments with it. Models whose layers are written down for
torchtune are accounted as it runs them; of others the sheet is of the library's layers under fully_shard, and
that is told. Lines are of pytorch/torchtune at bd2a0fc.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memsheet.exchange.formats.torchtune.checkpoints import (
    FOLDER,
    FULL,
    MODEL,
    built_by,
    read_checkpoint_folder,
)
from memsheet.exchange.formats.torchtune.recipes import (
    ATTENTION_TARGETS,
    FED_TARGETS,
    HEAD_TARGET,
    attention_targets,
    builder_path,
    checkpoint_folder,
    recipe_problems,
    recomputes_layers,
    required_recipe_values,
)
from memsheet.exchange.shared.config_commands import ALONE, TUNE_FILE, TUNE_RECIPE
from memsheet.exchange.shared.file_format import Format, Key, Values, plan_word
from memsheet.exchange.shared.read_only_rows import read_elsewhere
from memsheet.exchange.shared.trainers import uniform_precision_keys
from memsheet.late import late_functions
from memsheet.patterns import late_pattern

if TYPE_CHECKING:
    from memsheet.exchange.shared.preference_methods import Preferences
with late_functions(__name__):
    from memsheet.exchange.formats.torchtune.shipped import shipped_values
    from memsheet.exchange.shared.preference_methods import preferences_of


VERSION = "torchtune 0.7"  # of its commit bd2a0fc
ACTIVATIONS, RECIPE, ANSWER = "activations", "$.recipe", "max_generated_tokens"
RESHARDS = "fsdp_reshard_after_forward"
IN_BACKWARD = "optimizer_in_bwd (on several ranks)"
LENGTH, DATA = "tokenizer.max_seq_len", "lengths of samples"
ADAPTED = late_pattern(r"\.q?lora_\w+$")
WRITTEN = late_pattern(
    r"torchtune\.models\.(?:llama2|llama3|llama3_1|llama3_2|llama3_3|code_llama2|qwen2|qwen2_5)\.\w+"
)
"""Builders of models whose layers are written down (memsheet/engines/torchtune/layers)."""
OPTIMIZERS = {
    "torch.optim.AdamW": ("adamw", "foreach"), "torch.optim.Adam": ("adamw", "foreach"), "torch.optim.SGD": ("sgd", "foreach"),
    "bitsandbytes.optim.PagedAdamW8bit": ("paged_adamw_8bit", "bnb"), "bitsandbytes.optim.PagedAdamW": ("paged_adamw", "bnb"),
    "bitsandbytes.optim.AdamW8bit": ("adamw_8bit", "bnb"), "torchao.optim.AdamW8bit": ("adamw_8bit", "torchao"),
}  # fmt: skip
MODULES = {own: name for name, own in ATTENTION_TARGETS.items()}
FUSING = late_pattern(r"\.phi[34]\.")
FUSED = {
    **dict.fromkeys(("q_proj", "k_proj", "v_proj"), "qkv_proj"), **dict.fromkeys(("gate_proj", "up_proj"), "gate_up_proj"),
}  # fmt: skip
"""Of models whose matrices the library joins and torchtune keeps apart (torchtune/models/phi3/
_component_builders.py): those in which the ones that are adapted lie.
"""
WHOLE_LOSS, LOSS_IN_PIECES = "torch.nn.CrossEntropyLoss", "torchtune.modules.loss.LinearCrossEntropyLoss"
"""The recipes take any loss, which then gets whole logits (recipes/lora_finetune_distributed.py, _loss_step).
"""
PIECED = ("LinearCrossEntropyLoss", "CEWithChunkedOutputLoss")


def _adapts(values: Values) -> bool:
    return ADAPTED.search(str(values.get(MODEL, ""))) is not None


def _is_written(values: Values) -> bool:
    alone = values.get("tensor_parallel_dim", 1) in (1, None)
    return alone and WRITTEN.fullmatch(str(values.get(MODEL, ""))) is not None


def _nearest_engine(values: Values) -> Mapping[str, Any]:
    """torchtune, or what runs the library's layers as it would: fully_shard, and replicas under an optimizer
    that only its recipes of one device take.
    """
    if _is_written(values):
        return {"engine": "torchtune"}
    alone = values.get(ALONE) == 1 or str(values.get("optimizer._component_", "")).startswith(
        "bitsandbytes.optim.Paged"
    )
    return {"engine": "transformers"} if alone else {"engine": "fsdp2", "zero": 3}


def _is_quantized(builder: Any, values: Values) -> bool:
    """``qlora_…`` is ``lora_…`` with its base quantized (torchtune/models/llama3/_model_builders.py)."""
    return ".qlora_" in str(builder) or (
        ".lora_" in str(builder) and values.get("model.quantize_base") is True
    )


def _read_component(value: Any, values: Values) -> Mapping[str, Any]:
    """Whose layers run, and a base in four bits where the builder's name says it
    (torchtune/models/*/_model_builders.py), whose scales torchao quantizes again.
    """
    four = {"quantization.weights": "nf4", "quantization.double_quant": True}
    return {**_nearest_engine(values), **(four if _is_quantized(value, values) else {})}


def _read_dtype(value: Any, values: Values) -> Mapping[str, Any]:
    width = plan_word({"bf16": "bf16", "fp16": "fp16", "fp32": "fp32"}, value)
    if _adapts(values):
        trained = uniform_precision_keys(width) if _is_written(values) else {}
        return {**trained, "precision.parameters": width, "precision.compute": width, "adapter.dtype": width}
    return uniform_precision_keys(width)


def _read_targets(value: Any, values: Values) -> Mapping[str, Any]:
    if not _adapts(values) or not isinstance(value, list):
        return {}
    names = [MODULES.get(str(name), str(name)) for name in value]
    fed = [*FED_TARGETS] if values.get("model.apply_lora_to_mlp") is True else []
    head = [HEAD_TARGET] if values.get("model.apply_lora_to_output") is True else []
    fused = FUSED if FUSING.search(built_by(values)) else {}
    return {"adapter.targets": sorted({fused.get(name, name) for name in (*names, *fed, *head)})}


def _of_adapter(key: str) -> Any:
    return lambda value, values: {key: value} if _adapts(values) else {}


def _read_optimizer(value: Any, values: Values) -> Mapping[str, Any]:
    name, implementation = OPTIMIZERS.get(str(value), (str(value), None))
    fused = values.get("optimizer.fused") is True and implementation == "foreach"
    return {"optimizer.name": name, "optimizer.implementation": "fused" if fused else implementation}


def _read_loss(value: Any, values: Values) -> Mapping[str, Any]:
    """In pieces; beside the library's layers that are sharded Liger's stands for it."""
    pieces = "chunked" if _nearest_engine(values)["engine"] in ("torchtune", "transformers") else "fused"
    return {"loss": pieces if str(value).endswith(PIECED) else "plain"}


def _read_resharding(value: Any, values: Values) -> Mapping[str, Any]:
    """False is SHARD_GRAD_OP (bd2a0fc recipes/full_finetune_distributed.py: fsdp_reshard_after_forward), read
    where the library's layers are sharded.
    """
    sharded = value is False and _nearest_engine(values)["engine"] == "fsdp2"
    return {"zero": 2} if sharded else {}


def _read_in_backward(value: Any, values: Values) -> Mapping[str, Any]:
    """A step of each parameter as its gradient is there, on one device; sharded ones are told."""
    return {"optimizer_in_backward": True} if value is True and values.get(ALONE) == 1 else {}


def _read_batch(value: Any, values: Values) -> Mapping[str, Any]:
    """Sequences of a pass; in GRPO all answers of all prompts at once
    (recipes/dev/grpo_full_finetune_distributed.py:585, 757).
    """
    answers = values.get("grpo_samples", 1)
    counts = isinstance(value, int) and isinstance(answers, int)
    return {"microbatch": value * answers if counts else value}


def _read_length(value: Any, values: Values) -> Mapping[str, Any]:
    """Tokens of a sample at the most; a prompt's, where answers are made and come behind it."""
    packed = values.get("dataset.packed") is True
    answer = values.get(ANSWER, values.get(f"inference.{ANSWER}", 0))
    counts = isinstance(value, int) and isinstance(answer, int)
    length = value + answer if counts else value
    return {"seq_len": length, **({} if packed else {"?seq_len_kind": "maximum"})}


def _plan_key(at: str, back: Any, out: Any, source: str = FULL, **more: Any) -> Key:
    return Key(at=at, out=out, back=back, source=source, **more)


def _as_asked(key: str) -> Any:
    return lambda asked: asked.get(key)


def _with_adapter(make: Any) -> Any:
    return lambda asked: make(asked) if asked.get("adapter.rank") else None


def _optimizer_class(asked: Values) -> str | None:
    """One step or one kernel a tensor is a switch of torch's classes."""
    held = asked.get("optimizer.implementation")
    own = (asked.get("optimizer.name"), "foreach" if held == "fused" else held)
    return next((name for name, pair in OPTIMIZERS.items() if pair == own), None)


def _loss_class(asked: Values) -> str | None:
    return {"plain": WHOLE_LOSS, "chunked": LOSS_IN_PIECES}.get(str(asked.get("loss")))


def _adapts_every(names: tuple[str, ...]) -> Any:
    """A switch for layers of these names together."""
    return _with_adapter(lambda asked: {*names} <= {*asked.get("adapter.targets", ())})


def _offloads_states(asked: Values) -> bool | None:
    both = asked.get("offload.optimizer") == 1 and asked.get("offload.parameters") == 1
    return True if both else None


def _switched_on(key: str, value: Any) -> Any:
    """A switch that is said where the plan's key has that value."""
    return lambda asked: True if asked.get(key) == value else None


def _written_dtype(asked: Values) -> Any:
    """Not sixteen bits of fp16, which recipes refuse (recipes/full_finetune_distributed.py:158-162)."""
    width = asked.get("precision.parameters")
    return width if width in ("bf16", "fp32") else None


KEYS = (
    _plan_key(MODEL, _read_component, builder_path, "torchtune/models/*/_model_builders.py"),
    _plan_key(FOLDER, read_checkpoint_folder, checkpoint_folder, "torchtune/training/checkpointing/_checkpointer.py", reads_open=True),
    _plan_key("batch_size", _read_batch, _as_asked("microbatch")),
    _plan_key("gradient_accumulation_steps", lambda v, _: {"@accumulation": v}, _as_asked("@accumulation"), usual=1),
    _plan_key("dtype", _read_dtype, _written_dtype, usual="bf16"), _plan_key(LENGTH, _read_length, _as_asked("seq_len")),
    _plan_key(
        "enable_activation_checkpointing", lambda v, _: {"recompute.mode": "full" if v is True else "none"}, recomputes_layers, usual=False,
    ),
    _plan_key(
        "enable_activation_offloading", lambda v, _: {"offload.activations": True} if v is True else {}, _switched_on("offload.activations", value=True),
    ),
    _plan_key("fsdp_cpu_offload", lambda v, _: {"offload.optimizer": 1, "offload.parameters": 1} if v is True else {}, _offloads_states),
    _plan_key("optimizer._component_", _read_optimizer, _optimizer_class),
    _plan_key("optimizer.fused", read_elsewhere, _switched_on("optimizer.implementation", "fused")),
    _plan_key("model.lora_rank", _of_adapter("adapter.rank"), _as_asked("adapter.rank")),
    _plan_key("model.lora_dropout", _of_adapter("adapter.dropout"), _with_adapter(lambda asked: asked.get("adapter.dropout", 0.0))),
    _plan_key("model.lora_attn_modules", _read_targets, attention_targets),
    _plan_key("model.apply_lora_to_mlp", read_elsewhere, _adapts_every(FED_TARGETS)),
    _plan_key("model.apply_lora_to_output", read_elsewhere, _adapts_every((HEAD_TARGET,))),
    _plan_key(
        "model.use_dora", lambda v, values: {"adapter.kind": "dora"} if v is True and _adapts(values) else {}, _switched_on("adapter.kind", "dora"),
    ),
    _plan_key(RESHARDS, _read_resharding, lambda _: None),
    _plan_key("optimizer_in_bwd", _read_in_backward, _switched_on("optimizer_in_backward", value=True)),
    _plan_key(ALONE, lambda v, _: {"@gpus": v}, lambda _: None), _plan_key("loss._component_", _read_loss, _loss_class),
    _plan_key("tensor_parallel_dim", lambda v, _: {"mesh.tp": v}, lambda _: None),
)  # fmt: skip


def torchtune_preferences(values: Values) -> Preferences | None:
    """DPO, by its losses (torchtune/rlhf/loss/dpo.py): both sequences of a pair in one batch, and a copy of
    the model where a whole one trains (recipes/lora_dpo_single_device.py:457-560,
    full_dpo_distributed.py:514).
    """
    name = str(values.get("loss._component_")).rpartition(".")[2]
    if name == "SimPOLoss":
        return preferences_of("simpo")
    return preferences_of("dpo") if name in ("DPOLoss", "RSOLoss") else None


BESIDE = (
    "teacher_model._component_", "ref_checkpointer._component_", "ref_policy_checkpointer._component_", "quantizer._component_",
    "reward_and_value_model._component_", "value_model._component_",
)  # fmt: skip
GENERATES = "generates its samples on the same cards before it trains on them"


def _left_open(values: Values) -> Mapping[str, Any]:
    """Its layers, and a recipe that trains otherwise than by itself, by the keys that only such a one has."""
    others = [at for at in BESIDE if at in values]
    told = "are of torchtune's own layers, and the sheet is of the library's"
    own = {} if _is_written(values) else {ACTIVATIONS: told}
    if values.get(LENGTH) is None:
        own[DATA] = "is not said: samples are as long as the data's"
    if values.get(RESHARDS) is False and _is_written(values):
        own[RESHARDS] = "False keeps parameters gathered, and the sheet frees them"
    if values.get("optimizer_in_bwd") is True and values.get(ALONE) != 1:
        own[IN_BACKWARD] = "lets gradients go as soon as they are there, and the sheet holds all of them"
    words = [f"has {', '.join(at.removesuffix('._component_') for at in others)} beside the model"] * bool(
        others
    )
    words += [GENERATES] * (ANSWER in values)
    method = torchtune_preferences(values)
    words += [f"trains by {method.method}"] if method else []
    return {**own, **({RECIPE: " and ".join(words)} if words else {})}


NOTES = (
    "data and learning rate are stand-ins: put your own; get the model first with `tune download`",
    "run it with `tune run --nproc_per_node GPUS full_finetune_distributed --config config.yaml`",
    "or lora_finetune_distributed for adapters; on one GPU full_ or lora_finetune_single_device",
)
FORMAT = Format(
    name="torchtune", file="config.yaml", kind="yaml", tested=VERSION, engines=("torchtune",), keys=KEYS, marks=frozenset({"checkpointer"}), needs={"model": ..., "optimizer": ...},
    fixed=required_recipe_values, problems=recipe_problems, notes=NOTES, differs={"@model": "the folder that `tune download` makes for it"},
    beside=frozenset({"engine", "zero", "global_batch", "mesh.dp_shard", "attention", "adapter.kind", "allocator.expandable_segments"}),
    said={"task": "train"}, refers=(TUNE_FILE,), own_processes=True, absent=_left_open, shipped=shipped_values, preferences=torchtune_preferences, program_known=lambda values: TUNE_RECIPE in values,
    unmodelled={
        ACTIVATIONS: (), RECIPE: (), DATA: (), "compile": (False,), IN_BACKWARD: (), "context_parallel_dim": (1,), "data_parallel_replicate_dim": (1,),
        "model.quantize_base": (False, True), "use_loss_parallel": (False,), "enable_fp8_training": (False,), "ac_mode": (),
    },
    known=frozenset({
        "output_dir", "tokenizer.*", "model.lora_alpha", "model.*", "checkpointer.*", "dataset.*", "dataset_val.*", "lr_scheduler.*", "optimizer.*", "loss.*",
        "metric_logger.*", "profiler.*", "resume_from_checkpoint", "save_adapter_weights_only", "seed", "shuffle", "epochs", "max_steps_per_epoch",
        "clip_grad_norm", "log_every_n_steps", "log_peak_memory_stats", "log_level", "device", "run_val_every_n_steps", "batch_size_val", "model_type", "safe_serialization",
        "collate_fn", "tensor_parallel_plan.*", "parallelize_plan.*", "custom_sharded_layers", "max_seq_len", "alpaca.*", "cudnn_deterministic_mode",
        "enable_async_checkpointing", "teacher_model.*", "teacher_checkpointer.*", "ref_checkpointer.*", "quantizer.*", "kd_loss.*", "kd_ratio", "reward_and_value_model.*",
        "value_model.*", "keep_last_n_checkpoints", "last_epoch_only_val", "float8_recipe_name", "data_parallel_shard_dim", "use_dora",
        "fsdp.cpu_offload", "forward_batch_size", "grpo_samples", ANSWER, "temperature", "top_k", "ppo_epochs", "num_steps", "base_model_path", "name", "save_every_n_epochs",
        TUNE_FILE, TUNE_RECIPE, "model_dir", "eval.*", "ac_option", "memory_efficient_fsdp_wrap", "parallel_method", "use_distributed_state_dict",
    }) - {key.at for key in KEYS},
)  # fmt: skip
