"""AutoAWQ's fused models on one GPU: Llama and Mistral in four bits, with a cache that is there before the
first token.

Read at 8110e028 (v0.1.6, November 2023), whose example that measures memory is examples/benchmark.py.
"""

from __future__ import annotations

from memsheet.plan.engine import server_engine
from memsheet.plan.plan import AttentionKind
from memsheet.plan.server_limits import ServerLimits
from memsheet.plan.serving_facts import ServingFacts
from memsheet.references import AUTOAWQ
from memsheet.sheet import Cited

ENGINE = server_engine(
    name="autoawq",
    tested="0.1.6 (8110e028)",
    server="autoawq",
    attention=(AttentionKind.EAGER,),
    adapters=(),
    limits=ServerLimits(library_modules=True, own_padding=True, own_compute=lambda _: True),
    serving=ServingFacts(joins_projections=True),  # fused/attn.py QuantAttentionFused
    evidence={
        "cache": Cited(AUTOAWQ, "fused/cache.py WindowedCache"),
        "attention": Cited(AUTOAWQ, "fused/attn.py QuantAttentionFused"),
    },
)
