"""A pool of blocks that a command sizes itself, whatever the fraction of the card leaves."""

from __future__ import annotations

from memsheet.engines.vllm.options import vllm_options
from memsheet.engines.vllm.pages import Layout
from memsheet.engines.vllm.releases import Release
from memsheet.plan.plan import Plan
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import Bytes

BYTES_FLAG, BLOCKS_FLAG = "--kv-cache-memory-bytes", "--num-gpu-blocks-override"
CHECKED_SINCE = (0, 20)
"""From when on a given number of blocks is what has to hold one sequence (v0.20.2
v1/core/kv_cache_utils.py, v0.33.0 v1/core/kv_cache_planning.py:1515); before, what the fraction leaves has
to, and the number is taken afterwards (v0.11.0 v1/core/kv_cache_utils.py:806, v0.18.0).
"""
KEPT_BLOCK_SINCE = (0, 33)
"""From when on the block that stands for none is not looked for in (v0.33.0
v1/core/kv_cache_planning.py:1533; v0.27.0 v1/core/kv_cache_utils.py has no such thing).
"""


def pool_flag(plan: Plan) -> str:
    """The flag that sizes the pool; empty where the fraction does. Blocks go before bytes."""
    own = vllm_options(plan)
    return BLOCKS_FLAG if own.kv_blocks else BYTES_FLAG if own.kv_cache_bytes else ""


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 v1/worker/gpu_worker.py:235, v0.33.0 :656: the bytes as they are said, after a run without "
        "a measure; v1/core/kv_cache_planning.py:1515: so many blocks"
    ),
    counts="int",
)
def pool_bytes(plan: Plan, layout: Layout, left: Bytes | None) -> Bytes | None:
    """Bytes of a GPU's pool: as a flag sizes it, else what is ``left`` for it (None without a card)."""
    own = vllm_options(plan)
    if own.kv_blocks:
        return Bytes.exact(own.kv_blocks * layout.block_bytes)
    return Bytes.exact(own.kv_cache_bytes) if own.kv_cache_bytes else left


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 v1/core/kv_cache_utils.py: the memory that was found has to hold a sequence; v0.20.2, and "
        "v0.33.0 v1/core/kv_cache_planning.py:1515, 1533: what was given has to, less a block"
    ),
    counts="int",
)
def checked_bytes(plan: Plan, release: Release, layout: Layout, room: Bytes, left: Bytes | None) -> Bytes:
    """Bytes in which the engine looks for one sequence before it starts: of the pool's ``room``, in newer
    releases less a block that nobody may have; or what was ``left`` before a number of blocks took its
    place. A range holds both where a release stands between two that were read.
    """
    if not pool_flag(plan):
        return room
    kept = room.value - layout.block_bytes
    usable = kept if release.since >= KEPT_BLOCK_SINCE else room.value
    if not vllm_options(plan).kv_blocks or left is None or release.since >= CHECKED_SINCE:
        return Bytes(kept, usable, usable)
    return Bytes(min(left.low, kept), left.value, max(left.high, usable))
