"""AutoAWQ's fused models on one GPU: Llama and Mistral in four bits, with a cache that is there before the first token.

Read at 8110e028 (v0.1.6, November 2023), whose example that measures memory is examples/benchmark.py.
"""

from __future__ import annotations

from memsheet.references import AUTOAWQ
from memsheet.sheet import Cited
from memsheet.spec.engine import Engine, Sharding
from memsheet.spec.plan import AttentionKind, Implementation, OptimizerName

ENGINE = Engine(
    name="autoawq",
    tested="0.1.6 (8110e028)",
    tasks=("infer",),
    server="autoawq",
    axes=(),
    zero=(0,),
    default_zero=0,
    sharding=Sharding.REPLICATED,
    default_precision="bf16-pure",
    precisions=("bf16-pure",),
    autocast=False,
    attention=(AttentionKind.EAGER,),
    optimizers=(OptimizerName.ADAMW,),
    default_implementation=Implementation.FUSED,
    adapters=(),
    evidence={"cache": Cited(AUTOAWQ, "fused/cache.py WindowedCache"), "attention": Cited(AUTOAWQ, "fused/attn.py QuantAttentionFused")},
)
