"""torchtune's recipes: one device without sharding, or fully_shard on every layer, without a mixed-precision
policy.
"""

from __future__ import annotations

from memsheet.engines.shared.whole_tensors import SHARDED_TENSORS, WHOLE_TENSORS
from memsheet.frozen import replace
from memsheet.plan.engine import Engine, Sharding, UnitWrapping
from memsheet.plan.plan import AttentionKind, GradientSync, Implementation, Loss, OptimizerName
from memsheet.references import TORCH_FSDP2, TORCH_OPTIM, TORCHTUNE_MODEL
from memsheet.sheet import Cited, FromCode

TAG = "v0.4.0"


def _torchtune_source(file: str, line: int) -> FromCode:
    return FromCode("pytorch/torchtune", TAG, file, line)


_DISTRIBUTED = Engine(
    name="torchtune",
    tested="0.4.0 (torch 2.5.1)",
    tasks=("train",),
    axes=("dp_shard",),
    zero=(3,),
    default_zero=3,
    replays=True,
    sharding=Sharding.PER_PARAMETER_SHARDS,
    layers="torchtune",
    models=frozenset({"compile"}),
    default_precision="bf16-pure",
    precisions=("bf16-pure", "fp32"),
    autocast=False,
    eight_bit_embeddings=True,
    divides_scales=True,  # torchao 0.7 dtypes/nf4tensor.py:189-222, nf4_split
    streams_offload=True,  # torchtune/training/_activation_offloading.py, use_streams
    # recipes/configs/llama3_1/70B_lora.yaml names no custom_sharded_layers, 70B_full.yaml does
    roots_frozen_ends=True,
    unit_wrapping=lambda _: UnitWrapping(loss_outside=True),  # recipes/full_finetune_distributed.py:683-700
    gradient_sync=GradientSync.EVERY,  # bd2a0fc7c recipes/full_finetune_distributed.py:1024
    attention=(AttentionKind.SDPA,),
    losses=(Loss.PLAIN, Loss.CHUNKED),
    optimizers=(OptimizerName.ADAMW, OptimizerName.ADAMW_8BIT, OptimizerName.SGD, OptimizerName.SGD_MOMENTUM),
    implementations=SHARDED_TENSORS,
    default_implementation=Implementation.FUSED,
    # the whole model is built in the recipe's dtype (recipes/lora_finetune_single_device.py:400)
    adapter_dtype="bf16",
    offload=("optimizer", "parameters", "activations"),
    evidence={
        "activations": Cited(TORCHTUNE_MODEL, "modules, operation by operation"),
        "saved_activations": _torchtune_source("torchtune/modules/transformer.py", 75),
        "buffers": _torchtune_source("torchtune/modules/position_embeddings.py", 50),
        "sharding": Cited(TORCH_FSDP2, "_fsdp_param.py: every rank keeps the padded dim-0 chunk"),
        "groups": _torchtune_source("torchtune/training/_distributed.py", 612),
        "offload": _torchtune_source("torchtune/training/_distributed.py", 641),
        "optimizer": Cited(TORCH_OPTIM),
    },
)

_SINGLE = replace(
    _DISTRIBUTED,
    axes=(),
    zero=(0,),
    default_zero=0,
    replays=True,
    sharding=Sharding.REPLICATED,
    implementations=WHOLE_TENSORS,
    steps_in_backward=True,  # training/memory.py, register_optim_in_bwd_hooks
    optimizers=(*_DISTRIBUTED.optimizers, OptimizerName.PAGED_ADAMW, OptimizerName.PAGED_ADAMW_8BIT),
    offload=("optimizer", "activations"),
)

ENGINE = replace(_DISTRIBUTED, alone=_SINGLE)
