"""FullyShardedDataParallel around every decoder layer and the rest of the model, as accelerate wraps
transformers' models.
"""

from __future__ import annotations

from memsheet.plan.engine import Engine, Sharding
from memsheet.plan.plan import Implementation, OptimizerName
from memsheet.references import TORCH_FSDP1, TORCH_OPTIM, TRANSFORMERS
from memsheet.sheet import Cited

ENGINE = Engine(
    name="fsdp1",
    tested="torch 2.13.0",
    tasks=("train",),
    axes=("dp_replicate", "dp_shard"),
    zero=(3,),
    default_zero=3,
    replays=True,
    sharding=Sharding.FLAT_SHARDS,
    default_precision="fsdp2-mixed",
    precisions=("fp32", "fsdp2-mixed", "bf16-pure"),
    autocast=False,
    models=frozenset({"gradient_sync", "backward_prefetch", "forward_prefetch", "limit_all_gathers"}),
    optimizers=(OptimizerName.ADAMW, OptimizerName.SGD, OptimizerName.SGD_MOMENTUM),
    default_implementation=Implementation.FUSED,
    offload=("optimizer", "parameters"),
    evidence={
        "activations": Cited(TRANSFORMERS, "modeling files, operation by operation"),
        "sharding": Cited(
            TORCH_FSDP1, "_flat_param.py: one flat parameter a unit, padded to the number of ranks"
        ),
        "unsharded_parameters": Cited(
            TORCH_FSDP1, "_runtime_utils.py: _pre_forward_unshard, _pre_backward_hook, _prefetch_handle"
        ),
        "communication": Cited(TORCH_FSDP1, "_runtime_utils.py: _reduce_grad"),
        "optimizer": Cited(TORCH_OPTIM),
    },
)
