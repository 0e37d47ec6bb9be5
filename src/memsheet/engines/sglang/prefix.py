"""What latent attention of SGLang makes of a prompt's earlier tokens: keys and values of all of a rank's
heads, for so many tokens at once.
"""

from __future__ import annotations

from memsheet.arith import Count, ceil_div, given_or, maximum, minimum
from memsheet.engines.sglang.facts import GROUPS_SINCE
from memsheet.engines.sglang.releases import Release
from memsheet.formulas.serving.widest_layer import block_bytes
from memsheet.frozen import replace
from memsheet.plan.model import LatentAttention, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import SGLANG, formula
from memsheet.sheet import NOTHING, Bytes

CHUNK_TOKENS = 128 * 1024
"""Of all prompts of a batch (SGLANG_MAX_KV_CHUNK_CAPACITY, v0.5.23 environ.py:724; v0.4.6.post1
model_executor/forward_batch_info.py:465).
"""


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 models/deepseek_common/attention_forward_methods/forward_mha.py:540: keys without "
        "position and values in one, and keys once more with it"
    ),
)
def prefix_bytes(mixer: LatentAttention, plan: Plan, tokens: Count) -> Count:
    """Bytes of a layer's keys and values for so many earlier tokens, on one rank."""
    width = 2 * mixer.qk_nope_head_dim + mixer.v_head_dim + mixer.qk_rope_head_dim
    return plan.precision.compute.nbytes(tokens * ceil_div(mixer.heads, plan.mesh.tp) * width)


@formula(
    cites=SGLANG,
    at=(
        "v0.5.23 model_executor/forward_batch_deepseek_mha_mixin.py:203: a batch's earlier tokens in "
        "chunks of so many"
    ),
)
def prefixed_layer(part: ModelSpec, plan: Plan, release: Release) -> Bytes:
    """A layer of latent attention over a chunk of a prompt. Low: prompts that nobody read before, or kernels
    that read the latents; value: one prompt's earlier tokens; high: as many of all prompts of a batch as are
    unpacked at once.
    """
    if release.since < GROUPS_SINCE or plan.serving.max_batched_tokens is None:
        return NOTHING
    length = minimum(
        CHUNK_TOKENS, maximum(0, given_or(plan.serving.max_model_len, 0) - plan.serving.max_batched_tokens)
    )
    found = NOTHING
    for block in dict.fromkeys(part.blocks()):
        for mixer in (mixer for mixer in block.mixers if isinstance(mixer, LatentAttention)):
            beside = max(
                block_bytes(replace(block, feed_forward=None), plan, plan.serving.max_batched_tokens),
                key=lambda size: size.value,
            )
            one, most = prefix_bytes(mixer, plan, length), prefix_bytes(mixer, plan, CHUNK_TOKENS)
            size = Bytes(0, one + beside.value, most + beside.high)
            found = Bytes(0, maximum(found.value, size.value), maximum(found.high, size.high))
    return found
