"""Keys of LLaMA-Factory's YAML that say a plan. Lines are of ``src/llamafactory`` at its commit ff6d4d1
(0.9.6.dev0).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange import find_format
from memsheet.exchange.formats.llamafactory.names import BNB, LIGER, TRANSFORMERS, trained_layers
from memsheet.exchange.shared.file_format import Key, Values, plan_word
from memsheet.exchange.shared.trainers import (
    comma_separated_names,
    inline_deepspeed_values,
    inside_rows,
    parse_switch,
    plain_recompute,
    row_of,
    uniform_precision_keys,
    with_master,
)
from memsheet.frozen import replace
from memsheet.plan.library_defaults import own_default

VERSION = "LLaMA-Factory 0.9.6.dev0"  # of its commit ff6d4d1
DEEPSPEED = find_format("deepspeed")
F = "fsdp_config"
M, T, D = "hparams/model_args.py", "hparams/finetuning_args.py", "hparams/data_args.py"
KERNELS = {"eager": "disabled", "sdpa": "sdpa", "flash": "fa2"}
ADAPTED = ("lora", "oft")
PADDED = ("sft", "dpo", "kto", "rm")
"""Stages whose batches are padded to a multiple of eight tokens."""


def by_deepspeed(values: Values) -> bool:
    return bool(values.get("deepspeed")) or bool(inline_deepspeed_values(values))


def trains_adapter(values: Values) -> bool:
    """LoRA is what it does where nothing is said (hparams/finetuning_args.py:464); adapters stand in for
    layers that train beside frozen ones.
    """
    return (values.get("finetuning_type") or "lora") in ADAPTED or _trains_layers(values)


def _trains_layers(values: Values) -> bool:
    return values.get("finetuning_type") == "freeze" and trained_layers(values) is not None


def _autocast_dtype(values: Values) -> str:
    return (
        "bf16" if parse_switch(values.get("bf16")) else "fp16" if parse_switch(values.get("fp16")) else "fp32"
    )


def _read_factory_precision(_: Any, values: Values) -> Mapping[str, Any]:
    """What trains is raised to fp32 and computed with under autocast, unless ``pure_bf16`` leaves it as it
    was loaded (model/adapter.py:337-349).

    The model is loaded in its checkpoint's dtype (model/loader.py:154), which is taken for bf16.
    """
    own, sharded = _autocast_dtype(values), bool(values.get("fsdp"))
    if by_deepspeed(values):
        return with_master(own)
    reduced: dict[str, Any] = (
        {"precision.reduce": own} if sharded and own != "fp32" else {"?precision.reduce": "fp32"}
    )
    if trains_adapter(values):
        return {
            "precision.compute": "bf16" if own == "fp32" else own,
            "precision.parameters": "bf16",
            **(reduced if sharded else {}),
        }
    if parse_switch(values.get("pure_bf16")) or parse_switch(values.get("use_badam")):
        return {**uniform_precision_keys("bf16"), **({"precision.compute": own} if own == "fp16" else {})}
    if own == "fp32":
        return {
            **{f"precision.{name}": "fp32" for name in ("parameters", "compute", "gradients", "moments")},
            "?precision.reduce": "fp32",
        }
    return {
        **{f"precision.{name}": "fp32" for name in ("parameters", "gradients", "moments")},
        "precision.compute": own,
        **reduced,
    }


def _bf16_switch(asked: Values) -> bool:
    """Autocast, or DeepSpeed's sixteen bits; parameters that have them themselves are ``pure_bf16``'s.
    Adapters need it to compute as their base.
    """
    if asked["engine"] == "deepspeed":
        return asked.get("precision.parameters") == "bf16"
    return asked.get("precision.compute") == "bf16" and not _pure_bf16_switch(asked)


def _fp16_switch(asked: Values) -> bool:
    of = "parameters" if asked["engine"] == "deepspeed" else "compute"
    return asked.get(f"precision.{of}") == "fp16"


def _pure_bf16_switch(asked: Values) -> Any:
    alone = asked["engine"] != "deepspeed" and not asked.get("adapter.rank")
    return True if alone and asked.get("precision.parameters") == "bf16" else None


def _read_factory_engine(value: Any, values: Values) -> Mapping[str, Any]:
    """Replicas, unless accelerate's file says how it is launched."""
    if by_deepspeed(values):
        return {"engine": "deepspeed"} if inline_deepspeed_values(values) else {}
    if value in (False, None, "", []):
        return {"?engine": "transformers", "?zero": 0}
    return row_of(TRANSFORMERS, "fsdp").read(value, values)


