"""The YAML of ``accelerate config``: FSDP2, DeepSpeed and plain replicas. Batch and sequence are the training
script's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.shared.file_format import Format, Key, Values, plan_word, precision_word
from memsheet.exchange.shared.flat_gathers import flat_gather_rows

VERSION = "accelerate 1.15.0"
F, D, M = "fsdp_config", "deepspeed_config", "parallelism_config"
LAUNCHED = "config_file"
"""A flag of ``accelerate launch``: the file of this format that says the rest."""
_TYPES = {"fsdp2": "FSDP", "fsdp1": "FSDP", "deepspeed": "DEEPSPEED", "transformers": "MULTI_GPU"}
SHARING = f"{M}.parallelism_config_sp_size"
OLDER_PREFETCH = f"{F}.fsdp_backward_prefetch_policy"
STRATEGY = f"{F}.fsdp_sharding_strategy"
_FULL, _KEPT = ("FULL_SHARD", "1"), ("SHARD_GRAD_OP", "2")  # utils/constants.py: FSDP_SHARDING_STRATEGY
_STAGES = {
    "FULL_SHARD": 3,
    "1": 3,
    "SHARD_GRAD_OP": 2,
    "2": 2,
    "NO_SHARD": 0,
    "3": 0,
    "HYBRID_SHARD": 3,
    "4": 3,
    "HYBRID_SHARD_ZERO2": 2,
    "5": 2,
}


def _read_distributed_type(value: Any, values: Values) -> Mapping[str, Any]:
    fsdp = (
        "fsdp2" if str(values.get(f"{F}.fsdp_version", 1)) == "2" else "fsdp1"
    )  # commands/launch.py:516: "1" where it is not said
    alone = {"zero": 0}
    known: dict[str, Mapping[str, Any]] = {
        "FSDP": {"engine": fsdp}, "DEEPSPEED": {"engine": "deepspeed"}, "MULTI_GPU": {"engine": "transformers", **alone},
        "NO": {"engine": "transformers", "@gpus": 1, **alone},
    }  # fmt: skip
    return known.get(str(value), {"engine": str(value)})


def _distributed_type(asked: Values) -> str | None:
    return "NO" if asked["@gpus"] == 1 and asked["engine"] == "transformers" else _TYPES.get(asked["engine"])


def _mixed_precision_word(asked: Values) -> str:
    own = {"bf16": "bf16", "fp16": "fp16"}.get(asked.get("precision.parameters", ""), "no")
    return own if asked["engine"] == "deepspeed" else precision_word(asked)


def _read_mixed_precision(value: Any, values: Values) -> Mapping[str, Any]:
    """What mixed precision is to each engine; what the model is loaded in is the script's, fp32 unless
    anything says otherwise.
    """
    if value in ("no", False, None):  # YAML 1.1 reads a bare `no` as False, and launch.py takes it for none
        return {"?precision.name": "fp32"}
    if values.get("distributed_type") == "DEEPSPEED":
        told = {
            "parameters": value,
            "compute": value,
            "gradients": value,
            "reduce": value,
            "master_weights": "fp32",
            "moments": "fp32",
        }
        return {f"precision.{key}": held for key, held in told.items()}
    reduced = (
        {"precision.reduce": value}
        if values.get("distributed_type") == "FSDP"
        else {"?precision.reduce": "fp32"}
    )
    kept = {
        f"?precision.{key}": "fp32" for key in ("parameters", "gradients", "moments")
    }  # utils/fsdp_utils.py:814-820
    return {"precision.compute": value, **reduced, **kept}


def _read_fp16_switch(value: Any, values: Values) -> Mapping[str, Any]:
    """An older file's switch, where the newer key is not there (commands/config/config_args.py:113)."""
    return _read_mixed_precision("fp16", values) if value and values.get("mixed_precision") is None else {}


def _is_fsdp_engine(asked: Values) -> bool:
    return str(asked["engine"]) in ("fsdp2", "fsdp1")


def _reshard_after_forward(asked: Values) -> Any:
    if not _is_fsdp_engine(asked):
        return None
    return asked.get("zero") == 3 if asked["engine"] == "fsdp2" else _FULL[0]


def _read_sharding_strategy(value: Any, values: Values) -> Mapping[str, Any]:
    """Of FSDP's first version the strategy decides (utils/dataclasses.py:1836-1845), else the switch."""
    if values.get("distributed_type") != "FSDP":
        return {}
    first = str(values.get(f"{F}.fsdp_version", 1)) == "1"
    told = str(values.get(STRATEGY, value) if first else value).upper()
    return {"zero": {**_STAGES, "TRUE": 3, "FALSE": 2}.get(told, value)}


