"""Speculative decoding: which methods each release of an engine has, and what it keeps free, adds and takes
for them.
"""

from __future__ import annotations

import re

from memsheet.frozen import dataclass
from memsheet.plan.plan import SpeculativeMethod

DRAFT, EAGLE, EAGLE3, MTP, NGRAM = SpeculativeMethod
NUMBER = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?")
NEWEST = (10**6,)


def version_of(version: str | None) -> tuple[int, ...]:
    """A release's number, one past all where none is said."""
    found = NUMBER.search(version or "")
    return (int(found[1]), int(found[2]), int(found[3] or 0)) if found else NEWEST


METHODS: dict[str, tuple[tuple[tuple[int, ...], tuple[SpeculativeMethod, ...]], ...]] = {
    "vllm": (((0, 0), ()), ((0, 9), (EAGLE, EAGLE3, MTP, NGRAM)), ((0, 16), (DRAFT, EAGLE, EAGLE3, MTP, NGRAM))),
    "sglang": (
        ((0, 0), (EAGLE, MTP)), ((0, 4, 4), (EAGLE, EAGLE3, MTP)), ((0, 5, 4), (DRAFT, EAGLE, EAGLE3, MTP, NGRAM)),
    ),
    "llama.cpp": (((0, 0), (DRAFT,)),),
    "transformers": (((0, 0), (DRAFT, NGRAM)),),
}  # fmt: skip
"""vLLM: the proposers of v1/spec_decode (v0.9.2 eagle.py and ngram_proposer.py, v0.16.0 draft_model.py
besides; V0 had workers of its own, which were not read). SGLang: the choices of --speculative-algorithm
(v0.4.3.post4 server_args.py:749, v0.4.4.post3 :822, v0.5.4.post3 :2671: STANDALONE is a draft model, NEXTN a
checkpoint's own heads). llama.cpp: -md (common/speculative.cpp draft-simple; eagle3 and mtp were not read).
"""

HEADS = frozenset({"deepseek_v3", "glm4_moe", "qwen3_next"})
"""Families whose own layers for further tokens are written down: two norms, a matrix of (hidden, 2 hidden),
one layer like the last, a norm (vLLM v0.33.0 models/deepseek_mtp.py:70, glm4_moe_mtp.py,
qwen3_next_mtp.py:46; SGLang v0.5.23 models/deepseek_nextn.py:59).
"""


def methods_of(engine: str, version: str | None) -> tuple[SpeculativeMethod, ...]:
    """The methods of an engine's release."""
    number = version_of(version)
    return next((methods for since, methods in reversed(METHODS.get(engine, ())) if since <= number), ())


# ---- vLLM --------------------------------------------------------------------------------------------------

COUNTING_RUNNER = (0, 30)
"""From when on the second model runner is that of all families, with the speculators of
v1/worker/gpu/spec_decode (v0.30.0 config/vllm.py).
"""
EMBEDS_SINCE = (0, 10)
"""From when on the first runner's proposer keeps a buffer of input embeddings (v0.10.2
v1/spec_decode/eagle.py; v0.9.2 has none).
"""
GRAPHS_OF_TOKENS_SINCE = (0, 14)
"""From when on graphs are as large as twice the tokens of all sequences, not twice the sequences (v0.14.0
config/vllm.py:1125).
"""
SHORTENED_SINCE = (0, 33)
"""From when on a draft model's length is the model's too (v0.33.0 config/vllm.py:3025
_limit_max_model_len_to_draft).
"""
CHUNK_BYTES = 2**30
"""Of fp32 logits that are verified at once at most, by the second runner (v0.33.0
v1/worker/gpu/spec_decode/rejection_sampler.py:35).
"""

# ---- SGLang ------------------------------------------------------------------------------------------------

STEPS = 3
"""Steps of a checkpoint's own heads where nobody says (v0.5.23 arg_groups/speculative_hook.py:1430)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What a release of SGLang does for a draft. ``headed_mib``, ``model_mib``: kept free for a head or for a
    model of its own; ``ahead``: the pool grows by the tokens that are drafted and verified; ``first``: the
    draft is loaded before the pool is sized, and its layers are counted in it.
    """

    since: tuple[int, ...]
    requests: int = 48  # that may run where nobody says
    headed_mib: int = 0
    model_mib: int = 0
    ahead: bool = False
    first: bool = False
    table: bool = False  # the table of requests has room for what is drafted


KEPT = (
    Kept(since=(0, 0), requests=32, ahead=True),
    Kept(since=(0, 4, 6), ahead=True),
    Kept(since=(0, 4, 8), headed_mib=2048, model_mib=2048, ahead=True),
    Kept(since=(0, 5, 4), headed_mib=2048, model_mib=6144, ahead=True, table=True),
    Kept(since=(0, 5, 8), headed_mib=2048, model_mib=6144, table=True),
    Kept(since=(0, 5, 12), headed_mib=4096, model_mib=6144, table=True),
    Kept(since=(0, 5, 20), first=True, table=True),
)
"""Requests: v0.4.3.post4 server_args.py:279, v0.4.6.post1 :329, v0.5.23 arg_groups/speculative_hook.py:1086.
The rest: v0.4.6.post1 :751-771, v0.4.8.post1 server_args.py:307, v0.5.4.post3 :809 and model_runner.py:1575,
1636, v0.5.8 server_args.py:1019 and model_runner_kv_cache_mixin.py:291, v0.5.12 server_args.py:1576, v0.5.23
managers/scheduler.py:1087-1137, model_executor/pool_configurator.py:259 and arg_groups/memory_hook.py:300.
"""


def kept_of(version: str | None) -> Kept:
    """What the release that stands for a version does."""
    number = version_of(version)
    return [kept for kept in KEPT if kept.since <= number][-1]


def reserved_mib(version: str | None, method: str | None) -> int:
    """MiB that SGLang keeps free for a draft model or head and its graphs; nothing for ngrams, which have
    neither.
    """
    if method is None or method == NGRAM.value:
        return 0
    kept = kept_of(version)
    return kept.model_mib if method == DRAFT.value else kept.headed_mib
