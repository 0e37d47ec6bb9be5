"""What verl's FSDP engines are told: dtypes, degrees, recompute, adapters, the optimizer, offload.

Lines are of volcengine/verl at b178a3cd5, under verl.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.formats.verl.pipelined import read_megatron_optimizer
from memsheet.exchange.formats.verl.strategies import (
    ACTOR,
    FSDP2,
    MODEL,
    SUPERVISED,
    Back,
    engine_place,
    held_value,
    is_on,
    is_sharded,
    model_place,
    program_of,
    rank_count,
    says_nothing,
    strategy_of,
    trains_actor,
    verl_row,
)
from memsheet.exchange.shared.file_format import Values
from memsheet.exchange.shared.trainers import comma_separated_names, uniform_precision_keys

DEFAULTS, WORKERS = "trainer/config", "workers/fsdp_workers.py"
PLACES = (f"{ACTOR}.fsdp_config", "engine", "model.fsdp_config")
MODELS, OPTIMIZERS = (MODEL, "model"), (f"{ACTOR}.optim", "optim")
DTYPES = {
    "fp32": "fp32", "float32": "fp32", "32": "fp32", "bf16": "bf16", "bfloat16": "bf16", "fp16": "fp16", "float16": "fp16", "16": "fp16",
}  # fmt: skip
"""utils/torch_dtypes.py:21-23."""


TORCH, FUSED = "torch.optim", "override_optimizer_config.fused"
OPTIMIZER_CLASSES = {
    (TORCH, "AdamW"): ("adamw", "foreach"), (TORCH, "SGD"): ("sgd", "foreach"), ("bitsandbytes.optim", "AdamW8bit"): ("adamw_8bit", "bnb"),
    ("bitsandbytes.optim", "PagedAdamW8bit"): ("paged_adamw_8bit", "bnb"), ("bitsandbytes.optim", "PagedAdamW"): ("paged_adamw", "bnb"),
    ("bitsandbytes.optim", "Lion"): ("lion", "bnb"), ("torchao.optim", "AdamW8bit"): ("adamw_8bit", "torchao"),
}  # fmt: skip
"""Libraries and classes that are imported by name (workers/config/optimizer.py:146-200)."""


def _dtype_word(value: Any) -> str:
    return DTYPES.get(str(value), str(value))


def _at_fsdp_place(place: str, back: Back) -> Back:
    """A row that counts where FSDP's settings stand there."""
    return lambda value, values: (
        back(value, values) if is_sharded(values) and engine_place(values) == place else {}
    )


def _at_model_place(place: str, back: Back) -> Back:
    return lambda value, values: (
        back(value, values) if is_sharded(values) and model_place(values) == place else {}
    )


def _read_fsdp_dtypes(value: Any, values: Values) -> Mapping[str, Any]:
    """Shards and states as the model is loaded, products in sixteen bits, gradients reduced in fp32
    (workers/fsdp_workers.py:309-313, 481-488; trainer/fsdp_sft_trainer.py:296).
    """
    place = engine_place(values)
    mixed = f"{place}.mixed_precision"
    said = any(at.startswith(f"{mixed}.") for at in values)
    computed = held_value(
        values, f"{mixed}.param_dtype", "bf16" if said else held_value(values, f"{place}.dtype", "bf16")
    )
    reduced = held_value(values, f"{mixed}.reduce_dtype", "fp32")
    found = {
        **uniform_precision_keys(_dtype_word(value)), "precision.compute": _dtype_word(computed), "precision.reduce": _dtype_word(reduced),
    }  # fmt: skip
    if not trains_adapters(values):
        return found
    return {
        **found,
        "precision.gradients": "fp32",
        "precision.moments": "fp32",
    }  # adapters, as PEFT casts them


