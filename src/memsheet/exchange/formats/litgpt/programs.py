"""Which of litgpt's programs a set of values is for, on how many GPUs, and what divides the model there.

Lines are of Lightning-AI/litgpt at 2685705, under litgpt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.exchange.shared.file_format import Values
from memsheet.exchange.shared.read_only_rows import positive_count

METHOD = "$.method"
LORA, FULL, ADAPTER, ADAPTER_V2, PRETRAIN = (
    "finetune_lora",
    "finetune_full",
    "finetune_adapter",
    "finetune_adapter_v2",
    "pretrain",
)
METHODS = {"finetune": LORA, **{name: name for name in (LORA, FULL, ADAPTER, ADAPTER_V2, PRETRAIN)}}
"""Commands that train (__main__.py:33-39)."""
KINDS = {LORA: "lora", ADAPTER: "llama-adapter", ADAPTER_V2: "llama-adapter-v2"}
ALL = ("auto", -1)
"""Words for as many GPUs as a machine has (utils.py:555)."""


def method_of(values: Values) -> str:
    """The program: as a command names it, else the one that alone has keys of the file."""
    named = METHODS.get(str(values.get(METHOD)))
    if named:
        return named
    if any(at.startswith("lora_") for at in values):
        return LORA
    if "checkpoint_dir" not in values and ("model_name" in values or "tokenizer_dir" in values):
        return PRETRAIN
    return ADAPTER if "quantize" in values else FULL


def fabric_rank_count(values: Values) -> int | None:
    """GPUs that Fabric starts a process for; nothing where those of the machine are meant, or nobody knows
    (pretrain.py:74, finetune/lora.py:56).
    """
    usual = "auto" if method_of(values) == PRETRAIN else 1
    devices = values.get("devices")
    each = positive_count(usual if devices is None else devices)
    nodes = positive_count(values.get("num_nodes") or 1)
    return each * nodes if each and nodes else None


def read_fabric_devices(_: Any, values: Values) -> Mapping[str, Any]:
    """Processes, one a GPU."""
    ranks, nodes = fabric_rank_count(values), positive_count(values.get("num_nodes") or 1)
    return {"@gpus": ranks, "@nodes": nodes, "@per_node": ranks // nodes} if ranks and nodes else {}


def is_divided(values: Values) -> bool:
    """Whether it is shared among GPUs, as it is on more than one (finetune/full.py:108)."""
    return fabric_rank_count(values) != 1


def runs_own_layers(values: Values) -> bool:
    """Whether litgpt's own layers are accounted: all in bf16, on one GPU, or on so many that are said, where
    all weights are trained or LoRA.
    """
    ranks, method = fabric_rank_count(values), method_of(values)
    accounted = ranks == 1 or (ranks is not None and method in (FULL, LORA) and not values.get("quantize"))
    return accounted and str(values.get("precision")) == "bf16-true"


def read_litgpt_engine(_: Any, values: Values) -> Mapping[str, Any]:
    """FSDP around every block, whose layers finetuning recomputes (finetune/full.py:109-115); fully_shard for
    LoRA (finetune/lora.py:158-162, 522); replicas of shards a node to pretrain (pretrain.py:165), compiled
    (pretrain.py:226).
    """
    method = method_of(values)
    compiled = {"compile": True} if method == PRETRAIN else {}
    if not is_divided(values):
        return {"engine": "litgpt" if runs_own_layers(values) else "transformers", **compiled}
    if runs_own_layers(values):
        return {"engine": "litgpt", "recompute.mode": "full"}
    if method == PRETRAIN:
        nodes = positive_count(values.get("num_nodes")) or 1
        replicas = {"mesh.dp_replicate": nodes} if nodes > 1 else {}
        return {"engine": "fsdp1", "zero": 3, **replicas, **compiled}
    return {"engine": "fsdp2" if method == LORA else "fsdp1", "zero": 3, "recompute.mode": "full"}
