"""DeepSpeed's configuration. It knows no sequence length, recompute, attention or adapter: those are the
training script's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from memsheet.errors import Problem
from memsheet.exchange.shared.file_format import AUTO, Format, Key, Moved, Values, plan_word
from memsheet.formulas.sharding.partitioned_buckets import BUCKETS

VERSION = "DeepSpeed 0.19.8"  # every line below is of its commit edaa7221, under deepspeed/runtime
_FIELDS = ("parameters", "compute", "gradients", "reduce", "master_weights", "moments")
_SIXTEEN = {"bf16.enabled": "bf16", "fp16.enabled": "fp16"}
Z, HOST, P = "zero_optimization", "zero_optimization.offload_optimizer", "zero_optimization.offload_param"


BARE = {f"{Z}.{name}": f"{Z}.stage3_{name}" for name in (
    "prefetch_bucket_size", "param_persistence_threshold", "model_persistence_threshold", "max_live_parameters", "max_reuse_distance",
    "gather_16bit_weights_on_model_save", "module_granularity_threshold", "use_all_reduce_for_fetch_params", "allgather_sequential",
)}  # fmt: skip
"""A field's own name is taken beside its alias (config_utils.py:109, zero/config.py:215-272)."""


def _dtype_precision_keys(width: str, master: str | None) -> Mapping[str, Any]:
    return dict(
        zip(
            (f"precision.{name}" for name in _FIELDS),
            (width, width, width, width, master, "fp32"),
            strict=True,
        )
    )


def parse_pydantic_switch(value: Any) -> bool:
    """As pydantic reads a switch: words are taken too."""
    return value is True or str(value).lower() in ("true", "1", "on", "yes", "t", "y")


def _read_precision(_: Any, values: Values) -> Mapping[str, Any]:
    """Of both switches: sixteen bits with fp32 copies, or fp32. "auto" is for the training script to say."""
    on = [width for at, width in _SIXTEEN.items() if parse_pydantic_switch(values.get(at))]
    if not on and any(values.get(at) == AUTO for at in _SIXTEEN):
        return {}
    if all(
        values.get(at) is None for at in _SIXTEEN
    ):  # DeepSpeed's own default, which a launcher may write another word over
        return {"?precision.name": "fp32"}
    return _dtype_precision_keys(on[0], "fp32") if on else _dtype_precision_keys("fp32", None)


def _offload_share(value: Any, values: Values) -> Mapping[str, Any]:
    known = {"cpu": values.get(f"{HOST}.ratio") or 1, "nvme": 1, "none": 0}
    return {"offload.optimizer": plan_word(known, value)}


def _zero_bucket_sizes(asked: Values) -> Mapping[str, Any]:
    """The sizes that the sheet is of, said out: an "auto" in their place would be transformers' sizes."""
    if not asked.get("zero"):
        return {}
    sizes = {
        f"{Z}.contiguous_gradients": True,
        f"{Z}.overlap_comm": asked["zero"] == 3,
        f"{Z}.reduce_bucket_size": BUCKETS.reduce_bucket,
    }
    third = {
        f"{Z}.stage3_prefetch_bucket_size": BUCKETS.prefetch, f"{Z}.stage3_param_persistence_threshold": BUCKETS.persistence,
        f"{Z}.stage3_max_live_parameters": BUCKETS.max_live, f"{Z}.stage3_max_reuse_distance": BUCKETS.max_reuse,
        f"{Z}.sub_group_size": BUCKETS.sub_group,
    }  # fmt: skip
    return {**sizes, **(third if asked["zero"] == 3 else {})}


def _deepspeed_plan_problems(asked: Values) -> Iterator[Problem]:
    if asked.get("zero") and asked.get("mesh.dp_replicate", 1) > 1:
        yield Problem(
            field="mesh.dp_replicate",
            value=asked["mesh.dp_replicate"],
            reason="is not what ZeRO divides over",
            hint="dp_shard takes every rank",
        )
    if (
        asked.get("offload.parameters") and asked.get("zero") != 3
    ):  # zero/config.py:157: valid only with stage 3
        yield Problem(
            field="offload.parameters",
            value=asked["offload.parameters"],
            reason="is for zero 3 in DeepSpeed",
            hint="zero 3",
        )


