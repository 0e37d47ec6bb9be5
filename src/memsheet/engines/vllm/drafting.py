"""vLLM with drafted tokens: what its releases have, and from when on they do what."""

from __future__ import annotations

from memsheet.plan.plan import SpeculativeMethod
from memsheet.plan.speculative import Drafting, version_of

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

DRAFT, EAGLE, EAGLE3, MTP, NGRAM = SpeculativeMethod
DRAFTING = Drafting(
    # the proposers of v1/spec_decode (v0.9.2 eagle.py and ngram_proposer.py, v0.16.0 draft_model.py besides;
    # V0 had workers of its own, which were not read)
    methods=(
        ((0, 0), ()),
        ((0, 9), (EAGLE, EAGLE3, MTP, NGRAM)),
        ((0, 16), (DRAFT, EAGLE, EAGLE3, MTP, NGRAM)),
    ),
    whole_rounds=True,  # v0.33.0 config/speculative.py:1600
    keeps_states=True,  # v0.33.0 v1/kv_cache_interface.py:1135
    shortens=lambda version: version_of(version) >= SHORTENED_SINCE,
)
