"""litgpt's finetuning scripts through Lightning Fabric in bf16-true: on one GPU, with four-bit bases by
bitsandbytes; on several under FullyShardedDataParallel, or fully_shard where LoRA trains.

Read at 0f021f3a (18 January 2024), when its table of resources was measured anew on the adapters' scripts of
that commit; the table's heading kept the older commit, 8641822. Between the two RMSNorm began to raise its
input to fp32 (6178c7c).
"""

from __future__ import annotations

from memsheet.engines.shared.whole_tensors import SHARDED_TENSORS, WHOLE_TENSORS
from memsheet.frozen import replace
from memsheet.plan.engine import Engine, FlatWrapping, Sharding, UnitWrapping
from memsheet.plan.plan import (
    AdapterKind,
    AttentionKind,
    GradientSync,
    Implementation,
    Loss,
    OptimizerName,
    RecomputeMode,
)
from memsheet.plan.serving_facts import ServingFacts
from memsheet.references import LITGPT, TORCH_FSDP1, TORCH_FSDP2, TORCH_OPTIM
from memsheet.sheet import Cited, Evidence, FromCode

COMMIT = "0f021f3ad8cd8d6fe30b0ef721a7a0e2dac15898"
FABRIC = "6dfa5cca9de5c28548eef5582a53c483b0eda66a"
"""Of Lightning-AI/pytorch-lightning, which that commit pins (requirements.txt)."""


def _litgpt_source(file: str, line: int) -> Evidence:
    return FromCode("Lightning-AI/litgpt", COMMIT, file, line)


_SINGLE = Engine(
    name="litgpt",
    tested="0f021f3 (torch 2.2, bitsandbytes 0.41.0)",
    tasks=("train", "infer"),
    server="litgpt",
    # every linear layer is replaced (src/lightning/fabric/plugins/precision/bitsandbytes.py:335)
    serving=ServingFacts(quantizes_head=True),
    axes=(),
    zero=(0,),
    default_zero=0,
    replays=True,
    sharding=Sharding.REPLICATED,
    layers="litgpt",
    default_precision="bf16-pure",
    precisions=("bf16-pure",),
    autocast=False,
    eight_bit_embeddings=True,
    attention=(AttentionKind.SDPA, AttentionKind.FLASH),
    losses=(Loss.CHUNKED, Loss.PLAIN),
    recompute=(RecomputeMode.NONE,),
    optimizers=(OptimizerName.ADAMW, OptimizerName.PAGED_ADAMW),
    implementations=WHOLE_TENSORS,
    default_implementation=Implementation.FOREACH,
    adapters=(AdapterKind.LORA, AdapterKind.LLAMA_ADAPTER, AdapterKind.LLAMA_ADAPTER_V2),
    usual_targets=("q_proj", "v_proj"),  # finetune/lora.py:46-52
    targets=frozenset({"q_proj", "k_proj", "v_proj", "o_proj"}),
    adapter_dtype="bf16",
    evidence={
        "activations": Cited(LITGPT, "operation by operation"),
        "linear layers in four bits": FromCode(
            "Lightning-AI/pytorch-lightning",
            FABRIC,
            "src/lightning/fabric/plugins/precision/bitsandbytes.py",
            335,
        ),
        "logits in fp32": FromCode(
            "Lightning-AI/pytorch-lightning", FABRIC, "src/lightning/fabric/wrappers.py", 121
        ),
        "trained tensors": _litgpt_source("lit_gpt/adapter_v2.py", 34),
        "chunks": _litgpt_source("finetune/lora.py", 201),
        "optimizer": Cited(TORCH_OPTIM),
    },
)

# Fabric's strategies: units are blocks (finetune/full.py:63-70), every rank's loop waits for a step's last
# micro-batch (:154, fabric/strategies/fsdp.py, no_backward_sync), and blocks are recomputed (:66)
_FLAT = replace(
    _SINGLE,
    axes=("dp_shard",),  # replicas of shards are its pretraining's alone, which compiles its layers
    zero=(3,),
    default_zero=3,
    sharding=Sharding.FLAT_SHARDS,
    flat_wrapping=FlatWrapping(loss_outside=True),  # finetune/full.py:155-158
    models=frozenset({"gradient_sync"}),
    gradient_sync=GradientSync.LAST,
    recompute=(RecomputeMode.NONE, RecomputeMode.FULL),
    usual_recompute=RecomputeMode.FULL,
    optimizers=(OptimizerName.ADAMW,),
    implementations={},
    evidence={
        **_SINGLE.evidence,
        "strategy": _litgpt_source("finetune/full.py", 64),
        "precision": FromCode(
            "Lightning-AI/pytorch-lightning", FABRIC, "src/lightning/fabric/plugins/precision/fsdp.py", 74
        ),
        "sharding": Cited(
            TORCH_FSDP1, "_flat_param.py: one flat parameter a unit, padded to the number of ranks"
        ),
        "communication": Cited(TORCH_FSDP1, "_runtime_utils.py: _reduce_grad"),
    },
)

# LoRA on several GPUs: before v0.5.11 a part of every flat parameter was trained
_ADAPTED = replace(
    _FLAT,
    tested="0.5.11 (torch 2.7)",
    replays=True,
    sharding=Sharding.PER_PARAMETER_SHARDS,
    roots_frozen_ends=True,  # finetune/lora.py:528-536: blocks, then the model
    unit_wrapping=lambda _: UnitWrapping(loss_outside=True),
    adapters=(AdapterKind.LORA,),
    implementations=SHARDED_TENSORS,
    evidence={
        **_SINGLE.evidence,
        "strategy": FromCode("Lightning-AI/litgpt", "v0.5.11", "litgpt/finetune/lora.py", 518),
        "sharding": Cited(TORCH_FSDP2, "_fsdp_param.py: every rank keeps the padded dim-0 chunk"),
    },
)

ENGINE = replace(_FLAT, alone=_SINGLE, adapted=_ADAPTED)
