"""FullyShardedDataParallel around every decoder layer and the rest of the model, as accelerate wraps
transformers' models.
"""

from __future__ import annotations

from dataclasses import dataclass

from memsheet.plan.engine import Engine, Sharding
from memsheet.plan.plan import Implementation, OptimizerName
from memsheet.references import TORCH_FSDP1, TORCH_OPTIM, TRANSFORMERS
from memsheet.sheet import Cited


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrapping:
    """``prefetches``: the unit before is gathered while one runs backward (BACKWARD_PRE), not after it
    (BACKWARD_POST). ``keeps_outputs``: the trainer names what the model returned until its next forward is
    over. ``table_apart``: a tied table is a unit of its own, gathered for embeddings, then for the head and
    from there through backward.
    """

    prefetches: bool = True  # FullyShardedDataParallel's default (fully_sharded_data_parallel.py:404)
    keeps_outputs: bool = False
    table_apart: bool = False


WRAPPINGS = {
    "fsdp1": Wrapping(),
    "llm-foundry": Wrapping(
        prefetches=False,  # mosaicml/composer v0.22.0 composer/trainer/dist_strategy.py:152
        table_apart=True,  # mosaicml/llm-foundry 5f39606 llmfoundry/models/mpt/modeling_mpt.py:714-718
        keeps_outputs=True,  # state.outputs, for metrics (composer/trainer/trainer.py:2815, 2562)
    ),
}
"""How each engine wraps; what it does not say is FullyShardedDataParallel's default."""

ENGINE = Engine(
    name="fsdp1",
    tested="torch 2.13.0",
    tasks=("train",),
    axes=("dp_replicate", "dp_shard"),
    zero=(3,),
    default_zero=3,
    sharding=Sharding.FSDP1,
    default_precision="fsdp2-mixed",
    precisions=("fp32", "fsdp2-mixed", "bf16-pure"),
    autocast=False,
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
