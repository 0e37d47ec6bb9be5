"""fully_shard on every decoder layer and on the root, as accelerate and torchtitan apply it."""

from __future__ import annotations

from memsheet.engines.shared.whole_tensors import SHARDED_TENSORS
from memsheet.plan.engine import Engine, Runner, Sharding
from memsheet.plan.plan import ContextParallel, Implementation, OptimizerName, Schedule
from memsheet.references import TORCH_FSDP2, TORCH_OPTIM, TRANSFORMERS
from memsheet.sheet import Cited

ENGINE = Engine(
    name="fsdp2",
    tested="torch 2.13.0",
    tasks=("train",),
    axes=("dp_replicate", "dp_shard", "cp", "tp"),
    real_axes=("pp", "vpp", "ep"),
    torch_pipelining=True,
    real_schedules=(Schedule.GPIPE, Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
    context_parallel=(ContextParallel.ALL_GATHER,),  # accelerate 1.15, utils/dataclasses.py:2245
    zero=(2, 3),
    default_zero=3,
    models=frozenset({"gradient_sync"}),
    sharding=Sharding.PER_PARAMETER_SHARDS,
    default_precision="fsdp2-mixed",
    precisions=("fp32", "fsdp2-mixed", "bf16-pure"),
    takes_remainder=True,
    replays=True,
    autocast=False,
    trains_towers=True,
    optimizers=(
        OptimizerName.ADAMW,
        OptimizerName.ADAMW_8BIT,
        OptimizerName.ADAMW_4BIT,
        OptimizerName.SGD,
        OptimizerName.SGD_MOMENTUM,
        OptimizerName.LION,
    ),
    implementations=SHARDED_TENSORS,
    default_implementation=Implementation.FUSED,
    offload=("optimizer", "parameters", "activations"),
    runner=Runner.SHARDED_UNITS,
    searched=1,
    whole_copies_by="transformers",
    evidence={
        "activations": Cited(TRANSFORMERS, "modeling files, operation by operation"),
        "sharding": Cited(TORCH_FSDP2, "_fsdp_param.py: every rank keeps the padded dim-0 chunk"),
        "optimizer": Cited(TORCH_OPTIM),
    },
)
