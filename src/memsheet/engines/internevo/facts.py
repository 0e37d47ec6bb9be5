"""InternEvo's hybrid ZeRO optimizer around its own InternLM (read at one commit): whole bf16 parameters and
gradients on every rank.
"""

from __future__ import annotations

from memsheet.plan.engine import Engine, LayerKernels, PlanArrays, Sharding
from memsheet.plan.plan import AttentionKind, Implementation, Loss, OptimizerName
from memsheet.references import INTERNEVO, TORCH_OPTIM
from memsheet.sheet import Cited, FromCode

COMMIT = "1738bee0028444d7343bd9e9df8e13aed3b215a2"


def _internevo_source(file: str, line: int) -> FromCode:
    return FromCode("InternLM/InternEvo", COMMIT, f"internlm/{file}", line)


ENGINE = Engine(
    name="internevo",
    tested="2023-12 (flash-attn 1.0.5, apex)",
    tasks=("train",),
    axes=("dp_replicate", "dp_shard"),
    zero=(1,),
    default_zero=1,
    sharding=Sharding.WHOLE_PARAMETER_OWNERS,
    layers="internevo",
    layer_kernels=LayerKernels(fused=True, recomputes_whole=True),
    default_precision="bf16-master",
    precisions=("bf16-master",),
    autocast=False,
    attention=(AttentionKind.FLASH,),
    losses=(Loss.PLAIN,),  # flash-attn's, in place (model/loss.py:24)
    optimizers=(OptimizerName.ADAMW,),
    # torch.optim.AdamW as it comes (train/training_internlm.py:176)
    default_implementation=Implementation.FOREACH,
    arrays=PlanArrays(one_by_one=True),
    evidence={
        "activations": Cited(INTERNEVO, "model, operation by operation"),
        "saved_activations": _internevo_source("model/modeling_internlm.py", 205),
        "master_weights": _internevo_source("solver/optimizer/hybrid_zero_optim.py", 178),
        "optimizer_states": _internevo_source("solver/optimizer/utils.py", 733),
        "gradients": _internevo_source("solver/optimizer/hybrid_zero_optim.py", 340),
        "communication": _internevo_source("solver/optimizer/hybrid_zero_optim.py", 432),
        "optimizer": Cited(TORCH_OPTIM),
    },
)
