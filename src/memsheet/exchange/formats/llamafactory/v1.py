"""The YAML of LLaMA-Factory's second trainer (``src/llamafactory/v1`` at ff6d4d1, run under USE_V1): plugins
by their names in groups. It is read, and not written.

A whole model trains in fp32, of which FSDP2 computes copies in bf16 (``core/model_engine.py:207``,
``plugins/trainer_plugins/distributed/fsdp2.py:206-213``); the base under adapters keeps its checkpoint's
dtype, which is taken for bf16. Without a group for it, ranks are replicas, and nothing is under autocast.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from memsheet.exchange.shared.file_format import Format, Key, Values, plan_word
from memsheet.exchange.shared.trainers import comma_separated_names, parse_switch
from memsheet.late import late_functions
from memsheet.plan.adapter_targets import LINEAR_MODULES

if TYPE_CHECKING:
    from memsheet.exchange.shared.preference_methods import Preferences
with late_functions(__name__):
    from memsheet.exchange.shared.preference_methods import preferences_of


VERSION = "LLaMA-Factory 0.9.6.dev0"  # of its commit ff6d4d1
T, M, P = "v1/config/training_args.py", "v1/config/model_args.py", "v1/plugins/model_plugins/peft.py"
DIST, PEFT, QUANT = "dist_config", "peft_config", "quant_config"
TRAINER = "trainer (sft is accounted; the command names it, and these data are of another)"
SHARDED = ("fsdp2", "fsdpturbo")


def _plugin(values: Values, group: str) -> str:
    return str(values.get(f"{group}.name") or "")


def _trains_adapter(values: Values) -> bool:
    return _plugin(values, PEFT) == "lora"


def _read_engine(_: Any, values: Values) -> Mapping[str, Any]:
    """Replicas where no plugin divides anything (v1/core/base_trainer.py:110-122)."""
    name = _plugin(values, DIST)
    if name == "deepspeed":
        return {"engine": "deepspeed"}
    if name not in SHARDED:
        return {"?engine": "transformers", "?zero": 0}
    return {
        "engine": "fsdp2",
        "zero": 3 if parse_switch(values.get(f"{DIST}.reshard_after_forward", True)) else 2,
    }


def _read_precision(_: Any, values: Values) -> Mapping[str, Any]:
    half = parse_switch(values.get("bf16", True))
    if _plugin(values, DIST) == "deepspeed":
        return {}
    sharded = _plugin(values, DIST) in SHARDED
    computed = "bf16" if half and sharded else "fp32"
    if _trains_adapter(values):
        own = {"precision.parameters": "bf16", "precision.compute": "bf16"}
        return {**own, **({"precision.reduce": "fp32"} if sharded else {})}
    wide = {f"precision.{name}": "fp32" for name in ("parameters", "gradients", "moments")}
    return {**wide, "precision.compute": computed, "?precision.reduce": "fp32"}


def _read_offload(value: Any, values: Values) -> Mapping[str, Any]:
    on = int(parse_switch(value))
    return {"offload.optimizer": on, "offload.parameters": on} if _plugin(values, DIST) in SHARDED else {}


def _read_peft(value: Any, values: Values) -> Mapping[str, Any]:
    if value != "lora":
        return {}
    kind = "dora" if parse_switch(values.get(f"{PEFT}.use_dora")) else "lora"
    return {
        "adapter.kind": kind,
        "adapter.dtype": "fp32",
        "?adapter.rank": 8,
        "?adapter.targets": [LINEAR_MODULES],
    }


def _of_lora(key: str) -> Any:
    return lambda value, values: {key: value} if _trains_adapter(values) else {}


def _read_targets(value: Any, values: Values) -> Mapping[str, Any]:
    return {"adapter.targets": comma_separated_names(value)} if _trains_adapter(values) else {}


def _read_bits(value: Any, values: Values) -> Mapping[str, Any]:
    if value is None:
        return {}
    double = parse_switch(values.get(f"{QUANT}.double_quantization", True))
    four = {
        "quantization.weights": values.get(f"{QUANT}.quantization_type", "nf4"),
        "quantization.double_quant": double,
    }
    return four if value == 4 else {"quantization.weights": str(plan_word({8: "int8"}, value))}


def _read_optimizer(value: Any, _: Values) -> Mapping[str, Any]:
    """Torch's AdamW where no plugin is named (v1/core/base_trainer.py:205-213)."""
    return {"optimizer.name": str(value) if value else "adamw"}


def _read_attention(value: Any, _: Values) -> Mapping[str, Any]:
    return {"attention": plan_word({"flash_attention_2": "flash"}, value)}


def _row(at: str, back: Any, line: str, usual: Any = None) -> Key:
    return Key(at=at, out=lambda _: None, back=back, usual=usual, source=line)


def _nothing(*_: Any) -> Mapping[str, Any]:
    return {}


def _read_own_exchange(value: Any, _: Any) -> Mapping[str, Any]:
    """Ranks that share sequences by its own code, which exchanges heads, and not by torch's ring."""
    shared = isinstance(value, int) and value > 1
    return {"mesh.cp": value} | ({"context_parallel_comm": "all_to_all"} if shared else {})