def _is_flat(values: Values) -> bool:
    return bool(_read_distributed_type(values.get("distributed_type"), values)["engine"] == "fsdp1")


def _offloads_params(asked: Values) -> Any:
    both = asked.get("offload.optimizer") == 1 and asked.get("offload.parameters") == 1
    return both if _is_fsdp_engine(asked) else None


def _read_offload_params(value: Any, values: Values) -> Mapping[str, Any]:
    share = int(str(value).lower() == "true")
    return (
        {"offload.optimizer": share, "offload.parameters": share}
        if values.get("distributed_type") == "FSDP"
        else {}
    )


def _fsdp_checkpointing_switch(asked: Values) -> Any:
    """Layer by layer, as its own wrapper does it; any other way is the script's."""
    plain = not any(asked.get(f"recompute.{key}") for key in ("every", "layers", "segments", "modules"))
    return (asked.get("recompute.mode") == "full" and plain) if _is_fsdp_engine(asked) else None


def _read_fsdp_checkpointing(value: Any, _: Values) -> Mapping[str, Any]:
    return {"recompute.mode": "full"} if str(value).lower() == "true" else {"?recompute.mode": "none"}


def _of_fsdp2(key: str) -> Any:
    """A degree of a mesh that is more than shards alone."""
    axes = ("mesh.dp_replicate", "mesh.tp", "mesh.cp")
    return lambda a: (
        a.get(key, 1) if a["engine"] == "fsdp2" and any(a.get(axis, 1) > 1 for axis in axes) else None
    )


def _of_deepspeed(key: str, *, device: bool = False) -> Any:
    def out(asked: Values) -> Any:
        if asked["engine"] != "deepspeed":
            return None
        return ("cpu" if asked.get(key) else "none") if device else asked.get(key)

    return out


def _exchanges_heads(asked: Values) -> bool:
    return bool(asked["engine"] == "deepspeed" and asked.get("mesh.cp", 1) > 1)


def _of_mesh(axis: str) -> Any:
    """A degree of fsdp2's mesh; of DeepSpeed's, where ranks share sequences, how many do not."""
    degree = _of_fsdp2(f"mesh.{axis}")
    return lambda a: a.get("mesh.dp_shard", 1) if axis == "dp_shard" and _exchanges_heads(a) else degree(a)


def _read_exchanging_ranks(value: Any, _: Values) -> Mapping[str, Any]:
    """Ranks that share sequences and exchange heads (DeepSpeed's Ulysses; accelerator.py:2395-2447)."""
    shared = isinstance(value, int) and value > 1
    return {"mesh.cp": value, "context_parallel_comm": "all_to_all"} if shared else {}


def _kernel_of_ranks(asked: Values) -> Any:
    words = {"sdpa": "sdpa", "flash": "flash_attention_2"}
    return words.get(asked.get("attention", "sdpa")) if _exchanges_heads(asked) else None


def _read_kernel_of_ranks(value: Any, values: Values) -> Mapping[str, Any]:
    """The model's own, or DeepSpeed refuses it (0.19.8 runtime/sequence_parallel/ulysses_sp.py:447)."""
    shared = values.get(SHARING) not in (None, 1)
    return {"?attention": "flash" if "flash" in str(value) else value} if shared and value else {}


def _parallelism_size_row(axis: str) -> Key:
    at = f"{M}.parallelism_config_{axis}_size"
    return Key(
        at=at,
        out=_of_mesh(axis),
        back=lambda v, _: {f"mesh.{axis}": v},
        source="commands/launch.py:906-929",
    )


def _of_ring(asked: Values) -> str | None:
    words = {"all_gather": "allgather", "ring": "alltoall"}
    return words.get(asked.get("context_parallel_comm", "")) if asked["engine"] == "fsdp2" else None


def _read_rotation(value: Any, values: Values) -> Mapping[str, Any]:
    """How keys and values reach other ranks: gathered where nobody says."""
    shared = values.get(f"{M}.parallelism_config_cp_size") not in (None, 1)
    words = {"alltoall": "ring", "allgather": "all_gather"}
    return {"context_parallel_comm": words[value]} if shared and value in words else {}


def _offload_device_row(name: str, plan: str, line: int) -> Key:
    def back(value: Any, _: Values) -> Mapping[str, Any]:
        return {plan: plan_word({"cpu": 1, "nvme": 1, "none": 0}, value)}

    return Key(
        at=f"{D}.{name}",
        out=_of_deepspeed(plan, device=True),
        back=back,
        holds=("cpu", "none"),
        instead="host memory: disks are not modelled",
        source=f"commands/launch.py:{line}",
    )


