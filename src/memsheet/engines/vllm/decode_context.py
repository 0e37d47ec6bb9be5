"""What decode context parallelism gathers beside a layer: ranks of tensor parallelism hold a part of a
sequence's tokens each (vllm-project/vllm v0.33.0, paths within vllm/).
"""

from __future__ import annotations

from functools import reduce

from memsheet.arith import Count, ceil_div, given_or, maximum, minimum
from memsheet.engines.vllm.options import vllm_options
from memsheet.formulas.serving.drafts import verified_tokens
from memsheet.plan.model import Attention, LatentAttention, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import NOTHING, Bytes

GATHERED, MOST_GATHERED = 2, 3
"""Tensors of all the heads that share a sequence: queries and what attention makes of them, and at the most a
corrected copy of that (v1/attention/backends/flash_attn.py:1516, v1/attention/ops/dcp.py).
"""


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 v1/attention/backends/flash_attn.py:1516, 1533: queries and results of the heads of all "
        "ranks that share a sequence; model_executor/layers/attention/mla_attention.py:1129 of who decodes"
    ),
)
def gathered_bytes(part: ModelSpec, plan: Plan) -> Bytes:
    """Bytes of queries and results that are gathered beside a layer, on a rank: nothing at the least, as they
    may lie where a wider operation was.
    """
    ranks = vllm_options(plan).dcp
    if ranks == 1:
        return NOTHING
    batch = given_or(plan.serving.max_batched_tokens, 0)
    decoding = minimum(batch, given_or(plan.serving.max_sequences, 1) * verified_tokens(plan))
    sizes = [
        (decoding if isinstance(mixer, LatentAttention) else batch)
        * ceil_div(mixer.heads, plan.mesh.tp)
        * ranks
        * (
            mixer.kv_lora_rank + mixer.qk_rope_head_dim
            if isinstance(mixer, LatentAttention)
            else mixer.head_dim
        )
        for mixer in part.mixers()
        if isinstance(mixer, Attention | LatentAttention)
    ]
    one: Count = plan.precision.compute.nbytes(reduce(maximum, sizes, 0))
    return Bytes(0, GATHERED * one, MOST_GATHERED * one)
