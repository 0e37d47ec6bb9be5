"""SGLang with drafted tokens: which methods its releases have, and what they keep free, add and take for
them.
"""

from __future__ import annotations

from memsheet.frozen import dataclass
from memsheet.plan.plan import SpeculativeMethod
from memsheet.plan.speculative import Drafting, version_of

DRAFT, EAGLE, EAGLE3, MTP, NGRAM = SpeculativeMethod
DRAFTING = Drafting(
    # the choices of --speculative-algorithm (v0.4.3.post4 server_args.py:749, v0.4.4.post3 :822,
    # v0.5.4.post3 :2671: STANDALONE is a draft model, NEXTN a checkpoint's own heads)
    methods=(
        ((0, 0), (EAGLE, MTP)),
        ((0, 4, 4), (EAGLE, EAGLE3, MTP)),
        ((0, 5, 4), (DRAFT, EAGLE, EAGLE3, MTP, NGRAM)),
    ),
    axes=("tp",),
    steps=3,  # v0.5.23 arg_groups/speculative_hook.py:1430
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftReserve:
    """What a release does for a draft. ``headed_mib``, ``model_mib``: kept free for a head or for a model of
    its own; ``ahead``: the pool grows by the tokens that are drafted and verified; ``first``: the draft is
    loaded before the pool is sized, and its layers are counted in it.
    """

    since: tuple[int, ...]
    requests: int = 48  # that may run where nobody says
    headed_mib: int = 0
    model_mib: int = 0
    ahead: bool = False
    first: bool = False
    table: bool = False  # the table of requests has room for what is drafted


KEPT = (
    DraftReserve(since=(0, 0), requests=32, ahead=True),
    DraftReserve(since=(0, 4, 6), ahead=True),
    DraftReserve(since=(0, 4, 8), headed_mib=2048, model_mib=2048, ahead=True),
    DraftReserve(since=(0, 5, 4), headed_mib=2048, model_mib=6144, ahead=True, table=True),
    DraftReserve(since=(0, 5, 8), headed_mib=2048, model_mib=6144, table=True),
    DraftReserve(since=(0, 5, 12), headed_mib=4096, model_mib=6144, table=True),
    DraftReserve(since=(0, 5, 20), first=True, table=True),
)
"""Requests: v0.4.3.post4 server_args.py:279, v0.4.6.post1 :329, v0.5.23 arg_groups/speculative_hook.py:1086.
The rest: v0.4.6.post1 :751-771, v0.4.8.post1 server_args.py:307, v0.5.4.post3 :809 and model_runner.py:1575,
1636, v0.5.8 server_args.py:1019 and model_runner_kv_cache_mixin.py:291, v0.5.12 server_args.py:1576, v0.5.23
managers/scheduler.py:1087-1137, model_executor/pool_configurator.py:259 and arg_groups/memory_hook.py:300.
"""


def kept_of(version: str | None) -> DraftReserve:
    """What the release that stands for a version does."""
    number = version_of(version)
    return [kept for kept in KEPT if kept.since <= number][-1]
