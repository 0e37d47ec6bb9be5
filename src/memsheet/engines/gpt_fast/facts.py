"""gpt-fast: a Llama written for one compiled decoding step, with a cache of the whole length and weight-only
int8 or int4.

Read at meta-pytorch/gpt-fast 6ecad9b5 (August 2025); what is accounted has been the same since its first
release.
"""

from __future__ import annotations

from memsheet.plan.engine import server_engine
from memsheet.plan.model import Role
from memsheet.plan.plan import AttentionKind
from memsheet.plan.server_limits import ServerLimits
from memsheet.plan.serving_facts import ServingFacts
from memsheet.references import GPT_FAST
from memsheet.sheet import Cited

ENGINE = server_engine(
    name="gpt-fast",
    tested="6ecad9b5 (torch 2.8)",
    server="gpt_fast",
    serving_axes=("tp",),
    models=frozenset({"compile", "cuda_graphs", "serving.cuda_graphs"}),
    attention=(AttentionKind.SDPA,),
    whole_roles=frozenset({Role.EMBEDDING, Role.HEAD}),  # tp.py, apply_tp: layers alone are divided
    adapters=(),
    limits=ServerLimits(own_padding=True),  # a checkpoint's rows are what they are
    serving=ServingFacts(
        joins_projections=True,  # model.py wqkv
        quantizes_head=True,  # quantize.py replaces every linear layer
        compiles_sampler=True,  # generate.py, decode_one_token
        captures_compiled=True,  # generate.py, mode="reduce-overhead"
        own_all_reduce=True,  # tp.py over torch's symmetric memory
    ),
    evidence={"weights": Cited(GPT_FAST, "quantize.py"), "cache": Cited(GPT_FAST, "model.py KVCache")},
)
