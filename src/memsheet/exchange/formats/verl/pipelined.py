"""What verl's Megatron-Core engine is told: degrees, recompute, its optimizer on the host, experts.

Lines are of volcengine/verl at b178a3cd5, under verl.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.formats.verl.strategies import (
    ACTOR,
    MODEL,
    Back,
    engine_place,
    held_value,
    is_sharded,
    parallel_degree,
    says_nothing,
    trains_actor,
    verl_row,
    whole_number,
)
from memsheet.exchange.shared.file_format import Key, Values, plan_word
from memsheet.exchange.shared.fused_modules import layers_of_modules

DEFAULTS = "trainer/config/engine/megatron.yaml"
PLACES = (f"{ACTOR}.megatron", "engine")
OVERRIDES = "override_transformer_config"
OPTIMIZER_OVERRIDES = (f"{ACTOR}.optim.override_optimizer_config", "optim.override_optimizer_config")
LORA = f"{MODEL}.lora"


def _at_megatron_place(place: str, back: Back) -> Back:
    """A row that counts where Megatron-Core's settings stand there."""
    return lambda value, values: (
        back(value, values) if not is_sharded(values) and engine_place(values) == place else {}
    )


def _says_key(key: str) -> Back:
    return lambda value, _: {key: value}


def _read_tensor_size(value: Any, values: Values) -> Mapping[str, Any]:
    """Norms' regions are split by the sequence along with it (config/engine/megatron.yaml:32), and words are
    padded to no more than its ranks (models/mcore/model_initializer.py:77).
    """
    several = type(value) is int and value > 1
    split = (
        several
        and str(held_value(values, f"{engine_place(values)}.sequence_parallel", True)).lower() == "true"
    )
    return {"mesh.tp": value, "sequence_parallel": split, "?vocab_multiple": value if several else 1}


def _read_stage_count(value: Any, values: Values) -> Mapping[str, Any]:
    """Of several stages, one forward and one backward in turn; of several parts of each, interleaved."""
    several = type(value) is int and value > 1
    parts = whole_number(values, f"{engine_place(values)}.virtual_pipeline_model_parallel_size", 1)
    order = "interleaved" if parts and parts > 1 else "1f1b"
    return {"mesh.pp": value, **({"schedule": order} if several else {})}


def _read_expert_size(value: Any, values: Values) -> Mapping[str, Any]:
    """Experts are divided as the other layers are unless that is said (megatron/core/parallel_state.py)."""
    place = engine_place(values)
    own = values.get(f"{place}.expert_tensor_parallel_size")
    tensor = held_value(values, f"{place}.tensor_model_parallel_size", 1)
    return {"mesh.ep": value, **({"mesh.etp": tensor} if own is None and value != 1 else {})}


def _read_distributed_optimizer(value: Any, _: Values) -> Mapping[str, Any]:
    return {"zero": int(str(value).lower() == "true")}


def _read_sixteen_bits(value: Any, _: Values) -> Mapping[str, Any]:
    """Sixteen bits with fp32 copies, gradients in fp32 (utils/megatron_utils.py:141)."""
    word = {"bfloat16": "bf16", "float16": "fp16"}.get(str(value), str(value))
    sixteen = {f"precision.{name}": word for name in ("parameters", "compute")}
    return {
        **sixteen,
        **{f"precision.{name}": "fp32" for name in ("gradients", "reduce", "master_weights", "moments")},
    }


def _read_recompute_words(value: Any, values: Values) -> Mapping[str, Any]:
    """Nothing unless it is said (config/engine/megatron.yaml:58-70)."""
    place = f"{engine_place(values)}.{OVERRIDES}"
    if value == "selective":
        modules = held_value(values, f"{place}.recompute_modules", ["core_attn"])
        return {
            "recompute.mode": value,
            "recompute.modules": modules if isinstance(modules, list) else [modules],
        }
    count = values.get(f"{place}.recompute_num_layers")
    if value == "full" and values.get(f"{place}.recompute_method") == "block":
        return {"recompute.mode": "full", "recompute.layers": count}
    return {
        "recompute.mode": value,
        **({"recompute.every": count} if count not in (None, 1) and value == "full" else {}),
    }


def _read_attention_backend(value: Any, _: Values) -> Mapping[str, Any]:
    backends = {"flash": "flash", "fused": "cudnn", "unfused": "eager", "auto": "flash"}
    return {"attention": plan_word(backends, value)}


def _divides_experts(values: Values) -> bool:
    """Whether ranks share experts: the same switches stand in scripts of models that have none."""
    return parallel_degree(values, "expert_model") != 1


