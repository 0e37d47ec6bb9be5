"""How many sequences vLLM's pool of blocks holds, and what paging wastes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from memsheet.arith import Count
from memsheet.engines.vllm.options import vllm_options
from memsheet.engines.vllm.pages import CacheReach, Layout, kinds_of, layout_of, sequence_blocks
from memsheet.engines.vllm.releases import Release
from memsheet.formulas.serving.capacity import concurrency_facts, lengths_of
from memsheet.formulas.serving.sparse_index import served_bytes_per_token
from memsheet.frozen import dataclass, replace
from memsheet.plan.model import ModelSpec
from memsheet.plan.plan import Mesh, Plan
from memsheet.references import PAGED_SERVER_CODE, formula
from memsheet.sheet import Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """The blocks of one replica's rank, as a range. ``in_flight``: tokens that may be scheduled at once;
    ``shared_blocks``: that hold what all prompts begin with; ``ahead``: places for drafted tokens beyond a
    sequence's own, which ends at ``longest``.
    """

    layout: Layout
    blocks: Bytes
    release: Release
    in_flight: int
    shared_blocks: int
    ahead: int
    longest: int

    def sequences(self, tokens: int) -> Bytes:
        """Sequences of so many tokens that are held while each makes one more, what they share kept once."""
        each = sequence_blocks(self.layout, max(tokens, min(tokens + self.ahead, self.longest)), self.release)
        shared = min(self.shared_blocks, each - 1)
        return Bytes(
            *(
                max(0, (blocks - shared) // (each - shared))
                for blocks in (self.blocks.low, self.blocks.value, self.blocks.high)
            )
        )

    def concurrency(self, tokens: int) -> float:
        """The engine's own figure: sequences with a whole batch in flight."""
        return self._concurrent(self.blocks.value, tokens)

    def _concurrent(self, blocks: int, tokens: int) -> float:
        return blocks / sequence_blocks(self.layout, tokens, self.release, self.in_flight)

    def tokens(self, max_model_len: int) -> Bytes:
        """Tokens as the release prints them."""
        return Bytes(
            *(
                self._tokens(blocks, max_model_len)
                for blocks in (self.blocks.low, self.blocks.value, self.blocks.high)
            )
        )

    def _tokens(self, blocks: int, max_model_len: int) -> int:
        paged = [group.block_tokens for group in self.layout.groups if group.kept is not CacheReach.STATE]
        if self.release.lines in ("by_length", "joined"):
            return int(self._concurrent(blocks, max_model_len) * max_model_len)
        return blocks // max(1, len(self.layout.groups)) * min(paged, default=max_model_len)


def cache_capacity_facts(spec: ModelSpec, plan: Plan, pool: Pool) -> Mapping[str, Any]:
    """Facts of a server's cache. Bytes are those of one replica over all its ranks, a copy on another rank
    not counted again; blocks, tokens and sequences are of one replica too.
    """
    assert plan.cache.kv_dtype is not None
    full = plan.serving.max_model_len or 1
    alone = replace(plan, mesh=Mesh(), options=replace(vllm_options(plan), dcp=1))
    whole = layout_of(kinds_of(spec, alone, pool.release), pool.release)
    tokens, per_token = (
        pool.tokens(full),
        served_bytes_per_token(spec, plan.cache.kv_dtype, plan.mesh.tp)
        // (plan.mesh.pp * vllm_options(plan).dcp),
    )
    shared = (
        {"shared_prefix_bytes_per_rank": pool.shared_blocks * pool.layout.block_bytes}
        if pool.shared_blocks
        else {}
    )
    return {
        **shared, "kv_bytes_per_token": served_bytes_per_token(spec, plan.cache.kv_dtype), "kv_bytes_per_token_per_rank": per_token,
        "kv_bytes_per_sequence": sequence_blocks(whole, full, pool.release) * whole.block_bytes,
        "kv_tokens": tokens.value, "kv_tokens_low": tokens.low, "kv_tokens_high": tokens.high,
        "pages": pool.blocks.value, "page_bytes_per_rank": pool.layout.block_bytes,
        "page_tokens": min((group.block_tokens for group in pool.layout.groups if group.kept is not CacheReach.STATE), default=0),
        "groups": [f"{group.layers} layers that keep {group.kept.value}" for group in pool.layout.groups],
        "max_sequences": {str(n): pool.sequences(n).value for n in lengths_of(plan)},
        "capacity": concurrency_facts(plan, pool.sequences, _contiguous_cache_sequences(plan, pool, per_token), _paging_waste_bytes(whole)),
    }  # fmt: skip


def cacheless_facts(plan: Plan) -> Mapping[str, Any]:
    """Facts of a server that keeps nothing of a text: as many at once as may be started, however long."""
    at_once = int(plan.serving.max_sequences or 1)
    return {
        "kv_bytes_per_token": 0, "kv_bytes_per_token_per_rank": 0, "kv_bytes_per_sequence": 0, "kv_tokens": 0, "pages": 0,
        "max_sequences": {str(n): at_once for n in lengths_of(plan)},
    }  # fmt: skip


@formula(
    cites=PAGED_SERVER_CODE,
    at=(
        "v0.11.0 v1/core/block_pool.py get_cached_block: whole blocks of a prefix; what windows keep of it "
        "is not counted as shared"
    ),
)
def shared_blocks(layout: Layout, tokens: Count) -> Count:
    """Blocks that hold the beginning of every prompt, once for all sequences."""
    return sum(tokens // group.block_tokens for group in layout.groups if group.kept is CacheReach.ALL)


def _contiguous_cache_sequences(plan: Plan, pool: Pool, per_token: int) -> int:
    """Sequences that the pool's bytes hold where each reserves max_model_len tokens in every layer, as
    servers did before paging.
    """
    reserved = per_token * (plan.serving.max_model_len or 1)
    return pool.blocks.value * pool.layout.block_bytes // reserved if reserved else 0


def _paging_waste_bytes(layout: Layout) -> int:
    """Half a block of each group that keeps tokens: what the last block of a sequence leaves empty on average
    (arXiv:2309.06180, section 4.3).
    """
    paged = sum(1 for group in layout.groups if group.kept is not CacheReach.STATE)
    return int(paged * layout.block_bytes // 2)
