"""llm-foundry's MPT, sharded by Composer with FullyShardedDataParallel (mosaicml/llm-foundry 5f39606,
mosaicml 0.22.0).
"""

from __future__ import annotations

from memsheet.plan.engine import Engine, FlatWrapping, LayerKernels, Sharding
from memsheet.plan.plan import (
    AttentionKind,
    BackwardPrefetch,
    GradientSync,
    Implementation,
    Loss,
    OptimizerName,
)
from memsheet.references import LLM_FOUNDRY, TORCH_FSDP1, TORCH_OPTIM
from memsheet.sheet import Cited, FromCode

COMMIT = "5f39606affae1ff450bb49e146cdd439462a7249"

ENGINE = Engine(
    name="llm-foundry",
    tested="2024-05 (torch 2.3, flash-attn 2.5.8)",
    tasks=("train",),
    axes=("dp_replicate", "dp_shard"),
    zero=(3,),
    default_zero=3,
    replays=True,
    sharding=Sharding.FLAT_SHARDS,
    layers="llm_foundry",
    layer_kernels=LayerKernels(fused=True),
    flat_wrapping=FlatWrapping(
        backward_prefetch=BackwardPrefetch.POST,  # mosaicml/composer v0.22.0 trainer/dist_strategy.py:152
        table_apart=True,  # mosaicml/llm-foundry 5f39606 llmfoundry/models/mpt/modeling_mpt.py:714-718
        keeps_outputs=True,  # state.outputs, for metrics (composer/trainer/trainer.py:2815, 2562)
    ),
    gradient_sync=GradientSync.EVERY,  # composer 029483a trainer/dist_strategy.py:64: DDP alone waits
    default_precision="fsdp2-mixed",
    precisions=("fp32", "fsdp2-mixed"),
    autocast=False,  # units are gathered in the low dtype, so that autocast finds nothing to cast
    attention=(AttentionKind.FLASH,),
    losses=(Loss.PLAIN, Loss.FUSED),
    optimizers=(OptimizerName.ADAMW,),
    default_implementation=Implementation.LOOP,  # composer/optim/decoupled_weight_decay.py, adamw
    evidence={
        "activations": Cited(LLM_FOUNDRY, "layers, operation by operation"),
        "saved_activations": FromCode(
            "mosaicml/llm-foundry", COMMIT, "llmfoundry/models/layers/blocks.py", 142
        ),
        "sharding": Cited(
            TORCH_FSDP1, "_flat_param.py: one flat parameter a unit, padded to the number of ranks"
        ),
        "precision": FromCode("mosaicml/composer", "v0.22.0", "composer/trainer/mosaic_fsdp_utils.py", 106),
        "outputs": FromCode("mosaicml/composer", "v0.22.0", "composer/trainer/trainer.py", 2815),
        "optimizer": Cited(TORCH_OPTIM),
    },
)
