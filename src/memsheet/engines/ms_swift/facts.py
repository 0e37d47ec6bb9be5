"""ms-swift's fine-tuning: the Trainer of transformers over a model in bf16, with peft's adapters (v1.5.0,
January 2024).
"""

from __future__ import annotations

from memsheet.engines.shared.whole_tensors import WHOLE_TENSORS
from memsheet.plan.engine import Engine, Sharding
from memsheet.plan.plan import Implementation, Loss, OptimizerName, RecomputeMode
from memsheet.references import TORCH_DDP, TORCH_OPTIM, TRANSFORMERS
from memsheet.sheet import Cited, FromCode

PROJECT, VERSION = "modelscope/ms-swift", "v1.5.0"

ENGINE = Engine(
    name="ms-swift",
    tested="1.5.0 (transformers 4.36, torch 2.1.1)",
    tasks=("train",),
    axes=("dp_replicate",),
    zero=(0,),
    default_zero=0,
    sharding=Sharding.REPLICATED,
    layers="ms_swift",
    # llm/sft.py loads the model in args.torch_dtype, bf16 unless told otherwise
    default_precision="bf16-pure",
    precisions=("fp32", "bf16-autocast", "fp16-autocast", "bf16-pure"),
    models=frozenset({"adapter.full_modules"}),
    takes_remainder=True,
    varies=True,  # swift/llm/utils/utils.py, data_collate_fn
    replays=True,
    autocast=True,
    losses=(Loss.PLAIN,),
    recompute=(RecomputeMode.NONE, RecomputeMode.FULL),
    optimizers=(OptimizerName.ADAMW, OptimizerName.SGD, OptimizerName.SGD_MOMENTUM, OptimizerName.ADAFACTOR),
    implementations=WHOLE_TENSORS,
    default_implementation=Implementation.FOREACH,  # adamw_torch (llm/utils/argument.py:106)
    adapter_dtype="fp32",
    evidence={
        "activations": Cited(
            TRANSFORMERS, "modeling files, operation by operation; the loss as it was at 4.36"
        ),
        "optimizer": Cited(TORCH_OPTIM),
        "buckets": Cited(TORCH_DDP, "one bucket view a gradient"),
        "adapters": FromCode(PROJECT, VERSION, "swift/llm/utils/argument.py", 95),
        "reserved": FromCode(PROJECT, VERSION, "swift/trainers/trainers.py", 47),
    },
)