def _read_expert_dispatcher(value: Any, values: Values) -> Mapping[str, Any]:
    """By exchange unless it is said (models/mcore/config_converter.py:89)."""
    return {"moe.dispatch": value} if _divides_experts(values) else {}


def _read_moe_switch(key: str) -> Back:
    return lambda value, values: {key: str(value).lower() == "true"} if _divides_experts(values) else {}


def _read_host_optimizer(place: str) -> Back:
    """The optimizer's part that steps on the host (megatron/core/optimizer, optimizer_cpu_offload)."""

    def read_share(value: Any, values: Values) -> Mapping[str, Any]:
        own = place == OPTIMIZER_OVERRIDES[0]
        if is_sharded(values) or trains_actor(values) is not own or str(value).lower() != "true":
            return {}
        share = held_value(values, f"{place}.optimizer_offload_fraction", 1)
        return {"offload.optimizer": share}

    return read_share


def _read_bridge_rank(value: Any, values: Values) -> Mapping[str, Any]:
    on = not is_sharded(values) and type(value) is int and value > 0
    return {"adapter.kind": "lora", "adapter.rank": value} if on else {}


def _read_lora_modules(value: Any, values: Values) -> Mapping[str, Any]:
    """Layers that the modules hold (config/ppo_megatron_trainer.yaml: lora.target_modules)."""
    rank = values.get(f"{LORA}.rank")
    if is_sharded(values) or type(rank) is not int or rank < 1:
        return {}
    names = value if isinstance(value, list) else [value]
    return {"adapter.targets": layers_of_modules(names)}


def read_megatron_optimizer(value: Any) -> Mapping[str, Any]:
    """Adam with decoupled decay under its shorter name (config/optim/megatron.yaml)."""
    name = "adamw" if str(value).lower() in ("adam", "adamw") else value
    return {
        "optimizer.name": name,
        **({"optimizer.implementation": "distributed"} if name == "adamw" else {}),
    }


def _megatron_rows(name: str, back: Back, line: str, usual: Any = None) -> tuple[Key, ...]:
    """One setting at both of its places."""
    return tuple(
        verl_row(f"{place}.{name}", _at_megatron_place(place, back), f"{DEFAULTS}:{line}", usual)
        for place in PLACES
    )


PIPELINED_KEYS = (
    *_megatron_rows("tensor_model_parallel_size", _read_tensor_size, "14", 1),
    *_megatron_rows("pipeline_model_parallel_size", _read_stage_count, "23", 1),
    *_megatron_rows("virtual_pipeline_model_parallel_size", _says_key("mesh.vpp"), "26"),
    *_megatron_rows("context_parallel_size", _says_key("mesh.cp"), "29", 1),
    *_megatron_rows("expert_model_parallel_size", _read_expert_size, "17", 1),
    *_megatron_rows("expert_tensor_parallel_size", _says_key("mesh.etp"), "20"),
    *_megatron_rows("sequence_parallel", says_nothing, "32"), *_megatron_rows("use_remove_padding", says_nothing, "80"),
    *_megatron_rows("use_distributed_optimizer", _read_distributed_optimizer, "35", True),
    *_megatron_rows("dtype", _read_sixteen_bits, "89", "bfloat16"),
    *_megatron_rows(f"{OVERRIDES}.recompute_granularity", _read_recompute_words, "58", "none"),
    *(row for name in ("recompute_method", "recompute_num_layers", "recompute_modules") for row in _megatron_rows(f"{OVERRIDES}.{name}", says_nothing, "62-70")),
    *_megatron_rows(f"{OVERRIDES}.attention_backend", _read_attention_backend, "73", "flash"),
    *_megatron_rows(f"{OVERRIDES}.moe_token_dispatcher_type", _read_expert_dispatcher, "56", "alltoall"),
    *_megatron_rows(f"{OVERRIDES}.moe_grouped_gemm", _read_moe_switch("moe.grouped_gemm"), "56"),
    *_megatron_rows(f"{OVERRIDES}.moe_permute_fusion", _read_moe_switch("moe.permute_fusion"), "56"),
    *(verl_row(f"{place}.optimizer_cpu_offload", _read_host_optimizer(place), "utils/megatron/optimizer.py:58") for place in OPTIMIZER_OVERRIDES),
    *(verl_row(f"{place}.optimizer_offload_fraction", says_nothing, "utils/megatron/optimizer.py:58") for place in OPTIMIZER_OVERRIDES),
    verl_row(f"{LORA}.rank", _read_bridge_rank, "trainer/config/ppo_megatron_trainer.yaml:53"),
    verl_row(f"{LORA}.target_modules", _read_lora_modules, "trainer/config/ppo_megatron_trainer.yaml:57", ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]),
)  # fmt: skip