def _read_zero_stage(value: Any, values: Values) -> Mapping[str, Any]:
    """The launcher's own default where no further file says the stage."""
    named = values.get(f"{D}.deepspeed_config_file") is not None
    return {"zero": value} if values.get("distributed_type") == "DEEPSPEED" and not named else {}


KEYS = (
    Key(at="distributed_type", out=_distributed_type, back=_read_distributed_type, source="commands/config/config_args.py:78"),
    Key(at="mixed_precision", out=_mixed_precision_word, back=_read_mixed_precision, usual="no", source="commands/launch.py:1281; utils/dataclasses.py:2137"),
    Key(at="fp16", out=lambda _: None, back=_read_fp16_switch, source="commands/config/config_args.py:113"),
    Key(at="num_processes", says="@gpus", source="commands/config/config_args.py:180"),
    Key(at="num_machines", says="@nodes", source="commands/config/config_args.py:182"),
    Key(at=f"{F}.fsdp_version", out=lambda a: {"fsdp2": 2, "fsdp1": 1}.get(a["engine"]), back=lambda *_: {}, source="commands/launch.py:514"),
    Key(at=f"{F}.fsdp_reshard_after_forward", out=_reshard_after_forward, back=_read_sharding_strategy, usual=True, source="commands/launch.py:540"),
    Key(at=f"{F}.fsdp_offload_params", out=_offloads_params, back=_read_offload_params, usual=False, source="commands/launch.py:521"),
    Key(at=f"{F}.fsdp_activation_checkpointing", out=_fsdp_checkpointing_switch, back=_read_fsdp_checkpointing, source="commands/launch.py:600"),
    *flat_gather_rows(f"{F}.fsdp_", _is_flat, "utils/dataclasses.py:1892-1954", older=OLDER_PREFETCH),
    *map(_parallelism_size_row, ("dp_replicate", "dp_shard", "tp", "cp")),
    Key(at=SHARING, out=lambda a: a.get("mesh.cp") if _exchanges_heads(a) else None, back=_read_exchanging_ranks, source="commands/launch.py:949"),
    Key(at=f"{M}.parallelism_config_sp_attn_implementation", out=_kernel_of_ranks, back=_read_kernel_of_ranks, source="commands/launch.py:977"),
    Key(at=f"{M}.parallelism_config_cp_comm_strategy", out=_of_ring, back=_read_rotation, source="utils/dataclasses.py:2245"),
    Key(at=f"{D}.zero_stage", out=_of_deepspeed("zero"), back=_read_zero_stage, usual=2, source="commands/launch.py:417"),
    Key(
        at=f"{D}.gradient_accumulation_steps", out=_of_deepspeed("@accumulation"), back=lambda v, _: {"@accumulation": v},
        source="commands/launch.py:452",
    ),
    _offload_device_row("offload_optimizer_device", "offload.optimizer", 424),
    _offload_device_row("offload_param_device", "offload.parameters", 431),
)  # fmt: skip


def _prefix_fsdp_key(at: str) -> str:
    """The launcher puts the prefix before keys of FSDP that lack it (commands/launch.py:1270); an older name
    is taken for its newer one (commands/config/config_args.py:117).
    """
    if at == "dynamo_backend":
        return "dynamo_config.dynamo_backend"
    bare = at.startswith(f"{F}.") and not at.startswith(f"{F}.fsdp")
    return at.replace(f"{F}.", f"{F}.fsdp_", 1) if bare else at


def _default_wrap_policy(values: Values) -> Mapping[str, Any]:
    """Without a policy the whole model is one unit (utils/dataclasses.py:1910)."""
    sharded = values.get("distributed_type") == "FSDP" and f"{F}.fsdp_auto_wrap_policy" not in values
    return {f"{F}.fsdp_auto_wrap_policy": "NO_WRAP"} if sharded else {}


def _questionnaire_keys(asked: Values) -> Mapping[str, Any]:
    """What the questionnaire of ``accelerate config`` would write besides."""
    own: dict[str, Any] = {
        "compute_environment": "LOCAL_MACHINE", "debug": False, "machine_rank": 0, "main_training_function": "main", "rdzv_backend": "static",
        "same_network": True, "use_cpu": False,
    }  # fmt: skip
    if asked["engine"] == "deepspeed":
        own |= {
            f"{D}.deepspeed_multinode_launcher": "standard",
            f"{D}.zero3_init_flag": asked.get("zero") == 3,
        }
    if _exchanges_heads(asked):
        own |= {
            f"{M}.parallelism_config_sp_backend": "deepspeed",
            f"{M}.parallelism_config_sp_seq_length_is_variable": True,
        }
    if _is_fsdp_engine(asked):
        own |= {
            f"{F}.fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
            f"{F}.fsdp_state_dict_type": "SHARDED_STATE_DICT",
        }
    return own