KEYS = (
    Key(at="model", says="@model", source=f"{M}:24"),
    Key(at="cutoff_len", says="seq_len", back=lambda v, _: {"seq_len": v, "?seq_len_kind": "maximum"}, usual=2048, source=f"{T}:41"),
    Key(at="micro_batch_size", says="microbatch", usual=1, source=f"{T}:33"),
    Key(at="global_batch_size", says="global_batch", source=f"{T}:37"),
    _row("bf16", _read_precision, f"{T}:65", True),
    _row("enable_activation_checkpointing", lambda v, _: {"recompute.mode": "full" if parse_switch(v) else "none"}, f"{T}:77", True),
    _row("flash_attn", _read_attention, f"{M}:36", "sdpa"),
    _row(f"{DIST}.name", _read_engine, f"{T}:81", ""),
    _row(f"{DIST}.reshard_after_forward", _nothing, "v1/plugins/trainer_plugins/distributed/interface.py:38"),
    _row(f"{DIST}.offload_params", _read_offload, "v1/plugins/trainer_plugins/distributed/interface.py:39"),
    _row("cp_size", _read_own_exchange, f"{T}:89", 1),
    _row("mp_replicate_size", lambda v, values: {"mesh.dp_replicate": v} if _plugin(values, DIST) in SHARDED else {}, f"{T}:97"),
    _row("optim_config.name", _read_optimizer, f"{T}:109", ""),
    _row(f"{PEFT}.name", _read_peft, f"{M}:52"),
    _row(f"{PEFT}.r", _of_lora("adapter.rank"), f"{P}:38"),
    _row(f"{PEFT}.lora_dropout", _of_lora("adapter.dropout"), f"{P}:42"),
    _row(f"{PEFT}.target_modules", _read_targets, f"{P}:44"),
    _row(f"{PEFT}.modules_to_save", _of_lora("adapter.full_modules"), f"{P}:50"),
    _row(f"{PEFT}.use_dora", _nothing, f"{P}:48"),
    _row(f"{QUANT}.quantization_bit", _read_bits, "v1/plugins/model_plugins/quantization.py:41, 87-105"),
    _row(f"{QUANT}.quantization_type", _nothing, "v1/plugins/model_plugins/quantization.py:44"),
    _row(f"{QUANT}.double_quantization", _nothing, "v1/plugins/model_plugins/quantization.py:43"),
)  # fmt: skip


def _preferences(values: Values) -> Preferences | None:
    """What its data may be for, by their name: no key says the method."""
    return preferences_of("dpo", sure=False) if _of_preferences(values) else None


def _of_preferences(values: Values) -> bool:
    return re.search(r"dpo|kto|pref|reward|rm_", str(values.get("train_dataset") or "")) is not None


def _implied_keys(values: Values) -> dict[str, Any]:
    """Plugins that are not accounted, by their names."""
    dist, peft = _plugin(values, DIST), _plugin(values, PEFT)
    return {
        f"{DIST} (a plugin)": None if dist in ("", "fsdp2", "deepspeed") else dist,
        f"{PEFT} (a plugin)": None if peft in ("", "lora") else peft,
        TRAINER: values.get("train_dataset") if _of_preferences(values) else None,
        "adapters that are loaded or merged": values.get(f"{PEFT}.export_dir"),
    }


FORMAT = Format(
    name="llamafactory-v1", file="train.yaml", kind="yaml", tested=VERSION, engines=(), keys=KEYS,
    marks=frozenset({"model_class", DIST, PEFT, "kernel_config"}), needs={"model": ...}, said={"task": "train"}, absent=_implied_keys, preferences=_preferences,
    refers=(f"{DIST}.config_file",), program_known=lambda _: False,
    unmodelled={
        TRAINER: (),
        f"{DIST} (a plugin)": (), f"{PEFT} (a plugin)": (), "adapters that are loaded or merged": (), "kernel_config.name": (), "model_class": ("llm",),
        "batching_strategy": ("normal",), "mp_shard_size": (), f"{PEFT}.adapter_name_or_path": (), f"{DIST}.ep_size": (1,), "use_chunked_loss": (False,),
    },
    known=frozenset({
        "custom_chat_template", "trust_remote_code", "init_config", "init_config.*", "train_dataset", "eval_dataset", "output_dir", "learning_rate",
        "num_train_epochs", "max_steps", "max_grad_norm", "batching_workers", "dp_size", "cp_mode", "dist_timeout", "optim_config", "optim_config.*",
        "lr_scheduler_config", "lr_scheduler_config.*", "seed", "full_determinism", "resume_from_checkpoint", "save_steps", "save_epochs",
        "save_ckpt_as_hf", "save_total_limit", "logging_steps", "pref_loss", "pref_beta", "pref_ftx", "simpo_gamma", "dpo_label_smoothing", "ld_alpha",
        "sample_backend", "max_new_tokens", f"{QUANT}.*", QUANT, f"{PEFT}.*", PEFT, DIST, f"{DIST}.*", "kernel_config", "kernel_config.*",
    }) - {key.at for key in KEYS},
)  # fmt: skip