def _bucket_size_moves(values: Values, asked: Values) -> Iterator[Moved]:
    """Buckets of other sizes than the sheet's, in bytes of the gradients' width; a flush holds up to two more
    copies (zero/stage3.py:730).
    """
    width, zero, hidden = (
        (4 if asked.get("precision.gradients") == "fp32" else 2),
        values.get(f"{Z}.stage") or 0,
        asked.get("@hidden"),
    )
    live = {
        "reduce_bucket_size": (BUCKETS.reduce_bucket, 3, 1.0),
        "stage3_prefetch_bucket_size": (BUCKETS.prefetch, 1, 0.9),
    }
    for name, (usual, copies, share) in live.items():
        given = values.get(f"{Z}.{name}")
        size = (
            share * hidden * hidden if given == AUTO and hidden else given
        )  # transformers 5.23 integrations/deepspeed.py:256-262
        if zero and isinstance(size, int | float) and size != usual:
            change = int((size - usual) * width)
            yield Moved(
                at=f"{Z}.{name}",
                why=f"{size:,.0f} elements, not {usual:,}",
                low_bytes=min(0, copies * change),
                high_bytes=max(0, copies * change),
            )
    yield from _quantized_gather_moves(values, asked)
    bucket = values.get(f"{Z}.reduce_bucket_size", BUCKETS.reduce_bucket)
    if zero in (1, 2) and values.get(f"{Z}.overlap_comm") is True and isinstance(bucket, int | float):
        yield Moved(
            at=f"{Z}.overlap_comm", why="a second bucket", low_bytes=0, high_bytes=int(bucket * width)
        )  # stage_1_and_2.py:2493
    most = values.get(f"{Z}.stage3_max_live_parameters")
    if zero == 3 and isinstance(most, int | float) and most != BUCKETS.max_live:
        change = int((most - BUCKETS.max_live) * width)
        yield Moved(
            at=f"{Z}.stage3_max_live_parameters",
            why=f"{most:,.0f}",
            low_bytes=min(0, change),
            high_bytes=max(0, change),
        )


OF_QUANTIZED = 6
"""Bytes an element of what is gathered in eight bits, beyond what is gathered whole: the integers beside what
is made of them (1), which is cast once more (2), and on the rank that sends, of its part, at most a half, a
copy, one in fp16 and the integers (5); rounded up for the scales, fp32 for at least 4,000 elements
(zero/partition_parameters.py:744-776, 845-878, 1444-1500).
"""


