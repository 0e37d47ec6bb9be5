"""axolotl's YAML: a trainer over transformers, accelerate and DeepSpeed. Model, data and the learning rate
stand in the file too.

It differs from transformers itself in what a model is loaded as: in the dtype of the products, so that
parameters, gradients and moments have sixteen bits (``utils/config/__init__.py:191-196``), with FSDP2 too
(``monkeypatch/accelerate/fsdp2.py:539`` takes the place of accelerate's way, which raises them to fp32, as
FSDP1's are).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.formats.axolotl.names import (
    KNOWN,
    SHIPPED,
    UNMODELLED,
    axolotl_implied_keys,
    axolotl_moves,
    axolotl_preferences,
)
from memsheet.exchange.formats.axolotl.rows import DEEPSPEED, KEYS, RAISED, VERSION, F
from memsheet.exchange.shared.config_commands import AXOLOTL_FILE, OF_SWIFT
from memsheet.exchange.shared.file_format import Format, Values
from memsheet.exchange.shared.trainers import cannot_offload, inside_names, inside_renamed

LIGER = "axolotl.integrations.liger.LigerPlugin"


def _required_axolotl_keys(asked: Values) -> dict[str, Any]:
    """What it stops without, and what it would otherwise switch on or round by itself."""
    own: dict[str, Any] = {
        "learning_rate": 0.0, "datasets": [{"path": "synthetic", "type": "_synthetic"}],  # schemas/training.py:116, validation.py:83
        "output_dir": "output", "num_epochs": 1,
    }  # fmt: skip
    if asked.get("adapter.rank"):
        kernels = {
            f"lora_{part}_kernel": False for part in ("mlp", "qkv", "o", "embedding")
        }  # schemas/config.py:1981-2002
        own |= {"lora_alpha": asked["adapter.rank"], **kernels}
    if asked.get("loss") == "fused":
        own["plugins"] = [LIGER]
    if asked["engine"] == "fsdp2":
        own |= {
            "fsdp_version": 2,
            f"{F}.auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            f"{F}.state_dict_type": "SHARDED_STATE_DICT",
        }
    return own


_RENAMED = {
    f"{F}.version": f"{F}.fsdp_version",
    "sequence_parallel_degree": "context_parallel_size",
}


_inside = inside_renamed(DEEPSPEED)
INSIDE_KNOWN, INSIDE_UNMODELLED, INSIDE_WEIGHED = inside_names(DEEPSPEED)


def _rename_axolotl_key(at: str) -> str:
    """Names that are taken for others (schemas/validation.py:1085-1123, 1637)."""
    if at in _RENAMED:
        return _RENAMED[at]
    at = _inside(at)
    return at if at == f"{F}.fsdp_version" else at.replace(f"{F}.fsdp_", f"{F}.", 1)


def _axolotl_plan_problems(asked: Values) -> Iterator[Problem]:
    yield from cannot_offload(asked)
    if asked["engine"] == "transformers" and asked.get("mesh.dp_shard", 1) > 1:
        yield Problem(
            field="mesh.dp_shard",
            value=asked["mesh.dp_shard"],
            reason="is what FSDP or DeepSpeed divides over",
            hint="engine fsdp2",
        )
    whole = asked["engine"] == "transformers" and not asked.get("adapter.rank")
    if (
        whole and asked.get("attention") in RAISED and asked.get("precision.parameters") == "bf16"
    ):  # loaders/model.py:458-476
        yield Problem(
            field="attention",
            value=asked["attention"],
            reason="leaves embeddings, output layer and norms in fp32 in axolotl",
            hint="attention flash",
        )
    eight = (asked.get("optimizer.name"), asked.get("optimizer.implementation")) == ("adamw_8bit", "bnb")
    if asked["engine"] == "fsdp2" and eight:  # schemas/validation.py:1151
        yield Problem(
            field="optimizer.implementation",
            value="bnb",
            reason="is refused by axolotl with FSDP2",
            hint="torchao",
        )


OF_OTHERS = frozenset({"model_path", "model_id", "model_name", "hf_model", "model_name_or_path"})
"""Keys at the top of settings of other people's scripts that name a model (axolotl's own is base_model)."""
FORMAT = Format(
    name="axolotl", gradient_sync="last", file="axolotl.yaml", kind="yaml", tested=VERSION, engines=("transformers", "fsdp2", "deepspeed"), keys=KEYS, fixed=_required_axolotl_keys,
    problems=_axolotl_plan_problems, said={"task": "train"}, marks=frozenset({"micro_batch_size", "sequence_len"}), never=OF_SWIFT | OF_OTHERS, absent=axolotl_implied_keys, refers=("deepspeed", AXOLOTL_FILE), ships=SHIPPED,
    rename=_rename_axolotl_key,
    known=KNOWN | INSIDE_KNOWN | {AXOLOTL_FILE}, unmodelled={**UNMODELLED, **INSIDE_UNMODELLED}, weighed=INSIDE_WEIGHED, preferences=axolotl_preferences, moves=axolotl_moves,
    differs={"precision.reduce": "FSDP reduces in the dtype it computes in (accelerate utils/dataclasses.py:2137)"},
    beside=frozenset({
        "engine", "zero", "global_batch", "mesh.dp_shard", "mesh.dp_replicate", "allocator.expandable_segments", "precision.parameters",
        "quantization.storage",  # loaders/model.py:720: bfloat16, always
        "precision.compute", "offload.optimizer", "offload.parameters", "precision.gradients", "precision.reduce", "precision.moments", "precision.master_weights",
    }),
    removed=frozenset({  # schemas/deprecated.py and validation.py:61: it stops at them
        "max_packed_sequence_len", "rope_scaling", "dpo_use_logits_to_keep", "dpo_generate_during_eval", "dpo_norm_loss", "rpo_alpha",
        "s2_attention", "flash_attn_rms_norm", "unsloth_cross_entropy_loss", "unsloth_lora_mlp", "unsloth_lora_qkv", "unsloth_lora_o",
        "unsloth_rms_norm", "unsloth_rope",
    }),
    notes=("learning rate and data are stand-ins: put your own; run it with `axolotl train axolotl.yaml`",),
    along=lambda asked: ("deepspeed",) if asked["engine"] == "deepspeed" else (),
)  # fmt: skip