def _read_factory_checkpointing(_: Any, values: Values) -> Mapping[str, Any]:
    """Both switches: its own, which is on, and the Trainer's, which switches on again
    (model/model_utils/checkpointing.py:184).
    """
    on = not parse_switch(values.get("disable_gradient_checkpointing")) or parse_switch(
        values.get("gradient_checkpointing")
    )
    return {"recompute.mode": "full"} if on else {"?recompute.mode": "none"}


def _disables_checkpointing(asked: Values) -> bool:
    """Whether it recomputes nothing itself: with FSDP the wrapper does."""
    return asked["engine"] == "fsdp2" or asked.get("recompute.mode") != "full"


def _disable_checkpointing_value(asked: Values) -> Any:
    """A key of a plan that nothing here can say is left out, so that it is refused by its name."""
    return (
        _disables_checkpointing(asked)
        if plain_recompute(asked) and asked.get("recompute.mode") != "selective"
        else None
    )


def _read_cutoff_len(value: Any, values: Values) -> Mapping[str, Any]:
    """Padded to eight (train/sft/workflow.py:65; dpo, kto and rm alike). Packed rows are as long as was said:
    one less, and one more for padding, which those of pre-training lack (hparams/data_args.py:189,
    data/processor/supervised.py:218, data/processor/pretrain.py:38-41).
    """
    stage, told = values.get("stage", "sft"), values.get("packing")
    switched = parse_switch(told) or parse_switch(values.get("neat_packing"))
    packs = switched or (told is None and stage == "pt")
    length = value
    if isinstance(value, int):
        length = -(-value // 8) * 8 if stage in PADDED else value - (switched and stage == "pt")
    return {"seq_len": length, **({} if packs else {"?seq_len_kind": "maximum"})}


def _read_flash_attn(value: Any, _: Values) -> Mapping[str, Any]:
    """Left to transformers it is sdpa (model/model_utils/attention.py:65)."""
    return {
        "attention": plan_word({"auto": "sdpa", "disabled": "eager", "fa2": "flash", "fa3": "flash"}, value)
    }


def _read_finetuning_type(value: Any, values: Values) -> Mapping[str, Any]:
    """LoRA of rank 8 on every linear layer, or the whole model; other ways are told by name beside the sheet
    of the nearest: OFT's matrices as LoRA's, single layers (freeze) as LoRA and what they take more.
    """
    if value == "full" or (value == "freeze" and not _trains_layers(values)):
        return {}
    kind = "dora" if parse_switch(values.get("use_dora")) else "lora"
    own = _autocast_dtype(values) if by_deepspeed(values) else "fp32"
    return {"adapter.kind": kind if trains_adapter(values) else value, "adapter.dtype": own}


def _of_lora(key: str) -> Any:
    return lambda value, values: {key: value} if trains_adapter(values) else {}


def _read_lora_target(value: Any, values: Values) -> Mapping[str, Any]:
    return {"adapter.targets": comma_separated_names(value)} if trains_adapter(values) else {}


def _read_additional_target(value: Any, values: Values) -> Mapping[str, Any]:
    return {"adapter.full_modules": comma_separated_names(value)} if trains_adapter(values) else {}


def _only_with_lora(make: Any) -> Any:
    return lambda asked: make(asked) if asked.get("adapter.rank") else None


def _read_quantization_bit(value: Any, values: Values) -> Mapping[str, Any]:
    """Formats of bitsandbytes, scales quantized again (model/model_utils/quantization.py:177-192). Other ways
    are told by their name.
    """
    if values.get("quantization_method", "bnb") not in BNB or value is None:
        return {}
    double = values.get("double_quantization", True)
    four = {
        "quantization.weights": values.get("quantization_type", "nf4"),
        "quantization.double_quant": parse_switch(double),
    }
    return four if value == 4 else {"quantization.weights": str(plan_word({8: "int8"}, value))}


def _quantization_bit(asked: Values) -> Any:
    known = asked.get("quantization.weights") in ("nf4", "fp4") and not asked.get("quantization.skip")
    return 4 if known and asked.get("adapter.rank") else None


def _optimizer_of(at: str, name: str, line: int) -> Key:
    """One of its own optimizers, which takes the place of what ``optim`` names."""

    def back(value: Any, values: Values) -> Mapping[str, Any]:
        if not parse_switch(value):
            return {}
        ranked = {"optimizer.rank": values.get("galore_rank", 16)} if name == "galore" else {}
        return {"optimizer.name": name, "optimizer.implementation": None, **ranked}

    return Key(at=at, out=lambda _: None, back=back, source=f"{T}:{line}; train/trainer_utils.py:527")


def _read_factory_optim(value: Any, values: Values) -> Mapping[str, Any]:
    """Nothing where another key names the optimizer."""
    own = ("use_galore", "use_adam_mini", "use_muon")
    return (
        {}
        if any(parse_switch(values.get(at)) for at in own)
        else row_of(TRANSFORMERS, "optim").read(value, values)
    )


def _no_factory_keys(*_: Any) -> Mapping[str, Any]:
    return {}


def _factory_helper_row(at: str, source: str, out: Any = lambda _: None) -> Key:
    """A key that another row reads."""
    return Key(at=at, out=out, back=_no_factory_keys, source=source)


def _training_arguments_row(at: str, **changes: Any) -> Key:
    """A row of transformers' own arguments."""
    return replace(row_of(TRANSFORMERS, at), **changes)


KEYS = (
    Key(at="model_name_or_path", says="@model", source=f"{M}:38"),
    Key(at="cutoff_len", says="seq_len", back=_read_cutoff_len, usual=own_default("llama-factory", "cutoff_len"), source=f"{D}:46"),
    _training_arguments_row("per_device_train_batch_size"),
    _training_arguments_row("gradient_accumulation_steps"),
    _training_arguments_row("bf16", out=_bf16_switch, back=_read_factory_precision, usual=own_default("llama-factory", "bf16")),
    _factory_helper_row("fp16", "training_args.py:880", _fp16_switch),
    _factory_helper_row("pure_bf16", f"{T}:456", _pure_bf16_switch),
    _training_arguments_row("fsdp", out=lambda _: None, back=_read_factory_engine),
    *(_training_arguments_row(f"{F}.{name}", out=lambda _: None) for name in ("version", "reshard_after_forward", "activation_checkpointing", "cpu_offload")),
    Key(
        at="deepspeed", out=lambda a: "ds_config.json" if a["engine"] == "deepspeed" else None, back=lambda *_: {"engine": "deepspeed"},
        source="training_args.py:1463",
    ),
    Key(at="disable_gradient_checkpointing", out=_disable_checkpointing_value, back=_read_factory_checkpointing, usual=own_default("llama-factory", "disable_gradient_checkpointing"), source=f"{M}:145"),
    _factory_helper_row("gradient_checkpointing", "training_args.py:926"),
    Key(at="use_reentrant_gc", says="recompute.reentrant", source=f"{M}:149"),
    Key(at="flash_attn", out=lambda a: KERNELS.get(str(a.get("attention"))), back=_read_flash_attn, usual="auto", auto="auto", source=f"{M}:117"),
    _training_arguments_row("optim", back=_read_factory_optim),
    _optimizer_of("use_galore", "galore", 266),
    _optimizer_of("use_adam_mini", "adam_mini", 472),
    _optimizer_of("use_muon", "muon", 522),
    Key(
        at=LIGER, out=lambda a: True if a.get("loss") == "fused" else None, usual=False, source=f"{M}:137; model/model_utils/liger_kernel.py:97",
        back=lambda v, values: {"loss": "fused" if parse_switch(v) and values.get("stage", "sft") in ("sft", "pt") else "plain"},
    ),
    _training_arguments_row("use_liger_kernel", out=lambda _: None, usual=None),
    Key(at="finetuning_type", out=lambda a: "lora" if a.get("adapter.rank") else "full", back=_read_finetuning_type, usual=own_default("llama-factory", "finetuning_type"), source=f"{T}:464"),
    Key(at="lora_rank", out=_only_with_lora(lambda a: a["adapter.rank"]), back=_of_lora("adapter.rank"), usual=own_default("llama-factory", "lora_rank"), source=f"{T}:77"),
    Key(at="lora_dropout", out=_only_with_lora(lambda a: a.get("adapter.dropout")), back=_of_lora("adapter.dropout"), usual=0.0, source=f"{T}:73"),
    Key(at="lora_target", out=_only_with_lora(lambda a: ",".join(a.get("adapter.targets", ()))), back=_read_lora_target, usual=own_default("llama-factory", "lora_target"), source=f"{T}:81"),
    Key(
        at="additional_target", out=_only_with_lora(lambda a: ",".join(a["adapter.full_modules"]) if a.get("adapter.full_modules") else None),
        back=_read_additional_target, source=f"{T}:59",
    ),
    _factory_helper_row("use_dora", f"{T}:103", lambda a: True if a.get("adapter.kind") == "dora" else None),
    Key(at="quantization_bit", out=_quantization_bit, back=_read_quantization_bit, source=f"{M}:283"),
    _factory_helper_row("quantization_type", f"{M}:287", lambda a: a["quantization.weights"] if _quantization_bit(a) else None),
    _factory_helper_row("double_quantization", f"{M}:291", lambda a: bool(a.get("quantization.double_quant")) if _quantization_bit(a) else None),
    *inside_rows(DEEPSPEED),
)  # fmt: skip