def _quantized_gather_moves(values: Values, asked: Values) -> Iterator[Moved]:
    """qwZ: what is on its way in one byte an element, and what stands when it has arrived. qgZ moves nothing
    out of the range: a tensor's integers and their exchanges take less than the copy of a whole bucket
    (comm/coalesced_collectives.py:29-78), and on one node it is off (zero/stage3.py:1807).
    """
    if values.get(f"{Z}.stage") != 3 or not parse_pydantic_switch(values.get(f"{Z}.zero_quantized_weights")):
        return
    if not all(asked.get(key) for key in ("@vocab", "@hidden", "@parameters", "@layers")):
        return
    least = values.get(f"{Z}.stage3_prefetch_bucket_size", BUCKETS.prefetch)
    ahead = least if isinstance(least, int) else BUCKETS.prefetch
    widest = max(asked["@vocab"] * asked["@hidden"], asked["@parameters"] // asked["@layers"])
    yield Moved(
        at=f"{Z}.zero_quantized_weights",
        why="parameters are gathered as integers of eight bits",
        low_bytes=-ahead,
        high_bytes=OF_QUANTIZED * (ahead + widest),
    )


def _zenflow_group(values: Values) -> Mapping[str, Any]:
    """A group that moves states about in its own way, by its name."""
    return {f"{Z}.zenflow": "set"} if any(at.startswith(f"{Z}.zenflow.") for at in values) else {}


ON_HOST: dict[str, Any] = {"holds": ("cpu", "none"), "instead": "host memory: disks are not modelled"}
KEYS = (
    Key(at="train_batch_size", says="global_batch", source="constants.py:19"),
    Key(at="train_micro_batch_size_per_gpu", says="microbatch", source="constants.py:95"),
    Key(at="gradient_accumulation_steps", says="@accumulation", source="constants.py:107"),
    Key(at=f"{Z}.stage", says="zero", usual=0, source="zero/config.py:95"),
    Key(
        at=f"{Z}.zero_hpz_partition_size", out=lambda a: a.get("secondary_shard") if a.get("zero") == 3 else None,
        back=lambda v, values: {"secondary_shard": v} if v != 1 and values.get(f"{Z}.stage") == 3 else {}, source="zero/config.py:309",
    ),
    Key(
        at=f"{HOST}.device", out=lambda a: "cpu" if a.get("offload.optimizer") else None, back=_offload_share, **ON_HOST,
        source="zero/offload_config.py:58",
    ),
    Key(
        at=f"{HOST}.ratio", out=lambda a: share if 0 < (share := a.get("offload.optimizer") or 0) < 1 else None, back=lambda *_: {},
        source="zero/offload_config.py:99",
    ),
    Key(
        at=f"{P}.device", out=lambda a: "cpu" if a.get("offload.parameters") == 1 else None,
        back=lambda v, _: {"offload.parameters": plan_word({"cpu": 1, "nvme": 1, "none": 0}, v)}, **ON_HOST, source="zero/offload_config.py:24",
    ),
    Key(
        at="bf16.enabled", out=lambda a: {"bf16": True, "fp32": False}.get(str(a.get("precision.parameters"))), back=_read_precision, usual=False,
        source="precision_config.py:46",
    ),
    Key(
        at="fp16.enabled", out=lambda a: True if a.get("precision.parameters") == "fp16" else None, back=_read_precision,
        source="precision_config.py:105",
    ),
    Key(
        at="optimizer.type", out=lambda _: None,  # with a learning rate, which no plan has: written by the script
        back=lambda v, _: {"optimizer.name": str(v).lower()} if str(v) != AUTO else {}, source="constants.py:61",
    ),
)  # fmt: skip

FORMAT = Format(
    name="deepspeed", file="ds_config.json", kind="json", tested=VERSION, engines=("deepspeed",), keys=KEYS, said={"engine": "deepspeed"}, beside_engine=True,
    fixed=_zero_bucket_sizes, problems=_deepspeed_plan_problems, moves=_bucket_size_moves, rename=lambda at: BARE.get(at, at), absent=_zenflow_group,
    weighed=frozenset(f"{Z}.{name}" for name in (
        "reduce_bucket_size", "overlap_comm", "zero_quantized_weights", "zero_quantized_gradients", "stage3_prefetch_bucket_size", "stage3_max_live_parameters",
    )),
    marks=frozenset({
        "zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size", "steps_per_print", "wall_clock_breakdown",
        "quantize_training", "compression_training", "data_efficiency", "zero_allow_untested_optimizer",
    }),
    never=frozenset({"log_history", "stateful_callbacks"}),  # of the Trainer's state beside a checkpoint
    strict=(Z, HOST, P, "bf16", "fp16"),  # config_utils.py:110: extra="forbid"
    strict_since={Z: "", HOST: "", P: "", **dict.fromkeys(("bf16", "fp16"), "0.17.1")},  # v0.7.0 zero/config.py, v0.17.1 precision_config.py
    removed=frozenset(  # 0.19.8 runtime/config.py:82-130
        {
            "nebula", "compression_training", "amp", "quantize_training", "sparse_gradients", "eigenvalue", "sparse_attention", "elasticity",
            "graph_harvesting", "curriculum_learning", "progressive_layer_drop", f"{Z}.mics_shard_size",
            f"{Z}.mics_hierarchical_params_gather", f"{Z}.zeropp_loco_param",
        }
    ),
    beside=frozenset({
        "seq_len", "attention", "loss", "dropout", "optimizer.name", "optimizer.implementation", "mesh.dp_shard", "mesh.dp_replicate", "mesh.cp", "context_parallel_comm",
        "allocator.expandable_segments", "recompute.mode", "recompute.every", "recompute.layers", "recompute.segments", "recompute.modules",
        "adapter.kind", "adapter.rank", "adapter.targets", "adapter.dtype", "adapter.dropout", "adapter.full_modules",
        "quantization.weights", "quantization.double_quant", "quantization.storage", "quantization.group_size", "quantization.skip",
    }),
    unmodelled={
        f"{Z}.mics_shard_size": (-1,), f"{Z}.zero_quantized_nontrainable_weights": (False,),
        f"{Z}.contiguous_gradients": (True,), f"{Z}.round_robin_gradients": (False,), f"{Z}.memory_efficient_linear": (True,),
        f"{Z}.cpu_offload": (False,), f"{Z}.cpu_offload_params": (False,), f"{Z}.cpu_offload_param": (False,), f"{Z}.zenflow": ({},),
        f"{HOST}.super_offload": (False,), "amp.enabled": (False,), "torch_autocast.enabled": (False,), "torch_autocast.dtype": (),
        "bf16.immediate_grad_update": (False,), "bf16.bf16_master_weights_and_grads": (False,), "bf16.bf16_optimizer_states": (False,),
        "fp16.fp16_master_weights_and_grads": (False,), "data_types.grad_accum_dtype": (), "communication_data_type": (), "seq_parallel_communication_data_type": ("bf16", "bfp16", "fp16"),
        "activation_checkpointing.partition_activations": (False,), "activation_checkpointing.cpu_checkpointing": (False,),
        "activation_checkpointing.contiguous_memory_optimization": (False,), "tensor_parallel.autotp_size": (0, 1),
        "expert_parallel.autoep_size": (0, 1), "sequence_parallel_size": (1,), "elasticity.enabled": (False,), "compile.enabled": (False,), "compile.deepcompile": (False,),
        "hybrid_engine.enabled": (False,), "sparse_attention.mode": (), "quantize_training.enabled": (False,),
        f"{Z}.stage3_model_persistence_threshold": (), "eigenvalue.enabled": (False,),
    },
    known=frozenset({
        *(f"{Z}.{name}" for name in (
            "reduce_scatter", "use_multi_rank_bucket_allreduce", "allgather_partitions", "allgather_bucket_size",
            "load_from_fp32_weights", "elastic_checkpoint", "sub_group_size", "cpu_offload_use_pin_memory",
            "stage3_param_persistence_threshold", "stage3_max_reuse_distance",
            "stage3_gather_16bit_weights_on_model_save", "stage3_gather_fp16_weights_on_model_save", "stage3_module_granularity_threshold",
            "stage3_use_all_reduce_for_fetch_params", "stage3_allgather_sequential", "ignore_unused_parameters", "legacy_stage1",
            "zeropp_loco_param.*", "mics_hierarchical_params_gather", "pipeline_loading_checkpoint", "override_module_apply",
            "log_trace_cache_warnings", "enable_sanity_checks", "save_muon_momentum_buffer_in_memory", "leaf_module.*", "zenflow.*",
        )),
        *(f"{HOST}.{n}" for n in ("pin_memory", "buffer_count", "nvme_path", "pipeline_read", "pipeline_write", "fast_init", "cpuadam_cores_perc")),
        *(f"{P}.{n}" for n in ("pin_memory", "buffer_count", "buffer_size", "max_in_cpu", "nvme_path")),
        "bf16.check_grad_overflow", *(f"fp16.{n}" for n in (
            "auto_cast", "loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "consecutive_hysteresis", "min_loss_scale",
        )),
        "optimizer.params.*", "optimizer.legacy_fusion", "scheduler.*", "gradient_clipping", "steps_per_print", "wall_clock_breakdown",
        "memory_breakdown", "dump_state", "prescale_gradients", "gradient_predivide_factor", "gradient_allreduce_op", "sparse_gradients",
        "disable_allgather", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "managed_gradient_accumulation",
        "check_overflow", "dataloader_drop_last", "use_data_before_expert_parallelism", "log_level",
        "flops_profiler.*", "tensorboard.*", "wandb.*", "csv_monitor.*", "comet.*", "comms_logger.*", "aio.*", "checkpoint.*", "autotuning.*",
        "data_efficiency.*", "curriculum_learning.*", "nebula.*", "compression_training.*", "progressive_layer_drop.*", "data_types.*",
        "activation_checkpointing.number_checkpoints", "activation_checkpointing.synchronize_checkpoint_boundary",
        "activation_checkpointing.profile", "elasticity.*", "amp.*", "torch_autocast.lower_precision_safe_modules", "pipeline.*",
        "eigenvalue.*", "quantize_training.*", "sparse_attention.*", "compile.*", "timers.*", "weight_quantization.*", "graph_harvesting",
    }),
)  # fmt: skip