def _read_fsdp_size(value: Any, values: Values) -> Mapping[str, Any]:
    """Ranks that share the states; groups of them are replicas (workers/fsdp_workers.py:98-105)."""
    ranks = rank_count(values)
    if type(value) is not int or value < 1 or ranks is None or value >= ranks:
        return {}
    return {"mesh.dp_shard": value, "mesh.dp_replicate": ranks // value}


def _read_reshard_switch(value: Any, _: Values) -> Mapping[str, Any]:
    return {"zero": 3 if str(value).lower() == "true" else 2}


def _read_offload_policy(value: Any, values: Values) -> Mapping[str, Any]:
    """Parameters, gradients and states on the host throughout, in FSDP2 (workers/fsdp_workers.py:545)."""
    on = str(value).lower() == "true" and strategy_of(values) == FSDP2
    return {"offload.parameters": 1, "offload.optimizer": 1} if on else {}


def _read_cpu_offload(value: Any, values: Values) -> Mapping[str, Any]:
    """FSDP's own switch in fine-tuning: FSDP2 moves all of it, whichever word the second is
    (trainer/fsdp_sft_trainer.py:307-310, 337).
    """
    if program_of(values) != SUPERVISED or str(value).lower() != "true":
        return {}
    moved = strategy_of(values) == FSDP2 or is_on(values, "model.fsdp_config.offload_params", usual=False)
    return {"offload.parameters": 1, "offload.optimizer": 1} if moved else {}


def _read_checkpointing_switch(value: Any, _: Values) -> Mapping[str, Any]:
    return {"recompute.mode": "full"} if str(value).lower() == "true" else {"?recompute.mode": "none"}


def _read_activation_offload(value: Any, _: Values) -> Mapping[str, Any]:
    return {"offload.activations": True} if str(value).lower() == "true" else {}


def trains_adapters(values: Values) -> bool:
    rank = values.get(f"{model_place(values)}.lora_rank")
    return type(rank) is int and rank > 0


def _read_peft_rank(value: Any, values: Values) -> Mapping[str, Any]:
    """No adapters at rank 0 (config/model/hf_model.yaml:43)."""
    return {"adapter.kind": "lora", "adapter.rank": value} if trains_adapters(values) else {}


def _read_peft_targets(value: Any, values: Values) -> Mapping[str, Any]:
    return {"adapter.targets": comma_separated_names(value)} if trains_adapters(values) else {}


def _read_attention_name(value: Any, _: Values) -> Mapping[str, Any]:
    return {"attention": "flash" if "flash" in str(value) else value}


def _read_optimizer_class(value: Any, values: Values) -> Mapping[str, Any]:
    """A class by its name, of torch unless another library is named, and of several tensors at once there
    (workers/config/optimizer.py:146-200).
    """
    place = OPTIMIZERS[0] if trains_actor(values) else OPTIMIZERS[1]
    if not is_sharded(values):
        return read_megatron_optimizer(value) if f"{place}.optimizer" in values else {}
    library = str(held_value(values, f"{place}.optimizer_impl", TORCH))
    if own := OPTIMIZER_CLASSES.get((library, str(value))):
        fused = library == TORCH and is_on(values, f"{place}.{FUSED}", usual=False)
        return {"optimizer.name": own[0], "optimizer.implementation": "fused" if fused else own[1]}
    of_torch = library == TORCH
    name = str(value).lower()
    known = {"adamw": "adamw", "adam": "adamw", "sgd": "sgd"}.get(name, name)
    return {"optimizer.name": known, **({"optimizer.implementation": "foreach"} if of_torch else {})}


def _at_optimizer_place(place: str) -> Back:
    own = place == OPTIMIZERS[0]
    return lambda value, values: _read_optimizer_class(value, values) if trains_actor(values) is own else {}


SHARDED_KEYS = (
    *(verl_row(f"{place}.model_dtype", _at_fsdp_place(place, _read_fsdp_dtypes), f"{DEFAULTS}/engine/fsdp.yaml:33; {WORKERS}:309", "fp32") for place in PLACES),
    *(verl_row(f"{place}.dtype", says_nothing, f"{WORKERS}:486") for place in PLACES[:2]),
    *(verl_row(f"{place}.mixed_precision.{name}", says_nothing, f"{WORKERS}:480-484") for place in PLACES[:2] for name in ("param_dtype", "reduce_dtype")),
    *(verl_row(f"{place}.fsdp_size", _at_fsdp_place(place, _read_fsdp_size), f"{DEFAULTS}/engine/fsdp.yaml:26") for place in PLACES),
    *(verl_row(f"{place}.reshard_after_forward", _at_fsdp_place(place, _read_reshard_switch), f"{DEFAULTS}/engine/fsdp.yaml:23") for place in PLACES[:2]),
    *(verl_row(f"{place}.offload_policy", _at_fsdp_place(place, _read_offload_policy), f"{WORKERS}:545") for place in PLACES[:2]),
    verl_row("model.fsdp_config.cpu_offload", _read_cpu_offload, f"{DEFAULTS}/sft_trainer.yaml:40"),
    verl_row("model.fsdp_config.offload_params", says_nothing, f"{DEFAULTS}/sft_trainer.yaml:41"),
    *(verl_row(f"{place}.enable_gradient_checkpointing", _at_model_place(place, _read_checkpointing_switch), f"{DEFAULTS}/model/hf_model.yaml:34", True) for place in MODELS),
    *(verl_row(f"{place}.enable_activation_offload", _at_model_place(place, _read_activation_offload), f"{DEFAULTS}/model/hf_model.yaml:37") for place in MODELS),
    *(verl_row(f"{place}.lora_rank", _at_model_place(place, _read_peft_rank), f"{DEFAULTS}/model/hf_model.yaml:43") for place in MODELS),
    *(verl_row(f"{place}.target_modules", _at_model_place(place, _read_peft_targets), f"{DEFAULTS}/model/hf_model.yaml:49", "all-linear") for place in MODELS),
    *(verl_row(f"{place}.override_config.attn_implementation", _at_model_place(place, _read_attention_name), f"{WORKERS}:316", "flash_attention_2") for place in MODELS),
    *(verl_row(f"{place}.optimizer", _at_optimizer_place(place), f"{DEFAULTS}/optim/fsdp.yaml:5", "AdamW") for place in OPTIMIZERS),
    *(verl_row(f"{place}.optimizer_impl", says_nothing, f"{DEFAULTS}/optim/fsdp.yaml:9") for place in OPTIMIZERS),
    *(verl_row(f"{place}.{FUSED}", says_nothing, "workers/config/optimizer.py:184") for place in OPTIMIZERS),
)  # fmt: skip
