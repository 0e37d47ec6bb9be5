"""DeepSpeed's ZeRO optimizers around a transformers model: its stages, buffers and defaults (read at one
commit).
"""

from __future__ import annotations

from memsheet.plan.defaults import NAMED_PRECISIONS
from memsheet.plan.engine import Engine, Runner, Sharding
from memsheet.plan.plan import PAGED, ContextParallel, Implementation, OptimizerName
from memsheet.plan.server_limits import ServerLimits
from memsheet.references import TRANSFORMERS
from memsheet.sheet import Cited, Evidence, FromCode

COMMIT = "edaa7221267243c7be7fb49c5d5f5c4fb97b4641"


def _deepspeed_source(file: str, line: int) -> Evidence:
    return FromCode("deepspeedai/DeepSpeed", COMMIT, f"deepspeed/runtime/{file}", line)


ENGINE = Engine(
    name="deepspeed",
    tested="0.19.8",
    tasks=("train", "infer"),
    axes=("dp_replicate", "dp_shard", "cp"),
    context_parallel=(ContextParallel.ALL_TO_ALL,),
    serving_axes=("tp",),
    server="deepspeed",
    models=frozenset({"secondary_shard"}),
    bare_axes=("tp", "pp"),
    zero=(0, 1, 2, 3),
    default_zero=2,
    replays=True,
    sharding=Sharding.PARTITIONED,
    default_precision="bf16-master",
    precisions=("bf16-master", "fp32"),
    adapter_precisions=tuple(NAMED_PRECISIONS),
    copies_adapters=True,  # zero/stage_1_and_2.py:492
    limits=ServerLimits(library_modules=True),
    autocast=False,
    casts_whole_model=True,
    optimizers=(
        OptimizerName.ADAMW,
        OptimizerName.LION,
        OptimizerName.ADAMW_8BIT,
        OptimizerName.LION_8BIT,
        OptimizerName.ADEMAMIX,
        OptimizerName.ADEMAMIX_8BIT,
        OptimizerName.RMSPROP,
        OptimizerName.RMSPROP_8BIT,
        *(name for name in OptimizerName if name in PAGED),
    ),
    default_implementation=Implementation.FUSED,
    implementations={  # FusedLion (ops/lion/fused_lion.py)
        OptimizerName.LION: (
            Implementation.FUSED,
            Implementation.FOREACH,
            Implementation.LOOP,
            Implementation.BNB,
        ),
        OptimizerName.RMSPROP: (Implementation.BNB,),
    },
    adapter_dtype="bf16",  # engine.py:1755-1762: the whole module is cast to the model's dtype
    offload=("optimizer", "parameters", "activations"),
    offloads_parameters_at=3,  # zero/config.py: offload_param is valid with stage 3 alone
    runner=Runner.OWN_ENGINE,
    searched=2,
    evidence={
        "activations": Cited(TRANSFORMERS, "modeling files, operation by operation"),
        "parameters": _deepspeed_source("zero/stage_1_and_2.py", 439),
        "parameters at zero 3": _deepspeed_source("zero/partition_parameters.py", 1662),
        "master_weights": _deepspeed_source("zero/stage_1_and_2.py", 492),
        "gradients": _deepspeed_source("zero/stage_1_and_2.py", 1650),
        "gradients at zero 3": _deepspeed_source("zero/stage3.py", 740),
        "optimizer_states": FromCode(
            "deepspeedai/DeepSpeed", COMMIT, "deepspeed/ops/adam/fused_adam.py", 155
        ),
        "communication": _deepspeed_source("zero/stage_1_and_2.py", 2493),
        "communication at zero 3": _deepspeed_source("zero/stage3.py", 730),
        "unsharded_parameters": _deepspeed_source("zero/partitioned_param_coordinator.py", 453),
        "context_parallel": _deepspeed_source("sequence_parallel/ulysses_sp.py", 57),
        "shards over ranks that share a sequence": _deepspeed_source("engine.py", 2351),
        "step": _deepspeed_source("zero/stage_1_and_2.py", 2361),
        "offload": _deepspeed_source("zero/offload_config.py", 75),
        "defaults": _deepspeed_source("zero/config.py", 113),
    },
)