def _accelerate_plan_problems(asked: Values) -> Iterator[Problem]:
    if (
        asked["engine"] == "deepspeed" and asked.get("offload.parameters") and asked.get("zero") != 3
    ):  # DeepSpeed zero/config.py:157
        yield Problem(
            field="offload.parameters",
            value=asked["offload.parameters"],
            reason="is for zero 3 in DeepSpeed",
            hint="zero 3",
        )


FORMAT = Format(
    name="accelerate", file="accelerate.yaml", kind="yaml", tested=VERSION, engines=tuple(_TYPES), keys=KEYS, fixed=_questionnaire_keys, problems=_accelerate_plan_problems,
    said={"task": "train"}, marks=frozenset({"distributed_type", "compute_environment"}),
    rename=_prefix_fsdp_key,
    absent=_default_wrap_policy,
    refers=(f"{D}.deepspeed_config_file", LAUNCHED),
    strict=("",),  # config_args.py: from_yaml_file raises on unknown keys of the top
    differs={"precision.reduce": "accelerate reduces gradients in the dtype it computes in (utils/dataclasses.py:2137)"},
    beside=frozenset({
        "seq_len", "microbatch", "global_batch", "attention", "loss", "dropout", "optimizer.name", "optimizer.implementation", "optimizer.rank",
        "optimizer_in_backward", "mesh.dp_shard", "mesh.dp_replicate", "allocator.expandable_segments", "zero", "precision.parameters",
        "precision.compute", "precision.gradients", "precision.reduce", "precision.moments", "recompute.mode", "recompute.every",
        "recompute.layers", "recompute.segments", "recompute.modules", "adapter.kind", "adapter.rank", "adapter.targets", "adapter.dtype",
        "adapter.dropout", "adapter.full_modules", "quantization.weights", "quantization.double_quant", "quantization.storage", "quantization.group_size",
        "quantization.skip", "offload.activations", "image_tokens",
    }),
    unmodelled={
        f"{F}.fsdp_auto_wrap_policy": ("TRANSFORMER_BASED_WRAP",), f"{F}.fsdp_activation_checkpointing_offload": (False,),
        "dynamo_config.dynamo_backend": ("NO", "no"), f"{F}.fsdp_ignored_modules": (), "fp8_config": ({},), "mpirun_config": ({},),
        f"{D}.offload_optimizer_nvme_path": ("none",), f"{D}.offload_param_nvme_path": ("none",), "use_cpu": (False,),
        f"{D}.deepspeed_moe_layer_cls_names": (), STRATEGY: (*_FULL, 1, *_KEPT, 2, "NO_SHARD", "3", 3),
    },
    known=frozenset({
        LAUNCHED, "compute_environment", "debug", "machine_rank", "main_training_function", "main_process_ip", "main_process_port", "rdzv_backend",
        "same_network", "max_restarts", "monitor_interval", "tee", "role", "log_dir", "rdzv_conf", "quiet", "no_python",
        "num_cpu_threads_per_process", "gpu_ids", "enable_cpu_affinity", "downcast_bf16", "tpu_env", "tpu_use_cluster", "tpu_use_sudo", "tpu_name",
        "tpu_zone", "tpu_vm", "command_file", "commands", "dynamo_config",
            "dynamo_config.*",
            "fp8_config.*",
            "megatron_lm_config.*",
            "mpirun_config.*", "megatron_lm_config", F, D, M,
        f"{D}.zero3_init_flag", f"{D}.zero3_save_16bit_model", f"{D}.gradient_clipping", f"{D}.deepspeed_config_file",
        f"{D}.deepspeed_multinode_launcher", f"{D}.deepspeed_hostfile", f"{D}.deepspeed_exclusion_filter", f"{D}.deepspeed_inclusion_filter",
        f"{F}.fsdp_state_dict_type", f"{F}.fsdp_cpu_ram_efficient_loading", f"{F}.fsdp_sync_module_states", f"{F}.fsdp_use_orig_params",
        f"{F}.fsdp_transformer_layer_cls_to_wrap", OLDER_PREFETCH, f"{F}.fsdp_min_num_params",
        f"{M}.parallelism_config_cp_backend", f"{M}.parallelism_config_sp_backend",
        f"{M}.parallelism_config_sp_seq_length", f"{M}.parallelism_config_sp_seq_length_is_variable",
    }),
)  # fmt: skip
