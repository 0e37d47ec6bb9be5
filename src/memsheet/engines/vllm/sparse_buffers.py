"""What vLLM makes beside the weights of models whose latent attention picks the tokens that it attends to
(DeepSeek-V3.2, GLM-5).
"""

from __future__ import annotations

from collections.abc import Sequence

from memsheet.arith import Count
from memsheet.plan.dtypes import INT32
from memsheet.plan.model import LatentAttention, ModelSpec
from memsheet.plan.plan import Plan
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import Bytes, Component, FromCode, Instant, Item

CODE = ("vllm-project/vllm", "v0.33.0", "vllm/model_executor/models/deepseek_v2.py")


def index_items(
    part: ModelSpec, plan: Plan, loaded: Sequence[Item], instants: Sequence[Instant]
) -> list[Item]:
    """The indices of what a batch attends to, and the indexer's own table of rotary positions. Low: an
    indexer that turns as attention does (``indexer_rope_interleave``, and earlier releases) has its table.
    """
    picking = [m for m in part.mixers() if isinstance(m, LatentAttention) and m.index_tokens]
    if not picking:
        return []
    picked = picked_bytes(plan, max(mixer.index_tokens for mixer in picking))
    table = max((item.largest.high for item in loaded if item.path == "rotary_emb"), default=0)
    made = (
        ("topk_indices", Bytes.exact(picked), 1442),
        ("rotary_emb/indexer", Bytes(0, table, table), 1173),
    )
    return [
        Item(Component.BUFFERS, path, dict.fromkeys(instants, size), FromCode(*CODE, line))
        for path, size, line in made
        if size.high
    ]


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.33.0 model_executor/models/deepseek_v2.py:1442 topk_indices_buffer: int32, a row for each token "
        "of a batch, once for all layers"
    ),
)
def picked_bytes(plan: Plan, index_tokens: Count) -> Count:
    """Bytes of the indices of ``index_tokens`` tokens that each token of the largest batch attends to."""
    batch = plan.serving.max_batched_tokens
    return 0 if batch is None else INT32.nbytes(batch * index_tokens)
