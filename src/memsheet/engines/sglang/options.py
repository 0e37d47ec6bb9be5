"""Options that only SGLang has."""

from __future__ import annotations

from typing import Self

from memsheet.frozen import dataclass, replace
from memsheet.plan.engine_options import EngineOptions
from memsheet.plan.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SglangOptions(EngineOptions):
    """``dp_lm_head``: with data-parallel attention, each group has the whole output matrix.
    ``graph_sequences``: of a group's largest CUDA graph, where they are said. Slots of
    recurrent states, over all groups that attend by themselves, or else ``state_ratio``: bytes of them for
    each byte of tokens. ``pool_tokens``: of the pool at most; 0 where nobody says. ``host_kv_gib``,
    ``host_kv_ratio``: GiB of host memory that the pool spills into, or as a multiple of it
    (``--hicache-size``, ``--hicache-ratio``).
    """

    dp_lm_head: bool = False
    graph_sequences: int | None = None
    state_slots: int | None = None
    state_ratio: float | None = None
    pool_tokens: int = 0
    host_kv_gib: float = 0
    host_kv_ratio: float = 0
    attention_kernels: str | None = None

    def of_one_group(self, groups: int) -> Self:
        if self.state_slots is None:
            return self
        return replace(self, state_slots=max(1, self.state_slots // groups))


def sglang_options(plan: Plan) -> SglangOptions:
    assert isinstance(plan.options, SglangOptions)
    return plan.options
