"""Megatron-Core over TransformerEngine: fused modules, gradients added to one fp32 buffer, optimizer states
sharded over data-parallel ranks.
"""

from __future__ import annotations

from memsheet.plan.engine import Engine, LayerKernels, PlanArrays, Sharding
from memsheet.plan.plan import (
    AttentionKind,
    ContextParallel,
    Implementation,
    Loss,
    OptimizerName,
    RecomputeMode,
    Schedule,
)
from memsheet.references import MEGATRON
from memsheet.sheet import Cited

ENGINE = Engine(
    name="megatron",
    tested="core 0.14 (23e00ed), TransformerEngine 2.11",
    tasks=("train",),
    axes=("dp_replicate", "dp_shard", "cp", "tp", "pp", "vpp", "ep", "etp"),
    zero=(0, 1),
    default_zero=1,
    replays=True,
    sharding=Sharding.DISTRIBUTED_OPTIMIZER,
    layers="megatron",
    layer_kernels=LayerKernels(
        fused=True,
        attention="cudnn",  # TransformerEngine takes cuDNN's on Hopper and later
        adds_in_products=True,
        recomputes_whole=True,
        balances_ranks=True,
        attends_to_gathered=True,
        hides_tensor_exchanges=True,  # core/tensor_parallel/layers.py
    ),
    models=frozenset(
        {
            "sequence_parallel",
            "moe.dispatch",
            "moe.capacity_factor",
            "moe.pad_to_capacity",
            "moe.balanced",
            "moe.grouped_gemm",
            "moe.permute_fusion",
            "fp8.recipe",
            "fp8.param_storage",
            "fp8.all_gather",
            "cuda_graphs",
        }
    ),
    default_precision="megatron-mixed",
    precisions=("megatron-mixed", "bf16-master"),
    autocast=False,
    attention=(AttentionKind.FLASH, AttentionKind.CUDNN, AttentionKind.EAGER),
    context_parallel=(ContextParallel.RING, ContextParallel.ALL_GATHER, ContextParallel.ALL_TO_ALL),
    losses=(Loss.FUSED, Loss.PLAIN, Loss.VOCAB_PARALLEL),
    recompute=(RecomputeMode.NONE, RecomputeMode.SELECTIVE, RecomputeMode.FULL),
    schedules=(Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
    optimizers=(OptimizerName.ADAMW, OptimizerName.MUON),
    default_implementation=Implementation.DISTRIBUTED,
    implementations={
        OptimizerName.ADAMW: (
            Implementation.DISTRIBUTED,
            Implementation.APEX,
            Implementation.FUSED,
            Implementation.FOREACH,
            Implementation.LOOP,
        ),
        OptimizerName.MUON: (Implementation.DISTRIBUTED,),
    },
    own_kernel_steps=True,  # FusedAdam
    copies_adapters=True,
    # megatron/training/arguments.py has no flag of adapters; NVIDIA-NeMo/Megatron-Bridge peft/lora.py
    adapters_apart="Megatron-LM has no adapters of its own; Megatron-Bridge and Megatron-SWIFT add them",
    vocab_multiple=128,
    scatters_for_experts=True,  # moe/moe_layer.py:315-320 raises otherwise
    selective=("core_attn",),
    workspaces=("transformer_engine",),
    searched=0,
    arrays=PlanArrays(
        pipelines=True,
        adds_to_buffer=True,  # distributed/param_and_grad_buffer.py: main_grad
    ),
    never_offloads={  # training/arguments.py of 23e00ed; d98e8a6 has both
        "activations": "is no option of pretrain_gpt.py in core 0.14, which is modelled: "
        "--cpu-offloading-num-layers and "
        "--fine-grained-activation-offloading came later",
    },
    evidence={
        "activations": Cited(MEGATRON, "transformer/attention.py, mlp.py, moe; TransformerEngine's modules"),
        "context_parallel": Cited(
            MEGATRON, "extensions/transformer_engine.py:810: point to point unless given"
        ),
        "parameters": Cited(MEGATRON, "distributed/param_and_grad_buffer.py"),
        "optimizer_states": Cited(MEGATRON, "optimizer/distrib_optimizer.py"),
        "cuda_graphs": Cited(
            MEGATRON, "d98e8a6 transformer/cuda_graphs.py, TransformerEngine pytorch/graph.py"
        ),
    },
)
